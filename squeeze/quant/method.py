"""The base of methods that round a matrix to a grid: the choice of the grid, groups of inputs, the resulting tensor."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.engine.method import Method, Result
from squeeze.errors import SqueezeError
from squeeze.options import check
from squeeze.quant import codebooks
from squeeze.quant.activations import ACTIVATIONS, ActivationGrid
from squeeze.quant.block_grid import BlockGrid, BlockParams
from squeeze.quant.blocks import GRIDS, BlockTensor
from squeeze.quant.codebooks import FLOATS, Codebook, NestedCodebook
from squeeze.quant.grid import QParams, Quantizer
from squeeze.quant.methods import GridOptions

__all__ = ["GridMethod"]


@dataclass(frozen=True, kw_only=True)
class GridMethod(GridOptions, ABC):
    """A method that rounds a matrix W (out, in) to a grid.

    Attributes:
        bits: 2 to 8, of an integer grid.
        group_size: inputs that share a scale, -1 for a whole row; MXFP4 and NVFP4 have their own.
        symmetric: no zero points.
        grid: "integer", "whole" (one scale for the matrix), a name in codebooks.CODEBOOKS or codebooks.FLOATS, or a
            GGUF type (blocks.GRIDS), which determines bits and groups.
        clip: search the range of each group with the least squared error.
        scale_dtype: dtype in which scales are stored; None for the weight's own if it has 16 bits, else float16.
        activations: a name in activations.ACTIVATIONS if inputs are rounded, too.
    """

    name: ClassVar[str]
    needs_hessian: ClassVar[bool]

    scale_dtype: torch.dtype | None = field(default=None)
    activations: str | None = field(default=None)

    def __post_init__(self) -> None:
        check(self)
        if isinstance(self.as_quantizer(), NestedCodebook) and getattr(self, "dynamic", False):
            raise SqueezeError(f"the grid {self.grid} finds its scales together: leave out `dynamic`")
        if self.group_size != -1 and self.group_size < 1:
            raise SqueezeError(f"expected a group size of at least 1, or -1 for a whole row, got {self.group_size}")

    @abstractmethod
    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[QuantizedTensor]:
        """Quantise a weight; see Method.compress."""

    @abstractmethod
    def fallback(self) -> Method:
        """Return the method to use without statistics; see Method.fallback."""

    def as_quantizer(self) -> Quantizer:
        """Return the grid. Raises SqueezeError if there is no such grid."""
        known: Quantizer | None = GRIDS.get(self.grid) or FLOATS.get(self.grid)
        return known or codebooks.make(self.grid, self.bits, self.symmetric, self.clip)

    @property
    def rounding(self) -> ActivationGrid | None:
        """The rounding of activations, which calibration applies, too; None if they are not rounded."""
        return None if self.activations is None else ACTIVATIONS[self.activations]

    def replaced(self, **changes: Any) -> Self:
        """Return the method with other parameters."""
        return replace(self, **changes)

    def misfit(self, inputs: int) -> str | None:
        """Return why rows with this number of inputs do not fit the grid; None if they do."""
        quantizer = self.as_quantizer()
        needed = quantizer.width if isinstance(quantizer, BlockGrid) else quantizer.group_size
        if isinstance(quantizer, Codebook) and quantizer.scale_kind == "float8":
            needed = needed or self.group_size  # a shorter last group would have a factor of its own
        if needed in (None, -1) or inputs % needed == 0:
            return None
        return f"{self.grid} needs a multiple of {needed} inputs, got {inputs}"

    def effective_group_size(self, inputs: int) -> int:
        """Return the inputs that share a scale in a row of `inputs`. Raises SqueezeError if the row does not fit the
        grid."""
        if wrong := self.misfit(inputs):
            raise SqueezeError(wrong)
        size = self.as_quantizer().group_size or self.group_size
        return inputs if size == -1 else min(size, inputs)

    def stored_as(self, weight: torch.Tensor) -> torch.dtype:
        """Return the dtype of the scales."""
        if self.scale_dtype:
            return self.scale_dtype
        return weight.dtype if weight.dtype in (torch.float16, torch.bfloat16) else torch.float16

    def fit(self, weight: torch.Tensor, importance: torch.Tensor | None, dtype: torch.dtype) -> QParams:
        """Fit parameters [O, G] to a float32 matrix [O, I]; importance is [I] or None."""
        size, quantizer = self.effective_group_size(weight.shape[1]), self.as_quantizer()
        end = weight.shape[1] // size * size
        pieces = []
        for start, stop, n in ((0, end, size), (end, weight.shape[1], weight.shape[1] - end)):
            if start < stop:
                groups = weight[:, start:stop].reshape(len(weight), (stop - start) // n, n)
                shared = None if importance is None else importance[start:stop].reshape(1, -1, n)
                pieces.append(quantizer.fit(groups, shared, dtype))
        if len(pieces) == 1:
            return pieces[0]
        zeros = [params.zero for params in pieces if params.zero is not None]
        return QParams(
            torch.cat([params.scale for params in pieces], -1),
            torch.cat(zeros, -1) if zeros else None,
            pieces[0].factor,
        )

    def assemble(self, codes: torch.Tensor, params: QParams, dtype: torch.dtype) -> QuantizedTensor:
        """Return the quantised tensor with codes uint8 [O, I] and parameters [O, G]."""
        quantizer = self.as_quantizer()
        if isinstance(quantizer, BlockGrid):
            assert isinstance(params, BlockParams)
            return BlockTensor.of(quantizer, codes, params)
        scales = params.scale if params.factor is None else params.scale / params.factor
        scales = scales.to(torch.float8_e4m3fn).float() if params.factor is not None else scales
        return QuantizedTensor(
            codes=codes.contiguous(),
            scales=scales if quantizer.scale_bits or params.nested else scales.to(dtype),
            zeros=None if params.zero is None else params.zero.to(torch.uint8),
            bits=quantizer.bits,
            group_size=self.effective_group_size(codes.shape[1]),
            codebook=quantizer.codebook,
            global_scale=params.factor,
            scale_bits=quantizer.scale_bits,
            nested=params.nested,
        )
