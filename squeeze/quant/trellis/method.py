"""Trellis-coded quantisation: a column of a matrix becomes a path through a trellis; later columns compensate its
error.

QTIP (Tseng et al. 2024, arXiv 2406.11235) codes tiles of a matrix in this way, and rotates it so that its weights are
nearly normal. Here a sequence is a whole column, so that errors are fed back column by column as in GPTQ, and only
inputs are rotated, in blocks.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from squeeze.engine.method import HessianError, Result
from squeeze.errors import SqueezeError
from squeeze.numerics.hadamard import rotate_blocks
from squeeze.options import check
from squeeze.quant.gptq import inverse_factor
from squeeze.quant.methods import TrellisOptions
from squeeze.quant.trellis.stored import ROTATION, TrellisTensor
from squeeze.quant.trellis.viterbi import Viterbi

__all__ = ["Trellis"]

_BLOCK = 128  # columns whose errors are spread to later columns at once


@dataclass(frozen=True, kw_only=True)
class Trellis(TrellisOptions):
    """Quantise a matrix to 1 to 4 bits a weight, with less error than integers of the same size, at a slower product.

    compress takes W (out, in) and H (in, in). QTIP, Tseng et al. 2024, arXiv 2406.11235.

    Attributes:
        rate: bits of a weight, a multiple of 1/16.
        damping: share of the mean diagonal of H that is added to it.
        act_order: columns with the largest inputs first.
    """

    name: ClassVar[str] = "trellis"
    needs_hessian: ClassVar[bool] = True
    grid: ClassVar[str] = "trellis"
    activations: ClassVar[None] = None
    rounding: ClassVar[None] = None

    def __post_init__(self) -> None:
        check(self)
        if 16 * self.rate != self.sixteenths:
            raise SqueezeError(f"expected a rate that is a multiple of 1/16 bit, got {self.rate}")

    @property
    def sixteenths(self) -> int:
        """The rate in sixteenths of a bit."""
        return round(16 * self.rate)

    @property
    def bits(self) -> float:
        """The rate, under the name that methods on grids use."""
        return self.rate

    def fallback(self) -> "Trellis":
        return self

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[TrellisTensor]:
        """Quantise a weight; see Method.compress. Without a Hessian all errors count alike."""
        inputs = weight.shape[1]
        if hessian is not None and hessian.shape != (inputs, inputs):
            raise HessianError(f"expected a Hessian of {inputs} x {inputs}, the inputs of the matrix")
        values, notes = weight.detach().to("cpu", torch.float32), list[str]()
        if hessian is None:
            values, hessian = rotate_blocks(values, ROTATION), torch.eye(inputs)
        else:
            hessian = hessian.to("cpu", torch.float32)
            dead = hessian.diagonal() == 0
            if dead.any():
                notes.append(f"{int(dead.sum())} inputs are always 0")
            values = rotate_blocks(values.masked_fill(dead, 0), ROTATION)
            hessian = rotate_blocks(rotate_blocks(hessian, ROTATION).T.contiguous(), ROTATION)
        order = torch.arange(inputs)
        if self.act_order:
            order = hessian.diagonal().argsort(descending=True, stable=True)
        upper, damping = inverse_factor(hessian, self.damping, order)
        if damping > self.damping:
            notes.append(f"damping raised to {damping:g}")
        scales = self._stored(values.square().mean(1).sqrt(), weight.dtype)
        codes, levels = self._sweep(values, order, upper, scales)
        scales = self._stored(_best_scales(values, hessian, levels, scales), weight.dtype)
        tensor = TrellisTensor(codes.to(weight.device), scales.to(weight.device), self.sixteenths)
        return Result(tensor, tuple(notes))

    def _stored(self, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return scales in the weight's own dtype if that has 16 bits, else in float16."""
        return scales.to(dtype if dtype in (torch.float16, torch.bfloat16) else torch.float16)

    def _sweep(
        self, weight: torch.Tensor, order: torch.Tensor, upper: torch.Tensor, scales: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes [I, bytes] and their levels [O, I]."""
        scales = scales.to(torch.float32)
        coder, columns = Viterbi(len(weight), self.sixteenths), order.tolist()
        work = weight.T[order].contiguous()  # [I, O]
        codes, levels = [torch.empty(0)] * len(columns), torch.empty_like(weight)
        for first in range(0, len(columns), _BLOCK):
            last = min(first + _BLOCK, len(columns))
            errors = torch.empty((last - first, len(weight)))
            for j in range(first, last):
                rounded, codes_of_columns = coder.encode(work[j].numpy(), scales.numpy())
                codes[columns[j]], level = torch.from_numpy(rounded), torch.from_numpy(codes_of_columns)
                levels[:, columns[j]] = level
                errors[j - first] = (work[j] - level * scales) / upper[j, j]
                work[j + 1 : last].addr_(upper[j, j + 1 : last], errors[j - first], alpha=-1)
            work[last:].addmm_(upper[first:last, last:].T, errors, alpha=-1)
        return torch.stack(codes), levels


def _best_scales(
    weight: torch.Tensor, hessian: torch.Tensor, levels: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Return the scales that minimise each row's error with its levels. A row keeps its scale if its levels are all
    0."""
    pulled = levels @ hessian
    energy = (levels * pulled).sum(1)
    best = (weight * pulled).sum(1) / energy
    return torch.where((energy > 0) & (best > 0), best, scales.to(torch.float32))
