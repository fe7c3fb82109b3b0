"""Floats of 8 bits (e4m3, without infinities) times a scale: of a row or group, of a block of rows, or of a matrix.

Their steps grow with their size, so the largest weight need not be the largest level. Where levels lie between two
powers of two is all that a scale decides, but for the smallest weights; it is searched over such a range.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from squeeze.quant.grid import ROWS, QParams, error, rising, stored
from squeeze.quant.levels import Levels

__all__ = ["FLOATS", "Float8"]

_TYPE = torch.float8_e4m3fn
_TOP = 448.0
_TRIED = 17  # scales, from the one that makes the largest weight the largest level
_WIDEST = 4.0  # times that


@dataclass(frozen=True)
class Float8:
    """group_size: inputs that share a scale, None where any number will do; rows: outputs that share one, -1 for all of
    them. Codes are the floats' own bits."""

    group_size: int | None = None
    rows: int = 1
    bits: ClassVar[int] = 8
    scale_bits: ClassVar[int | None] = None

    @property
    def free_scales(self) -> bool:
        return self.rows == 1

    @property
    def codebook(self) -> torch.Tensor:
        return torch.arange(256, dtype=torch.uint8).view(_TYPE).to(torch.float32)[None]

    def fit(self, weight: torch.Tensor, importance: torch.Tensor | None, dtype: torch.dtype) -> QParams:
        whole = self._shared(weight.abs().amax(-1), torch.amax) / _TOP
        best, least = stored(whole, dtype), torch.full_like(whole, torch.inf)
        for share in torch.logspace(0, 1, _TRIED, _WIDEST).tolist():
            scale = stored(whole * share, dtype)
            errors = self._shared(self._errors(weight, importance, scale), torch.sum)
            best = torch.where(errors < least, scale, best)
            least = torch.minimum(errors, least)
        return QParams(best[None])

    def _errors(self, weight: torch.Tensor, importance: torch.Tensor | None, scale: torch.Tensor) -> torch.Tensor:
        """Of each group, some rows after the other."""
        rows = zip(torch.split(weight, ROWS), torch.split(scale, ROWS), strict=True)
        return torch.cat([error(self, part, importance, QParams(own[None])) for part, own in rows])

    def _shared(self, values: torch.Tensor, reduced: Callable[..., torch.Tensor]) -> torch.Tensor:
        """values [O, G] reduced over the rows that share a scale, and given to each of them."""
        size = len(values) if self.rows == -1 else self.rows
        if size <= 1:
            return values
        parts = [reduced(part, 0, keepdim=True).expand_as(part) for part in torch.split(values, size)]
        return torch.cat(parts)

    def encode(self, weight: torch.Tensor, params: QParams) -> torch.Tensor:
        scaled = weight.to(torch.float32) / params.scale[0][..., None]
        return scaled.clamp(-_TOP, _TOP).to(_TYPE).view(torch.uint8)

    def decode(self, codes: torch.Tensor, params: QParams) -> torch.Tensor:
        return codes.contiguous().view(_TYPE).to(torch.float32) * params.scale[0][..., None]

    def levels_of(self, params: QParams) -> Levels:
        plane = tuple(self.codebook[0].nan_to_num(0).tolist())
        return Levels.table(rising(plane, params.scale.device), params.scale[0])


FLOATS = {"fp8": Float8(), "fp8-block": Float8(128, 128), "fp8-tensor": Float8(-1, -1)}
