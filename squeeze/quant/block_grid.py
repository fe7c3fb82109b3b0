"""The grids of GGUF files: blocks of 32 or 256 weights, whose scales and offsets are rounded as the format stores them.

In a block of a k-quant the scales of its groups are small integers times one half-precision number, and so are the
offsets. The layout of blocks in bytes is in blocks.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import torch

from squeeze.errors import SqueezeError
from squeeze.quant.columns import Levels
from squeeze.quant.grid import ROWS, QParams
from squeeze.quant.scales import round_scale

__all__ = ["BlockGrid", "BlockParams", "half", "inverse", "moved"]

_SHRINKS = 12  # number of ranges tried, from the widest down
_WIDEST = 1.06  # widest range tried, relative to that of the weights
_ROUNDS = 2  # of least squares for scale and offset
_RIDGE = 1e-6
_TINY = 2.0**-120
_LEAST = ((4, 0.4), (8, 0.55), (16, 0.7), (64, 0.85), (256, 0.97))  # number of levels, narrowest range tried


@dataclass(frozen=True)
class BlockParams(QParams):
    """Scales and offsets of groups [...] in blocks.

    Attributes:
        scale: float32 [1, ...], the factor of levels.
        offset: float32 [...], added to scaled levels; None without offsets.
        factors: float32 [K, ..., B], the half-precision number of each block: of its scales, and with K = 2 of its
            offsets.
        steps: float32 [K, ..., G], the integers that factors are multiplied by; None if a group is a block.
    """

    offset: torch.Tensor | None = None
    factors: torch.Tensor | None = None
    steps: torch.Tensor | None = None

    def __getitem__(self, index: tuple[int | slice, ...]) -> "BlockParams":
        offset = None if self.offset is None else self.offset[index]
        return BlockParams(self.scale[(slice(None), *index)], None, None, offset)


@dataclass(frozen=True)
class BlockGrid:
    """One quantisation type of GGUF.

    Attributes:
        levels: values of the codes 0, 1, ..., ascending.
        bits: of a code.
        size: weights that share a scale.
        block_bytes: bytes of a block.
        groups: groups in a block.
        offsets: whether groups have an offset.
        steps: the least and largest integer that a block's factor is multiplied by to give a scale; None if a group is
            a block. Offsets are 0 to steps[1] times their factor, and subtracted.
        powers: whether factors are powers of two; otherwise half-precision numbers.
    """

    name: str
    levels: tuple[float, ...]
    bits: int
    size: int
    block_bytes: int
    groups: int = 1
    offsets: bool = False
    steps: tuple[int, int] | None = None
    powers: bool = False
    scale_bits: ClassVar[int | None] = None
    free_scales: ClassVar[bool] = False

    @property
    def group_size(self) -> int:
        return self.size

    @property
    def width(self) -> int:
        """The number of weights in a block."""
        return self.size * self.groups

    @cached_property
    def codebook(self) -> torch.Tensor:
        return torch.tensor([self.levels])

    @cached_property
    def _even(self) -> bool:
        """The levels are successive integers."""
        return all(b - a == 1 for a, b in pairwise(self.levels))

    def check(self, inputs: int) -> None:
        """Raise SqueezeError if rows with this number of inputs are not whole blocks."""
        if inputs % self.width:
            raise SqueezeError(f"{self.name} needs a multiple of {self.width} inputs, got {inputs}")

    def fit(self, weight: torch.Tensor, importance: torch.Tensor | None, dtype: torch.dtype) -> BlockParams:
        """Fit the parameters of groups [..., G, n] that are whole blocks; see Quantizer.fit. `dtype` is ignored."""
        self.check(weight.shape[-1] * weight.shape[-2])
        pieces = [self._fit(rows, importance) for rows in torch.split(weight.float(), ROWS)]
        return self.params(
            torch.cat([factors for factors, _ in pieces], 1),
            None if self.steps is None else torch.cat([steps for _, steps in pieces if steps is not None], 1),
        )

    def _fit(self, weight: torch.Tensor, importance: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Fit factors [K, ..., B] and steps [K, ..., G] of some rows."""
        weights = torch.ones_like(weight) if importance is None else importance.float().expand_as(weight)
        if self.powers:
            return self._power(weight, weights)[None], None
        found = self._ranges(weight, weights) if self.offsets else self._scales(weight, weights, self.levels)[None]
        if self.steps is None:
            return half(found), None
        level = self._level(self._nearest(weight, found[0], found[1] if self.offsets else None))
        curvature = [(level.square() * weights).sum(-1), weights.sum(-1)]
        low, high = self.steps
        factors, steps = [], []
        for part, values in enumerate((found[0], -found[1]) if self.offsets else (found[0],)):
            blocks, bends = (of_groups.unflatten(-1, (-1, self.groups)) for of_groups in (values, curvature[part]))
            least = 0 if part else low
            factor = half(self._scales(blocks, bends + 1e-30, tuple(map(float, range(least, high + 1)))))
            steps.append((blocks * inverse(factor)[..., None]).round().clamp(least, high).flatten(-2))
            factors.append(factor)
        return torch.stack(factors), torch.stack(steps)

    def _power(self, values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the power of two [...] with the least weighted squared error for values [..., n].

        Two are tried: the largest one for which the largest value exceeds all levels, and the next.
        """
        largest = (values.abs().amax(-1) / self.levels[-1]).clamp(min=2.0**-120)
        tried = [torch.exp2(torch.log2(largest).floor() + step) for step in (0, 1)]
        first, second = (
            (weights * (values - scale[..., None] * self._level(self._nearest(values, scale, None))).square()).sum(-1)
            for scale in tried
        )
        return torch.where(first < second, tried[0], tried[1])

    def stored(self, factors: torch.Tensor) -> torch.Tensor:
        """Round factors of blocks to the nearest values that the type can store."""
        return round_scale("power", factors, None) if self.powers else half(factors)

    def _scales(self, values: torch.Tensor, weights: torch.Tensor, levels: tuple[float, ...]) -> torch.Tensor:
        """Return the scale [...], of either sign, with the least weighted squared error for values [..., n] on these
        levels.

        For each range tried it is the least squares fit to the levels that the range gives.
        """
        extreme = values.gather(-1, values.abs().argmax(-1, keepdim=True))[..., 0]
        weighted = weights * values
        best, most = torch.zeros_like(extreme), torch.zeros_like(extreme)
        for end in {levels[0], levels[-1]} - {0.0}:
            for share in _shares(len(levels)):
                level = _rounded(values * inverse(extreme * (share / end))[..., None], levels)
                match, size = (weighted * level).sum(-1), (weights * level.square_()).sum(-1)
                scale = match * inverse(size)
                gain = match * scale  # how far the error falls from that of zeros
                best = torch.where(gain > most, scale, best)
                most = torch.maximum(gain, most)
        return best

    def _ranges(self, values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return scale and offset [2, ...] with the least weighted squared error for values [..., n].

        Offsets that are stored as steps are at most 0.
        """
        low, high = values.amin(-1), values.amax(-1)
        if self.steps:
            low, high = low.clamp(max=0), high.clamp(min=0)
        weighted = weights * values
        total, sum_v = weights.sum(-1), weighted.sum(-1)
        best = torch.stack([torch.zeros_like(low), sum_v * inverse(total)])
        if self.steps:
            best[1].clamp_(max=0)
        most = best[1] * sum_v
        for share in _shares(len(self.levels)):
            offset = (low + high) / 2 * (1 - share) + share * low
            scale = share * (high - low) / self.levels[-1]
            for _ in range(_ROUNDS):
                level = _rounded((values - offset[..., None]) * inverse(scale)[..., None], self.levels)
                sum_l, sum_lv = (weights * level).sum(-1), (weighted * level).sum(-1)
                sum_ll = (weights * level.square_()).sum(-1)
                scale = (total * sum_lv - sum_l * sum_v) * inverse(total * sum_ll - sum_l.square())
                offset = (sum_v - scale * sum_l) * inverse(total)
                if self.steps:
                    scale = torch.where(offset > 0, sum_lv * inverse(sum_ll), scale)
                    offset.clamp_(max=0)
                gain = scale * sum_lv + offset * sum_v
                best = torch.where(gain > most, torch.stack([scale, offset]), best)
                most = torch.maximum(gain, most)
        return best

    def params(self, factors: torch.Tensor, steps: torch.Tensor | None) -> BlockParams:
        """Return the scales and offsets of groups from the stored factors and steps."""
        whole = factors if steps is None else factors.repeat_interleave(self.groups, -1) * steps
        if not self.offsets:
            return BlockParams(whole[:1], None, None, None, factors, steps)
        return BlockParams(whole[:1], None, None, whole[1] if steps is None else -whole[1], factors, steps)

    def encode(self, weight: torch.Tensor, params: QParams) -> torch.Tensor:
        return self._nearest(weight, params.scale[0], _offset(params))

    def decode(self, codes: torch.Tensor, params: QParams) -> torch.Tensor:
        scaled, offset = params.scale[0][..., None] * self._level(codes), _offset(params)
        return scaled if offset is None else scaled + offset[..., None]

    def levels_of(self, params: QParams) -> Levels:
        scale, offset = params.scale[0], _offset(params)
        if self._even:
            return Levels.integers(len(self.levels), scale, -self.levels[0], offset, inverse(scale))
        levels = torch.tensor(self.levels)
        table = levels, torch.arange(len(levels)), (levels[1:] + levels[:-1]) / 2
        return Levels.table(table, scale, offset, inverse(scale))

    def _nearest(self, weight: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None) -> torch.Tensor:
        values = (weight if offset is None else weight - offset[..., None]) * inverse(scale)[..., None]
        if self._even:
            return (values.round() - self.levels[0]).clamp_(0, len(self.levels) - 1).to(torch.uint8)
        borders = torch.tensor([(a + b) / 2 for a, b in pairwise(self.levels)], device=weight.device)
        return torch.bucketize(values, borders).to(torch.uint8)

    def _level(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float() + self.levels[0] if self._even else self.codebook[0].to(codes.device)[codes.long()]

    def refit(
        self, weight: torch.Tensor, hessian: torch.Tensor, codes: torch.Tensor, params: BlockParams
    ) -> BlockParams:
        """Improve scales and offsets for given codes: group by group, then block by block.

        Each is rounded to a value that the format stores, with the others fixed.

        Args:
            weight: the weight [O, I].
            hessian: the Hessian [I, I].
            codes: uint8 [O, I].
            params: the parameters before.
        """
        assert params.factors is not None
        steps = params.steps
        weight, hessian, level = weight.float(), hessian.float(), self._level(codes)
        values = self.decode(codes.unflatten(1, (-1, self.size)), params).flatten(1)
        pull = (weight - values) @ hessian  # [O, I], half the negative gradient
        factors, ones = params.factors.clone(), torch.ones_like(level)
        signs = torch.tensor([1.0, -1.0], device=weight.device)[: len(factors), None, None]  # offsets are taken away
        if steps is not None:
            steps = steps.clone()
            for group in range(steps.shape[-1]):
                block, span = group // self.groups, slice(group * self.size, (group + 1) * self.size)
                parts = (
                    factors[:, :, block, None] * signs * torch.stack([level[:, span], ones[:, span]])[: len(factors)]
                )
                steps[:, :, group] = moved(steps[:, :, group], parts, pull, hessian, span, self._whole)
        for block in range(factors.shape[-1]):
            span = slice(block * self.width, (block + 1) * self.width)
            parts = torch.stack([level[:, span], ones[:, span]])[: len(factors)]
            if steps is not None:
                mine = steps[:, :, block * self.groups : (block + 1) * self.groups].repeat_interleave(self.size, -1)
                parts = parts * mine * signs
            factors[:, :, block] = moved(factors[:, :, block], parts, pull, hessian, span, self.stored)
        return self.params(factors, steps)

    def _whole(self, values: torch.Tensor) -> torch.Tensor:
        assert self.steps
        low, high = self.steps
        return torch.cat([values[:1].round().clamp(low, high), values[1:].round().clamp(0, high)])


def moved(
    before: torch.Tensor,
    parts: torch.Tensor,
    pull: torch.Tensor,
    hessian: torch.Tensor,
    span: slice,
    rounded: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Move numbers to where the error is least and round them there, in the rows where that is better.

    The weights in `span` are the sum of `parts` times the numbers. `pull` is updated in place.

    Args:
        before: numbers [K, O].
        parts: [K, O, n].
        pull: half the negative gradient of the error, (W - Q) H [O, I].
        hessian: H [I, I].
        span: the n columns.
        rounded: rounds numbers [K, O] to those that can be stored.
    """
    bent = parts @ hessian[span, span]
    right, curve = (parts * pull[:, span]).sum(2), (bent * parts).sum(2)
    alone = rounded(before + right * inverse(curve))
    tried, cross = [alone], torch.zeros_like(curve[0])
    if len(before) == 2:
        cross = (bent[0] * parts[1]).sum(1)
        bend = curve[0] * curve[1] * (1 + _RIDGE) - cross.square()
        ideal = before[0] + (right[0] * curve[1] - right[1] * cross) * inverse(bend)
        first = rounded(torch.stack([ideal, before[1]]))[0]
        second = before[1] + (right[1] - cross * (first - before[0])) * inverse(curve[1])  # with the first as rounded
        both = torch.stack([first, rounded(torch.stack([before[0], second]))[1]])
        tried = [both, torch.stack([alone[0], before[1]]), torch.stack([before[0], alone[1]])]
    best, most = before, torch.zeros_like(right[0])
    for after in tried:
        move = after - before
        gain = (2 * move * right - curve * move.square()).sum(0) - 2 * cross * move[0] * move[-1]
        best, most = torch.where(gain > most, after, best), torch.maximum(gain, most)
    pull -= ((best - before)[:, :, None] * parts).sum(0) @ hessian[span]
    return best


def _offset(params: QParams) -> torch.Tensor | None:
    return params.offset if isinstance(params, BlockParams) else None


def half(values: torch.Tensor) -> torch.Tensor:
    """Round to finite half-precision numbers."""
    return values.clamp(-65504, 65504).to(torch.float16).float()


def inverse(values: torch.Tensor) -> torch.Tensor:
    """Return 1 / values, and 0 if that overflows."""
    return torch.where(values.abs() < _TINY, 0, 1 / values)


def _shares(levels: int) -> list[float]:
    """Return the ranges to be tried, as shares of the whole range."""
    least = next(share for most, share in _LEAST if levels <= most)
    return torch.linspace(_WIDEST if levels < 64 else 1.0, least, _SHRINKS).tolist()


def _rounded(values: torch.Tensor, levels: tuple[float, ...]) -> torch.Tensor:
    """Round to the nearest level."""
    if levels[-1] - levels[0] == len(levels) - 1:
        return values.round_().clamp_(levels[0], levels[-1])
    table = torch.tensor(levels, device=values.device)
    return table[torch.bucketize(values, (table[1:] + table[:-1]) / 2)]
