"""Grids: the values that a quantised weight can take, and the choice of a group's scale and zero point.

A grid works on groups: weights [..., n] whose last dimension shares a scale. It does not depend on matrices or methods.
Grids with a table of levels are in codebooks.py, those of GGUF in block_grid.py.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch

from squeeze.quant import columns
from squeeze.quant.columns import Levels
from squeeze.quant.scales import Nested

__all__ = [
    "ROWS",
    "Integer",
    "PerTensor",
    "QParams",
    "Quantizer",
]

ROWS = 256  # rows whose scales are found at once, so that they stay in the CPU's cache
SHRINKS = 40  # clipping ranges tried, from the whole one down
LEAST_SHRINK = 0.4
_BINS = 2048
_SAMPLES, _ZOOMS = 16, 3


@dataclass(frozen=True)
class QParams:
    """Scales and zero points of groups of shape [...].

    Attributes:
        scale: float32 [P, ...], as stored.
        zero: zero points, float32 [...]; None without.
        factor: scale of the tensor, if scales are stored as multiples of it.
        nested: the quantised scales, if scales are quantised, too.
    """

    scale: torch.Tensor
    zero: torch.Tensor | None = None
    factor: torch.Tensor | None = None
    nested: Nested | None = field(default=None, kw_only=True)

    def __getitem__(self, index: tuple[int | slice, ...]) -> "QParams":
        """Select groups."""
        zero = None if self.zero is None else self.zero[index]
        return QParams(self.scale[(slice(None), *index)], zero, self.factor)


class Quantizer(Protocol):
    """A grid: fits parameters to groups, and turns weights into codes and back.

    Attributes:
        bits: stored for each code.
        codebook: float32 [P, levels], or None.
        scale_bits: stored for each scale; see QuantizedTensor.
        free_scales: whether any float may be a scale.
        group_size: the only group size of the grid, -1 for a row, None if any is possible.
    """

    @property
    def bits(self) -> int: ...

    @property
    def scale_bits(self) -> int | None: ...

    @property
    def free_scales(self) -> bool: ...

    @property
    def group_size(self) -> int | None: ...

    @property
    def codebook(self) -> torch.Tensor | None: ...

    def fit(self, weight: torch.Tensor, importance: torch.Tensor | None, dtype: torch.dtype) -> QParams:
        """Fit parameters to groups.

        Args:
            weight: float32 [..., n].
            importance: factors of squared errors [..., n], or None.
            dtype: the dtype in which scales are stored.
        """
        ...

    def encode(self, weight: torch.Tensor, params: QParams) -> torch.Tensor:
        """Return the codes of the nearest levels, uint8 [..., n]."""
        ...

    def decode(self, codes: torch.Tensor, params: QParams) -> torch.Tensor:
        """Return the values of codes, float32 [..., n]."""
        ...

    def levels_of(self, params: QParams) -> Levels | None:
        """Return the levels for compiled loops, of parameters on the CPU; None if they do not support the grid."""
        ...


@dataclass(frozen=True)
class Integer:
    """Integers of `bits` bits, with a zero point (asymmetric) or centred on 0 (symmetric).

    With `clip` the range is the one with the least squared error instead of the whole range, searched as in Frantar et
    al. 2022.
    """

    bits: int = 4
    symmetric: bool = True
    clip: bool = False
    scale_bits: ClassVar[int | None] = None
    free_scales: ClassVar[bool] = True
    group_size: ClassVar[int | None] = None

    @property
    def codebook(self) -> torch.Tensor | None:
        return None

    def fit(self, weight: torch.Tensor, importance: torch.Tensor | None, dtype: torch.dtype) -> QParams:
        low, high = weight.amin(-1).clamp(max=0), weight.amax(-1).clamp(min=0)
        if not self.clip:
            return self._params(low, high, dtype)
        if weight.ndim < 3 or len(weight) <= ROWS:
            shares = weight.new_tensor(_shrinks()).reshape(-1, *(1,) * low.ndim)
            return least_error(self, weight, importance, self._params(shares * low, shares * high, dtype))
        rows = torch.split(weight, ROWS)
        shared = importance is None or importance.shape[:-2] != weight.shape[:-2]
        own = None if importance is None or shared else torch.split(importance, ROWS)
        pieces = [self.fit(part, own[i] if own else importance, dtype) for i, part in enumerate(rows)]
        zeros = [part.zero for part in pieces if part.zero is not None]
        return QParams(torch.cat([part.scale for part in pieces], 1), torch.cat(zeros) if zeros else None)

    def _params(self, low: torch.Tensor, high: torch.Tensor, dtype: torch.dtype) -> QParams:
        top = (1 << self.bits) - 1
        if self.symmetric:
            return QParams(stored(2 * torch.maximum(-low, high) / top, dtype)[None])
        scale = stored((high - low) / top, dtype)
        return QParams(scale[None], torch.round(-low / scale).clamp(0, top))

    def encode(self, weight: torch.Tensor, params: QParams) -> torch.Tensor:
        codes = torch.round(weight / params.scale[0][..., None]) + self._zero(params)
        return codes.clamp_(0, (1 << self.bits) - 1).to(torch.uint8)

    def decode(self, codes: torch.Tensor, params: QParams) -> torch.Tensor:
        return (codes.to(torch.float32) - self._zero(params)) * params.scale[0][..., None]

    def levels_of(self, params: QParams) -> Levels:
        zero = 1 << (self.bits - 1) if params.zero is None else params.zero
        return Levels.integers(1 << self.bits, params.scale[0], zero)

    def _zero(self, params: QParams) -> torch.Tensor | int:
        return 1 << (self.bits - 1) if params.zero is None else params.zero[..., None]


@dataclass(frozen=True)
class PerTensor(Integer):
    """Symmetric integers with one scale for the whole matrix: SLiM-Quant (Mozaffari et al. 2024, arXiv 2410.09615).

    The scale has the least expected squared error over a histogram of the weights, found on ever finer grids.
    """

    free_scales: ClassVar[bool] = False
    group_size: ClassVar[int | None] = -1

    def fit(self, weight: torch.Tensor, importance: torch.Tensor | None, dtype: torch.dtype) -> QParams:
        largest = weight.abs().amax().clamp(min=1e-30)
        bins = ((weight / largest + 1) * (_BINS / 2)).long().clamp_(max=_BINS - 1).flatten()
        counts = torch.bincount(bins, None if importance is None else importance.expand_as(weight).flatten(), _BINS)
        centres = (torch.arange(_BINS, device=weight.device) + 0.5) * (2 / _BINS) - 1
        least, most = 0.0, 1.0  # shares of the largest weight
        for _ in range(_ZOOMS):
            tried = torch.linspace(least, most, _SAMPLES + 1)[1:]
            params = QParams(2 * tried[None].to(weight.device) / ((1 << self.bits) - 1))
            errors = error(self, centres.expand(_SAMPLES, -1), counts.float(), params)
            step, best = (most - least) / _SAMPLES, float(tried[errors.argmin()])
            least, most = max(best - step, 0.0), min(best + step, 1.0)
        scale = stored(2 * best * largest / ((1 << self.bits) - 1), dtype)
        return QParams(scale.expand(1, *weight.shape[:-1]).clone())


def _shrinks() -> list[float]:
    return [1 - (1 - LEAST_SHRINK) * i / SHRINKS for i in range(SHRINKS + 1)]


def stored(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round a positive scale to the dtype in which it is stored, as float32; 1 if it would be 0."""
    rounded = scale.to(dtype).to(torch.float32)
    return torch.where(rounded > 0, rounded, torch.ones_like(rounded))


def error(grid: Quantizer, weight: torch.Tensor, importance: torch.Tensor | None, params: QParams) -> torch.Tensor:
    """Return the squared error of each group [...]."""
    difference = (grid.decode(grid.encode(weight, params), params) - weight).square_()
    return (difference if importance is None else difference * importance).sum(-1)


def least_error(grid: Quantizer, weight: torch.Tensor, importance: torch.Tensor | None, tried: QParams) -> QParams:
    """Return the parameters with the least error of each group, among candidates [T, ...]."""
    if weight.device.type == "cpu" and weight.ndim == 3 and (levels := grid.levels_of(tried)):
        best = columns.search(weight, importance, levels)
    else:
        best = torch.stack([error(grid, weight, importance, tried[t,]) for t in range(tried.scale.shape[1])]).argmin(0)
    scale = tried.scale.gather(1, best.expand(len(tried.scale), 1, *best.shape))[:, 0]
    return QParams(scale, None if tried.zero is None else tried.zero.gather(0, best[None])[0], tried.factor)
