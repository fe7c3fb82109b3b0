"""Grids whose levels come from a table: codebooks of 6 bits and less (NF4, MXFP4, NVFP4, FP6, ternary), and FP8.

Integers are grid.py's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import ClassVar

import torch

from squeeze.errors import SqueezeError
from squeeze.quant.columns import Levels
from squeeze.quant.grid import (
    LEAST_SHRINK,
    ROWS,
    SHRINKS,
    Integer,
    PerTensor,
    QParams,
    Quantizer,
    error,
    least_error,
    stored,
)
from squeeze.quant.scales import Nested, round_scale, shared_factor

__all__ = ["CODEBOOKS", "FLOATS", "Codebook", "Float8", "NestedCodebook", "make", "rising"]

_REFITS = 3
_TINY = 2.0**-126


def _stacked(params: Sequence[QParams]) -> QParams:
    """Stack parameters without zero points as candidates."""
    return QParams(torch.stack([one.scale for one in params], 1), None, params[0].factor)


_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_TRITS = (-1.0, 0.0, 1.0)


def _small_float(exponent_bits: int, mantissa_bits: int) -> tuple[float, ...]:
    """Return the values of a float format by their codes: sign, exponent, mantissa. It has no infinities and NaNs."""
    bias, steps = (1 << exponent_bits - 1) - 1, 1 << mantissa_bits
    positive = [
        (mantissa + (steps if exponent else 0)) / steps * 2.0 ** (max(exponent, 1) - bias)
        for exponent in range(1 << exponent_bits)
        for mantissa in range(steps)
    ]
    return (*positive, *(-value for value in positive))


@dataclass(frozen=True)
class Codebook:
    """Levels from a table, times a scale. With two planes a weight is the sum of a level of each, with its own scale.

    Attributes:
        planes: levels [P][levels].
        bits: stored for each code.
        scale_kind: "float", "power" (of two, as in MXFP4) or "float8" (e4m3 with a scale of the tensor, as in NVFP4).
        group_size: the only group size of the format; None if any is possible.
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
            factor = shared_factor(largest / top) if self.scale_kind == "float8" else None
            shares = (1.0, 2.0, 0.5) if factor is None else torch.linspace(1.5, 0.5, 21).tolist()
            scales = [round_scale(self.scale_kind, s * largest / top, factor)[None] for s in shares]
            choices = _stacked([QParams(scale, None, factor) for scale in scales])
            return least_error(self, weight, importance, choices)
        if len(self.planes) == 1:
            least = 0.3 if len(self.planes[0]) == 3 else LEAST_SHRINK
            shrinks = torch.linspace(1.0, least, SHRINKS).tolist()
            choices = _stacked([QParams(stored(s * largest / top, dtype)[None]) for s in shrinks])
            return self._refit(weight, importance, least_error(self, weight, importance, choices), dtype)
        spread = weight.abs().mean(-1)
        tried = [
            QParams(torch.stack([stored(a * spread, dtype), stored(b * spread, dtype)]))
            for a, b in ((1.2, 0.5), (1.5, 0.6), (1.8, 0.8), (1.5, 0.4), (2.2, 0.9))
        ]
        fitted = [self._refit(weight, importance, params, dtype) for params in tried]
        return least_error(self, weight, importance, _stacked(fitted))

    def _refit(
        self, weight: torch.Tensor, importance: torch.Tensor | None, params: QParams, dtype: torch.dtype
    ) -> QParams:
        """Alternate least squares for the scales and nearest codes, a few times."""
        table = self.codebook.to(weight.device)
        weighted = torch.ones_like(weight) if importance is None else importance.expand_as(weight)
        for _ in range(_REFITS):
            levels = table[:, self.encode(weight, params).long()]  # [P, ..., n]
            gram = torch.einsum("p...n,q...n,...n->...pq", levels, levels, weighted).double()
            right = torch.einsum("p...n,...n,...n->...p", levels, weight, weighted).double()
            ridge = 1e-6 * gram.diagonal(dim1=-2, dim2=-1).mean(-1) + 1e-30
            gram = gram + ridge[..., None, None] * torch.eye(len(table), dtype=gram.dtype, device=gram.device)
            scale = torch.linalg.solve(gram, right).abs().movedim(-1, 0).float()
            params = least_error(self, weight, importance, _stacked([params, QParams(stored(scale, dtype))]))
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
    """Return planes as float32 [P, levels]."""
    return torch.tensor(planes, device=device)


@cache
@torch.inference_mode(False)
def rising(plane: tuple[float, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a plane's levels in ascending order, float32 [n], their codes, uint8 [n], and their midpoints, float32 [n
    - 1]."""
    levels = sorted({level + 0.0 for level in plane})
    codes = torch.tensor(list(map(plane.index, levels)), dtype=torch.uint8, device=device)
    borders = torch.tensor([(a + b) / 2 for a, b in pairwise(levels)], device=device)
    return torch.tensor(levels, device=device), codes, borders


@dataclass(frozen=True)
class NestedCodebook(Codebook):
    """A codebook whose scales are quantised, too (scales.py). They are found as floats first; `dtype` is ignored."""

    @property
    def free_scales(self) -> bool:
        return False

    def fit(self, weight: torch.Tensor, importance: torch.Tensor | None, dtype: torch.dtype) -> QParams:
        return self.nest(super().fit(weight, importance, torch.float32))

    def nest(self, params: QParams) -> QParams:
        """Return parameters whose scales are quantised."""
        nested = Nested.of(params.scale[0])
        return QParams(nested.scales()[None], nested=nested)


CODEBOOKS = {
    "nf4": Codebook((_NF4,), 4),  # Dettmers et al. 2023
    "nf4-nested": NestedCodebook((_NF4,), 4, group_size=64),  # the same, as bitsandbytes stores it
    "nf4-fp8": Codebook((_NF4,), 4, "float8"),  # the same, with the scales of NVFP4
    "mxfp4": Codebook((_E2M1,), 4, "power", 32),  # OCP Microscaling Formats 1.0
    "nvfp4": Codebook((_E2M1,), 4, "float8", 16),
    "fp6-e3m2": Codebook((_small_float(3, 2),), 6),  # OCP Microscaling Formats 1.0, with a float as scale
    "fp6-e2m3": Codebook((_small_float(2, 3),), 6),
    "ternary": Codebook((_TRITS,), 2),
    "ternary-planes": Codebook(  # PTQTP (2025): two planes of trits
        (tuple(a for a in _TRITS for _ in _TRITS), tuple(b for _ in _TRITS for b in _TRITS)), 4
    ),
}


def make(name: str, bits: int, symmetric: bool, clip: bool) -> Quantizer:
    """Return a grid by name: "integer", "whole" or a codebook's.

    Args:
        name: of the grid.
        bits: 2 to 8, for integers.
        symmetric: no zero points, for integers.
        clip: search the range with the least squared error, for integers.

    Raises:
        SqueezeError: the name or the number of bits is invalid.
    """
    if name in ("integer", "whole"):
        if not 2 <= bits <= 8:
            raise SqueezeError(f"an integer grid has 2 to 8 bits, got {bits}")
        if name == "whole" and not symmetric:
            raise SqueezeError("the grid `whole` has no zero points: leave out `asymmetric`")
        return Integer(bits, symmetric, clip) if name == "integer" else PerTensor(bits)
    if name not in CODEBOOKS:
        raise SqueezeError(f"unknown grid {name!r}: choose from {', '.join(['integer', 'whole', *CODEBOOKS, 'fp8'])}")
    return CODEBOOKS[name]


_E4M3 = torch.float8_e4m3fn
_LARGEST_E4M3 = 448.0
_SCALES_TRIED = 17  # from the scale that makes the largest weight the largest level
_WIDEST = 4.0  # the largest scale tried, relative to that one


@dataclass(frozen=True)
class Float8:
    """FP8 weights (e4m3, without infinities) times a scale: of a row or group, of a block of rows, or of the matrix.

    Steps of the levels grow with their magnitude, so the largest weight need not be the largest level. A scale only
    decides where levels are between two powers of two (except for the smallest weights); it is searched over such a
    range. Codes are the bits of the floats.

    Attributes:
        group_size: inputs that share a scale; None if any number is possible.
        rows: outputs that share a scale, -1 for all.
    """

    group_size: int | None = None
    rows: int = 1
    bits: ClassVar[int] = 8
    scale_bits: ClassVar[int | None] = None

    @property
    def free_scales(self) -> bool:
        return self.rows == 1

    @property
    def codebook(self) -> torch.Tensor:
        return torch.arange(256, dtype=torch.uint8).view(_E4M3).to(torch.float32)[None]

    def fit(self, weight: torch.Tensor, importance: torch.Tensor | None, dtype: torch.dtype) -> QParams:
        whole = self._shared(weight.abs().amax(-1), torch.amax) / _LARGEST_E4M3
        best, least = stored(whole, dtype), torch.full_like(whole, torch.inf)
        for share in torch.logspace(0, 1, _SCALES_TRIED, _WIDEST).tolist():
            scale = stored(whole * share, dtype)
            errors = self._shared(self._errors(weight, importance, scale), torch.sum)
            best = torch.where(errors < least, scale, best)
            least = torch.minimum(errors, least)
        return QParams(best[None])

    def _errors(self, weight: torch.Tensor, importance: torch.Tensor | None, scale: torch.Tensor) -> torch.Tensor:
        """Return the squared error of each group, a few rows at a time."""
        rows = zip(torch.split(weight, ROWS), torch.split(scale, ROWS), strict=True)
        return torch.cat([error(self, part, importance, QParams(own[None])) for part, own in rows])

    def _shared(self, values: torch.Tensor, reduced: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Reduce values [O, G] over the rows that share a scale, and give each row the result."""
        size = len(values) if self.rows == -1 else self.rows
        if size <= 1:
            return values
        parts = [reduced(part, 0, keepdim=True).expand_as(part) for part in torch.split(values, size)]
        return torch.cat(parts)

    def encode(self, weight: torch.Tensor, params: QParams) -> torch.Tensor:
        scaled = weight.to(torch.float32) / params.scale[0][..., None]
        return scaled.clamp(-_LARGEST_E4M3, _LARGEST_E4M3).to(_E4M3).view(torch.uint8)

    def decode(self, codes: torch.Tensor, params: QParams) -> torch.Tensor:
        return codes.contiguous().view(_E4M3).to(torch.float32) * params.scale[0][..., None]

    def levels_of(self, params: QParams) -> Levels:
        plane = tuple(self.codebook[0].nan_to_num(0).tolist())
        return Levels.table(rising(plane, params.scale.device), params.scale[0])


FLOATS = {"fp8": Float8(), "fp8-block": Float8(128, 128), "fp8-tensor": Float8(-1, -1)}
