"""A linear layer on a grid that learns the scales of its groups and, if they move, the codes of its weights.

A scale is s exp(g t) for the stored s and a trained t. A code is c + h d, rounded, for the stored c and a trained d; it
moves to a neighbour at most. The gradient of d ignores the rounding (straight-through, Bengio et al. 2013, arXiv
1308.3432), and is 0 if d would lead further. What is trained is what is stored: in every product, scales are rounded to
their dtype or to 8-bit floats (e4m3), and codes to whole numbers.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.quant.scales import round_scale

__all__ = ["CodedLinear", "CodedWeight"]

CodedWeight = QuantizedTensor | SparseTensor
_SCALE_GAIN = 3.0  # of a step of Adam, compared with that of a norm
_NARROW_GAIN = 0.75  # of scales of 8 bits: noise alone moves few of them to a neighbour, 6 % away
_CODE_GAIN = 5.0
_EDGE = 0.3  # of a step: the furthest from its code that a weight begins, so that noise alone moves no code
_FURTHEST = 1.5  # steps; beyond it a code would move to the neighbour's neighbour


class CodedLinear(nn.Module):
    """y = x W^T + b with a weight [O, I] on a grid, sparse or not.

    `scale` is t, float32 [O, G]. `code` is d, float32 [O, I], or None if codes are fixed. `bias` is trained if there
    is one. Adapters and outlier columns stay as they are. `source` is the checkpoint's name of the module.
    """

    bias: nn.Parameter | None
    code: nn.Parameter | None
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    mask: torch.Tensor | None
    fixed: torch.Tensor | None
    kept: torch.Tensor | None

    def __init__(
        self, weight: CodedWeight, bias: torch.Tensor | None, original: torch.Tensor | None = None, source: str = ""
    ) -> None:
        """Prepare a layer.

        Args:
            weight: The stored weight, of one plane.
            bias: float [O], or None.
            original: The original weight [O, I], towards which codes may move; None if they are fixed.
            source: The checkpoint's name of the module.
        """
        super().__init__()
        self.stored, self.source = weight, source
        grid = _grid(weight)
        self.group_size = grid.group_size
        mask, fixed = _unscaled(weight)
        values: dict[str, torch.Tensor | None] = {"codes": grid.codes, "mask": mask, "fixed": fixed}
        values |= {"scales": grid.scales[0].float(), "zeros": _zeros(grid)}
        for name, value in values.items():
            self.register_buffer(name, value, persistent=False)
        self.factor = 1.0 if grid.global_scale is None else float(grid.global_scale)
        self.gain = _SCALE_GAIN if grid.scale_bits is None else _NARROW_GAIN
        self.scale = nn.Parameter(torch.zeros_like(self.scales))
        self.bias = None if bias is None else nn.Parameter(bias.detach().float().clone())
        self.code = None
        self.register_buffer("kept", None, persistent=False)  # `steps`, if they are whole numbers that stay
        if original is not None:
            self.code = nn.Parameter(self._towards(original.float()) / _CODE_GAIN)
        elif grid.codebook is None:
            self.kept = self.steps().to(torch.bfloat16)  # exact: they are from -255 to 255

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)

    @property
    def weight(self) -> torch.Tensor:
        """The weight [O, I] as it would be stored, with gradients to what is trained."""
        weight: torch.Tensor = _Weight.apply(self.scale, self.code, self)  # type: ignore[no-untyped-call]
        return weight if self.fixed is None else weight + self.fixed.to(weight.dtype)

    def current_scales(self) -> torch.Tensor:
        """Return the scales [O, G] as they would be stored, as float32."""
        grid, scales = _grid(self.stored), self.scales * torch.exp(self.gain * self.scale.detach())
        if grid.scale_bits is not None:
            return round_scale("float8", scales, torch.ones_like(scales[:1, :1]))
        return scales.to(grid.scales.dtype).float()

    def current_codes(self) -> torch.Tensor:
        """Return the codes uint8 [O, I] as they would be stored."""
        if self.code is None:
            return self.codes
        moved = torch.round(_CODE_GAIN * self.code.detach()).clamp_(-1, 1).add_(self.codes)
        return moved.clamp_(0, (1 << _grid(self.stored).bits) - 1).to(torch.uint8)

    def steps(self) -> torch.Tensor:
        """Return the weights [O, G, size] in units of their scales."""
        if self.kept is not None:
            return self.kept
        codes, codebook = self.current_codes(), _grid(self.stored).codebook
        values = codes.float() if codebook is None else codebook[0].to(codes.device)[codes.int()]
        steps = _grouped(values, self.group_size) - self.zeros[..., None]
        return steps if self.mask is None else steps.mul_(_grouped(self.mask, self.group_size))

    def trained_weight(self) -> CodedWeight:
        """Return the trained weight in the form of the stored one."""
        grid = _grid(self.stored)
        scales = self.current_scales().to(grid.scales.dtype)[None].cpu()
        grid = replace(grid, codes=self.current_codes().cpu(), scales=scales)
        return grid if isinstance(self.stored, QuantizedTensor) else replace(self.stored, values=grid)

    def _towards(self, original: torch.Tensor) -> torch.Tensor:
        """Return how far each weight [O, I] of the original is from its code, in steps, within the code's cell."""
        wanted = original if self.fixed is None else original - self.fixed
        scales = self.factor * self.scales[..., None]
        return _flat(_grouped(wanted, self.group_size) / scales - self.steps(), wanted.shape[1]).clamp(-_EDGE, _EDGE)


class _Weight(torch.autograd.Function):
    """The weight of a CodedLinear, from its trained scales and codes."""

    @staticmethod
    def forward(ctx: Any, scale: torch.Tensor, code: torch.Tensor | None, layer: CodedLinear) -> torch.Tensor:
        steps, scales = layer.steps(), layer.factor * layer.current_scales()
        ctx.layer = layer
        ctx.save_for_backward(steps.to(torch.bfloat16), scales)  # whole numbers below 256, or values of a codebook
        weight = _flat(steps * scales[..., None], layer.codes.shape[1])
        on = scale.device.type
        return weight.to(torch.get_autocast_dtype(on)) if torch.is_autocast_enabled(on) else weight

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        layer, (steps, scales) = ctx.layer, ctx.saved_tensors
        slopes = _grouped(slope.float(), layer.group_size)
        of_scale = (slopes * steps).sum(-1) * scales * layer.gain
        if layer.code is None:
            return of_scale, None, None
        of_code = _flat(slopes * (scales * _CODE_GAIN)[..., None], slope.shape[1])
        place = _CODE_GAIN * layer.code.detach()
        further = (place > _FURTHEST) & (of_code < 0) | (place < -_FURTHEST) & (of_code > 0)
        return of_scale, of_code.masked_fill(further if layer.mask is None else further | ~layer.mask, 0.0), None


def _grid(weight: CodedWeight) -> QuantizedTensor:
    if isinstance(weight, QuantizedTensor):
        return weight
    assert isinstance(weight.values, QuantizedTensor)
    return weight.values


def _zeros(grid: QuantizedTensor) -> torch.Tensor:
    """Return the zero points, float32 [O, G]; 0 for a codebook."""
    if grid.zeros is not None:
        return grid.zeros.float()
    return torch.full(grid.scales[0].shape, 0.0 if grid.codebook is not None else 1 << (grid.bits - 1))


def _unscaled(weight: CodedWeight) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the mask of the weights that are codes, bool [O, I], and what is added to them, float32 [O, I]; None for
    all, and for nothing."""
    sparse = weight if isinstance(weight, SparseTensor) else None
    mask, added = (sparse.mask, sparse.adapters) if sparse else (None, None)
    fixed = None if added is None else added.dense()
    if (outliers := _grid(weight).outliers) is not None:
        mask = torch.ones(weight.shape, dtype=torch.bool) if mask is None else mask.clone()
        mask[:, outliers[0]] = False
        fixed = torch.zeros(weight.shape) if fixed is None else fixed
        fixed[:, outliers[0]] = outliers[1].float()
    return mask, fixed


def _grouped(matrix: torch.Tensor, size: int) -> torch.Tensor:
    """Return a matrix [O, I] by groups, [O, G, size], padded with zeros."""
    if rest := -matrix.shape[1] % size:
        matrix = functional.pad(matrix, (0, rest))
    return matrix.view(len(matrix), -1, size)


def _flat(groups: torch.Tensor, inputs: int) -> torch.Tensor:
    """Return groups [O, G, size] as a matrix [O, I], without padding."""
    return groups.reshape(len(groups), -1)[:, :inputs]
