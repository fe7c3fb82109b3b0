"""Rounding on a CPU, compiled: GPTQ's loops over columns, and the search for scales.

gptq.py, refine.py and grid.py do the same with operations on a whole column, or on all weights, for other devices. Rows
are independent, so each goes through a block of columns on its own, in the nearest cache.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch

from squeeze.numerics.jit import inline, lossy_kernel
from squeeze.system.parallel import parallel_ranges

__all__ = ["Levels", "descend", "search", "sweep"]

_TINY = 2.0**-126


class Levels(NamedTuple):
    """The values that weights can take, as arrays for compiled loops, in place of a grid and its parameters.

    With t = (w - offset) * inverse, a weight w becomes the level nearest to t, times the scale, plus the offset. Levels
    that are successive integers have no borders: the code is round(t) + origin, the level is code - origin.
    """

    scale: np.ndarray  # float32 [..., O, G], as are inverse, offset and origin
    inverse: np.ndarray
    offset: np.ndarray
    origin: np.ndarray
    levels: np.ndarray  # float32 [n], ascending
    codes: np.ndarray  # uint8 [n]: those of the levels
    borders: np.ndarray  # float32 [n - 1]: midpoints of levels; [0] if levels are successive integers

    @classmethod
    def integers(
        cls,
        count: int,
        scale: torch.Tensor,
        origin: torch.Tensor | float,
        offset: torch.Tensor | None = None,
        inverse: torch.Tensor | None = None,
    ) -> Self:
        """Return the levels of `count` successive integers; the code 0 is the level -origin."""
        whole = torch.arange(count)
        return cls._of((whole, whole, torch.empty(0)), scale, origin, offset, inverse)

    @classmethod
    def table(
        cls,
        table: Sequence[torch.Tensor],
        scale: torch.Tensor,
        offset: torch.Tensor | None = None,
        inverse: torch.Tensor | None = None,
    ) -> Self:
        """Return levels from a table (levels, their codes, midpoints)."""
        return cls._of(table, scale, 0, offset, inverse)

    @classmethod
    def _of(
        cls,
        table: Sequence[torch.Tensor],
        scale: torch.Tensor,
        origin: torch.Tensor | float,
        offset: torch.Tensor | None,
        inverse: torch.Tensor | None,
    ) -> Self:
        def each(value: torch.Tensor | float) -> np.ndarray:
            return torch.as_tensor(value, dtype=torch.float32).expand_as(scale).detach().contiguous().numpy()

        inverse = 1 / scale.clamp(min=_TINY) if inverse is None else inverse
        levels, codes, borders = table
        arrays = levels.float().numpy(), codes.to(torch.uint8).numpy(), borders.numpy()
        return cls(each(scale), each(inverse), each(0 if offset is None else offset), each(origin), *arrays)


_BLOCK = 128  # columns between two updates of all later columns
_LEAST_WORK = 1 << 16  # weights to round that are worth a thread
_ALL = np.empty((0, 0), np.bool_)  # the mask of all weights


def sweep(
    weight: torch.Tensor, upper: torch.Tensor, order: torch.Tensor, stop: int, block: int, size: int, levels: Levels
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round the first `stop` columns of an order as GPTQ does, and return codes and compensated weights.

    Args:
        weight: W [O, I].
        upper: the factor of the inverse Hessian [I, I], in the same order.
        order: column numbers [I].
        stop: number of columns to round.
        block: columns between two updates of all later columns.
        size: inputs of a group.
        levels: of all groups.

    Returns:
        Codes [O, I], 0 in other columns, and the weights [O, I] as they were when their column was rounded.
    """
    work, upper = weight[:, order], upper.contiguous()
    codes = torch.zeros(work.shape, dtype=torch.uint8)
    places, groups = order.numpy(), (order // size).numpy()
    for first in range(0, stop, block):
        last = min(first + block, stop)
        errors = work.new_empty((len(work), last - first))
        arrays = work.numpy(), upper.numpy(), codes.numpy(), errors.numpy()
        _by_rows(len(work), last - first, _sweep, (*arrays, places, groups, levels, first, last))
        work[:, last:].addmm_(errors, upper[first:last, last:], alpha=-1)
    return codes, work[:, order.argsort()]


def descend(
    codes: torch.Tensor,
    values: torch.Tensor,
    pull: torch.Tensor,
    hessian: torch.Tensor,
    size: int,
    levels: Levels,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Round every column to the best code with the others fixed, in one pass; see refine.py.

    Args:
        codes: codes [O, I].
        values: the values of the codes [O, I]; overwritten.
        pull: half the negative gradient of the error [O, I]; overwritten.
        hessian: H [I, I].
        size: inputs of a group.
        levels: of all groups.
        mask: bool [O, I], the codes that may change; None for all.
    """
    inputs, codes, hessian = codes.shape[1], codes.clone(memory_format=torch.contiguous_format), hessian.contiguous()
    groups = np.arange(inputs) // size
    kept = _ALL if mask is None else mask.contiguous().numpy()
    for first in range(0, inputs, _BLOCK):
        last = min(first + _BLOCK, inputs)
        moves = pull.new_zeros((len(codes), last - first))
        arrays = values.numpy(), pull.numpy(), hessian.numpy(), codes.numpy(), moves.numpy(), kept
        _by_rows(len(codes), last - first, _descend, (*arrays, groups, levels, first, last))
        pull[:, last:].addmm_(moves, hessian[first:last, last:], alpha=-1)
    return codes


def search(weight: torch.Tensor, importance: torch.Tensor | None, levels: Levels) -> torch.Tensor:
    """Return which of T choices of levels has the least squared error for each group, int64 [O, G]; the first of
    equals.

    Args:
        weight: groups of weights [O, G, n].
        importance: factors of squared errors [O or 1, G, n], or None.
        levels: choices [T, O, G].
    """
    importance = weight.new_ones(1) if importance is None else importance
    shared = importance.expand(len(importance) if importance.ndim == 3 else 1, *weight.shape[1:])
    best = torch.zeros(weight.shape[:2], dtype=torch.int64)
    arrays = weight.detach().contiguous().numpy(), shared.contiguous().numpy()
    _by_rows(len(weight), len(levels.scale) * weight.shape[1:].numel(), _search, (*arrays, levels, best.numpy()))
    return best


def _by_rows(rows: int, work: int, loop, arguments: tuple) -> None:  # type: ignore[no-untyped-def]
    """Run a loop over all rows, in threads. `work` is the number of weights to round in a row."""
    threads = min(torch.get_num_threads(), rows * work // _LEAST_WORK)
    parallel_ranges(lambda first, last: loop(*arguments, first, last), rows, threads)


@inline
def _nearest(weight, scale, inverse, offset, origin, levels):
    """Return the code of the nearest level, and its value."""
    scaled = (weight - offset) * inverse
    if levels.borders.size == 0:
        code = min(max(np.float32(np.rint(scaled)) + origin, np.float32(0)), np.float32(levels.levels.size - 1))
        return np.uint8(code), (code - origin) * scale + offset
    place = 0
    for i in range(levels.borders.size):
        place += levels.borders[i] < scaled
    return levels.codes[place], levels.levels[place] * scale + offset


@inline
def _of_group(levels, at):
    return levels.scale[at], levels.inverse[at], levels.offset[at], levels.origin[at]


@inline
def _take(values, times, others):
    """Subtract `times` times the others."""
    for i in range(values.size):
        values[i] -= times * others[i]


@lossy_kernel(fastmath=False)
def _sweep(work, upper, codes, errors, places, groups, levels, first, last, begin, end):
    for row in range(begin, end):
        for j in range(first, last):
            code, level = _nearest(work[row, j], *_of_group(levels, (row, groups[j])), levels)
            error = (work[row, j] - level) / upper[j, j]
            codes[row, places[j]], errors[row, j - first] = code, error
            _take(work[row, j + 1 : last], error, upper[j, j + 1 : last])


@lossy_kernel(fastmath=False)
def _descend(values, pull, hessian, codes, moves, kept, groups, levels, first, last, begin, end):
    for row in range(begin, end):
        for j in range(first, last):
            if hessian[j, j] <= 0 or (kept.size and not kept[row, j]):
                continue
            wanted = values[row, j] + pull[row, j] / hessian[j, j]
            code, level = _nearest(wanted, *_of_group(levels, (row, groups[j])), levels)
            move = level - values[row, j]
            codes[row, j], moves[row, j - first] = code, move
            _take(pull[row, j + 1 : last], move, hessian[j, j + 1 : last])


@lossy_kernel(fastmath={"reassoc", "contract", "nsz"})
def _search(weight, importance, levels, best, begin, end):
    tried, _, groups = levels.scale.shape
    for row in range(begin, end):
        shared = row if importance.shape[0] > 1 else 0
        for group in range(groups):
            values, weights, least = weight[row, group], importance[shared, group], np.float32(np.inf)
            for t in range(tried):
                scale, inverse, offset, origin = _of_group(levels, (t, row, group))
                total = np.float32(0)
                for i in range(values.size):
                    _, level = _nearest(values[i], scale, inverse, offset, origin, levels)
                    total += weights[i] * (level - values[i]) * (level - values[i])
                if total < least:
                    best[row, group], least = t, total
