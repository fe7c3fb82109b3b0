"""Grids: which values a quantised weight can take, and how a group's scale and zero point are chosen.

A grid works on groups: weights [..., n] whose last dimension shares a scale. It knows nothing of matrices or methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import ClassVar, Protocol

import torch

from squeeze.errors import SqueezeError
from squeeze.quant import columns, narrow
from squeeze.quant.levels import Levels
from squeeze.quant.nested import Nested

__all__ = [
    "CODEBOOKS",
    "ROWS",
    "Codebook",
    "Integer",
    "NestedCodebook",
    "PerTensor",
    "QParams",
    "Quantizer",
    "make",
    "rising",
]

ROWS = 256  # whose scales are found at once: what they take stays near the processor
_SHRINKS = 40  # clipping ranges tried, from the whole one down
_LEAST_SHRINK = 0.4
_REFITS = 3
_TINY = 2.0**-126
_BINS = 2048
_SAMPLES, _ZOOMS = 16, 3


@dataclass(frozen=True)
class QParams:
    """Of groups of shape [...]. scale: float32 [P, ...], as it is stored; zero: float32 [...], or None; factor: of all
    scales together, where they are stored as multiples of it; nested: how they are stored in two levels."""

    scale: torch.Tensor
    zero: torch.Tensor | None = None
    factor: torch.Tensor | None = None
    nested: Nested | None = field(default=None, kw_only=True)

    def __getitem__(self, index: tuple[int | slice, ...]) -> "QParams":
        """Some of the groups."""
        zero = None if self.zero is None else self.zero[index]
        return QParams(self.scale[(slice(None), *index)], zero, self.factor)


class Quantizer(Protocol):
    """bits: stored for each code. codebook: float32 [P, levels] or None. scale_bits: as QuantizedTensor has it.
    free_scales: whether any float may be a scale. group_size: the only one that there is, -1 for a row, None where any
    will do."""

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
        """Parameters for weights [..., n], float32; importance: [..., n] or None, a factor of squared errors;
        dtype: in which scales are stored."""
        ...

    def encode(self, weight: torch.Tensor, params: QParams) -> torch.Tensor:
        """uint8 codes of the nearest levels, for weights [..., n]."""
        ...

    def decode(self, codes: torch.Tensor, params: QParams) -> torch.Tensor:
        """float32 [..., n]."""
        ...

    def levels_of(self, params: QParams) -> Levels | None:
        """The same for the loops of columns.py, of parameters on the CPU; None where those are not for this grid."""
        ...


@dataclass(frozen=True)
class Integer:
    """Integers of `bits`, with a zero point (asymmetric) or around the middle (symmetric).

    clip: choose the range that has the least squared error instead of the whole range (Frantar et al. 2022 search it
    likewise), then fit the scale to the codes by least squares.
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
            return _least_error(self, weight, importance, self._params(shares * low, shares * high, dtype))
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
    """Integers around the middle with one scale for all weights, the one of least expected squared error over their
    histogram, found on ever finer grids: SLiM-Quant (Mozaffari et al. 2024, arXiv 2410.09615)."""

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
    return [1 - (1 - _LEAST_SHRINK) * i / _SHRINKS for i in range(_SHRINKS + 1)]


def stored(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A positive scale rounded to the type in which it is stored, as float32; 1 where it would be 0."""
    rounded = scale.to(dtype).to(torch.float32)
    return torch.where(rounded > 0, rounded, torch.ones_like(rounded))


def error(grid: Quantizer, weight: torch.Tensor, importance: torch.Tensor | None, params: QParams) -> torch.Tensor:
    """Squared error of each group [...]."""
    difference = (grid.decode(grid.encode(weight, params), params) - weight).square_()
    return (difference if importance is None else difference * importance).sum(-1)


def _least_error(grid: Quantizer, weight: torch.Tensor, importance: torch.Tensor | None, tried: QParams) -> QParams:
    """Of each group's candidates, parameters [T, ...], the ones with the least error."""
    if weight.device.type == "cpu" and weight.ndim == 3 and (levels := grid.levels_of(tried)):
        best = columns.search(weight, importance, levels)
    else:
        best = torch.stack([error(grid, weight, importance, tried[t,]) for t in range(tried.scale.shape[1])]).argmin(0)
    scale = tried.scale.gather(1, best.expand(len(tried.scale), 1, *best.shape))[:, 0]
    return QParams(scale, None if tried.zero is None else tried.zero.gather(0, best[None])[0], tried.factor)


def _stacked(params: Sequence[QParams]) -> QParams:
    """Parameters without zero points as candidates."""
    return QParams(torch.stack([one.scale for one in params], 1), None, params[0].factor)


_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_TRITS = (-1.0, 0.0, 1.0)


@dataclass(frozen=True)
class Codebook:
    """Levels from a table times a scale. With two planes a weight is the sum of a level of each, with its own scale.

    planes: [P][levels]. bits: stored for each code. scale_kind: "float"; "power" (of two, as MXFP4 has it);
    "float8" (e4m3 below a global scale, as NVFP4 has it). group_size: the format's own, None where any will do.
    """

    planes: tuple[tuple[float, ...], ...]
    bits: int
    scale_kind: str = "float"
    group_size: int | None = None

    @property
    def codebook(self) -> torch.Tensor:
        return torch.tensor(self.planes)

    @property
    def scale_bits(self) -> int | None:
        return None if self.scale_kind == "float" else 8

    @property
    def free_scales(self) -> bool:
        return self.scale_kind == "float"

    def fit(self, weight: torch.Tensor, importance: torch.Tensor | None, dtype: torch.dtype) -> QParams:
        weight, importance = weight.float(), None if importance is None else importance.float()
        largest = weight.abs().amax(-1)
        top = max(self.planes[0])
        if self.scale_kind != "float":
            factor = narrow.factor_of(largest / top) if self.scale_kind == "float8" else None
            shares = (1.0, 2.0, 0.5) if factor is None else torch.linspace(1.5, 0.5, 21).tolist()
            scales = [narrow.rounded(self.scale_kind, s * largest / top, factor)[None] for s in shares]
            choices = _stacked([QParams(scale, None, factor) for scale in scales])
            return _least_error(self, weight, importance, choices)
        if len(self.planes) == 1:
            least = 0.3 if len(self.planes[0]) == 3 else _LEAST_SHRINK
            shrinks = torch.linspace(1.0, least, _SHRINKS).tolist()
            choices = _stacked([QParams(stored(s * largest / top, dtype)[None]) for s in shrinks])
            return self._refit(weight, importance, _least_error(self, weight, importance, choices), dtype)
        spread = weight.abs().mean(-1)
        tried = [
            QParams(torch.stack([stored(a * spread, dtype), stored(b * spread, dtype)]))
            for a, b in ((1.2, 0.5), (1.5, 0.6), (1.8, 0.8), (1.5, 0.4), (2.2, 0.9))
        ]
        fitted = [self._refit(weight, importance, params, dtype) for params in tried]
        return _least_error(self, weight, importance, _stacked(fitted))

    def _refit(
        self, weight: torch.Tensor, importance: torch.Tensor | None, params: QParams, dtype: torch.dtype
    ) -> QParams:
        """Least squares for the scales given the codes, and back, a few times."""
        table = self.codebook.to(weight.device)
        weighted = torch.ones_like(weight) if importance is None else importance.expand_as(weight)
        for _ in range(_REFITS):
            levels = table[:, self.encode(weight, params).long()]  # [P, ..., n]
            gram = torch.einsum("p...n,q...n,...n->...pq", levels, levels, weighted).double()
            right = torch.einsum("p...n,...n,...n->...p", levels, weight, weighted).double()
            ridge = 1e-6 * gram.diagonal(dim1=-2, dim2=-1).mean(-1) + 1e-30
            gram = gram + ridge[..., None, None] * torch.eye(len(table), dtype=gram.dtype, device=gram.device)
            scale = torch.linalg.solve(gram, right).abs().movedim(-1, 0).float()
            params = _least_error(self, weight, importance, _stacked([params, QParams(stored(scale, dtype))]))
        return params

    def encode(self, weight: torch.Tensor, params: QParams) -> torch.Tensor:
        if len(self.planes) == 1:
            _, codes, borders = rising(self.planes[0], weight.device)
            scaled = weight / params.scale[0, ..., None].clamp(min=_TINY)
            return codes[torch.bucketize(scaled.to(borders.dtype), borders)]
        levels = (params.scale[..., None] * self._table(params)).sum(0)  # [..., levels]
        best = torch.full_like(weight, torch.inf)
        nearest = torch.zeros(weight.shape, dtype=torch.uint8, device=weight.device)
        for code in range(levels.shape[-1]):
            distance = (weight - levels[..., code, None]).abs()
            better = distance < best
            nearest.masked_fill_(better, code)
            best = torch.minimum(best, distance)
        return nearest

    def decode(self, codes: torch.Tensor, params: QParams) -> torch.Tensor:
        if len(self.planes) == 1:
            return _tensor(self.planes, codes.device)[0][codes.int()] * params.scale[0, ..., None]
        levels = (params.scale[..., None] * self._table(params)).sum(0)
        return levels.expand(*codes.shape[:-1], -1).gather(-1, codes.long())

    def levels_of(self, params: QParams) -> Levels | None:
        if len(self.planes) > 1:
            return None
        return Levels.table(rising(self.planes[0], params.scale.device), params.scale[0])

    def _table(self, params: QParams) -> torch.Tensor:
        shape = (len(self.planes), *(1,) * (params.scale.ndim - 1), -1)
        return _tensor(self.planes, params.scale.device).reshape(shape)


@cache
@torch.inference_mode(False)  # others may ask for gradients
def _tensor(planes: tuple[tuple[float, ...], ...], device: torch.device) -> torch.Tensor:
    """planes as float32 [P, levels]."""
    return torch.tensor(planes, device=device)


@cache
@torch.inference_mode(False)
def rising(plane: tuple[float, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A plane's levels from the least to the largest, float32 [n], their codes, uint8 [n], and what lies midway between
    two of them, float32 [n - 1]."""
    levels = sorted({level + 0.0 for level in plane})
    codes = torch.tensor(list(map(plane.index, levels)), dtype=torch.uint8, device=device)
    borders = torch.tensor([(a + b) / 2 for a, b in pairwise(levels)], device=device)
    return torch.tensor(levels, device=device), codes, borders


@dataclass(frozen=True)
class NestedCodebook(Codebook):
    """A codebook whose scales are stored in two levels (nested.py), found as floats first. `dtype` counts for
    nothing."""

    @property
    def free_scales(self) -> bool:
        return False

    def fit(self, weight: torch.Tensor, importance: torch.Tensor | None, dtype: torch.dtype) -> QParams:
        return self.nest(super().fit(weight, importance, torch.float32))

    def nest(self, params: QParams) -> QParams:
        """The same with scales that can be stored."""
        nested = Nested.of(params.scale[0])
        return QParams(nested.scales()[None], nested=nested)


CODEBOOKS = {
    "nf4": Codebook((_NF4,), 4),  # Dettmers et al. 2023
    "nf4-nested": NestedCodebook((_NF4,), 4, group_size=64),  # the same, as bitsandbytes stores it
    "mxfp4": Codebook((_E2M1,), 4, "power", 32),  # OCP Microscaling Formats 1.0
    "nvfp4": Codebook((_E2M1,), 4, "float8", 16),
    "ternary": Codebook((_TRITS,), 2),
    "ternary-planes": Codebook(  # PTQTP (2025): two planes of trits
        (tuple(a for a in _TRITS for _ in _TRITS), tuple(b for _ in _TRITS for b in _TRITS)), 4
    ),
}


def make(name: str, bits: int, symmetric: bool, clip: bool) -> Quantizer:
    """A grid by name, "integer", "whole" or a codebook's. Raises SqueezeError for a name or number of bits that is
    unknown."""
    if name in ("integer", "whole"):
        if not 2 <= bits <= 8:
            raise SqueezeError(f"{bits} bits: an integer grid has 2 to 8")
        if name == "whole" and not symmetric:
            raise SqueezeError("the grid whole is symmetric")
        return Integer(bits, symmetric, clip) if name == "integer" else PerTensor(bits)
    if name not in CODEBOOKS:
        raise SqueezeError(f"grid {name!r} is unknown: choose from {', '.join(['integer', 'whole', *CODEBOOKS])}")
    return CODEBOOKS[name]
