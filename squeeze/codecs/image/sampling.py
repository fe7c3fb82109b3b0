"""Planes of colour differences that a JPEG decoder made larger: how it did, and the smaller plane again.

A JPEG image often has half as many columns of colour differences as of luminance, and half as many rows. The decoder of
the Independent JPEG Group gives each pixel three quarters of the nearest value, and one quarter of the one on its other
side, across and down. Others repeat values.
"""

from typing import NamedTuple

import numpy as np

from squeeze.numerics.jit import inline, kernel

__all__ = ["WHOLE", "Sampling", "enlarge", "find_sampling", "reduce", "solve"]

_SWEEPS = 20
_MOST_WRONG = 8  # at most one of so many pixels is another one, in a sample


class Sampling(NamedTuple):
    """A way in which a plane is made from a smaller one.

    Attributes:
        down, across: Rows and columns for each of the smaller plane, 1 or 2.
        top, left: Rows and columns of the first values that the plane does not have, 0 or 1.
        smooth: 1 if values are mixed, 0 if they are repeated.
    """

    down: int
    across: int
    top: int
    left: int
    smooth: int

    def small(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of the smaller plane."""
        return -(-(height + self.top) // self.down), -(-(width + self.left) // self.across)


WHOLE = Sampling(1, 1, 0, 0, 0)
_CHOICES = [
    Sampling(down, across, top, left, smooth)
    for smooth in (1, 0)
    for down, across in ((2, 2), (1, 2), (2, 1))
    for top in range(down)
    for left in range(across)
]


@inline
def _other(place, length):
    """Return the value on the other side of the one that is nearest to a pixel."""
    return min(max((place >> 1) - 1 + 2 * (place & 1), 0), length - 1)


@inline
def _value(small, y, x, how):
    """Return a pixel of the larger plane. The numbers of `how` are those of Sampling."""
    y, x = y + how[2], x + how[3]
    row, column = (y >> 1 if how[0] == 2 else y), (x >> 1 if how[1] == 2 else x)
    value = np.int64(small[row, column])
    if not how[4]:
        return value
    height, width = small.shape
    if how[0] == 2:
        value = 3 * value + small[_other(y, height), column]
    if how[1] == 1:
        return (value + 1 + (y & 1)) >> 2
    other = _other(x, width)
    if how[0] == 1:
        return (3 * value + small[row, other] + 1 + (x & 1)) >> 2
    return (3 * value + 3 * small[row, other] + small[_other(y, height), other] + 8 - (x & 1)) >> 4


@kernel
def _enlarge(small, plane, how):
    """Write the uint8 [height, width] `plane` that is made of a smaller one."""
    for y in range(plane.shape[0]):
        for x in range(plane.shape[1]):
            plane[y, x] = _value(small, y, x, how)


@inline
def _cost(small, plane, is_known, row, column, how):
    """Return the squared errors of the known pixels that a value has a part in."""
    total, more = np.int64(0), how[4]
    top, left = how[0] * row - how[2], how[1] * column - how[3]
    wide, high = (how[1] - 1) * more, (how[0] - 1) * more
    for y in range(max(top - high, 0), min(top + how[0] + high, plane.shape[0])):
        for x in range(max(left - wide, 0), min(left + how[1] + wide, plane.shape[1])):
            if is_known[y, x]:
                error = _value(small, y, x, how) - plane[y, x]
                total += error * error
    return total


@kernel
def _polish(small, plane, is_known, how, sweeps):
    """Change values by one as long as that makes the squared errors of the larger plane smaller."""
    for _ in range(sweeps):
        changed = False
        for row in range(small.shape[0]):
            for column in range(small.shape[1]):
                least = _cost(small, plane, is_known, row, column, how)
                if not least:
                    continue
                before = best = np.int64(small[row, column])
                for value in range(max(before - 1, np.int64(0)), min(before + 2, np.int64(256))):
                    small[row, column] = value
                    cost = _cost(small, plane, is_known, row, column, how)
                    if cost < least:
                        least, best = cost, np.int64(value)
                small[row, column] = best
                changed = changed or best != before
        if not changed:
            break


def enlarge(small: np.ndarray, shape: tuple[int, int], sampling: Sampling) -> np.ndarray:
    """Return the uint8 plane of a shape that is made of a smaller one."""
    if sampling == WHOLE:
        return small
    plane = np.zeros(shape, np.uint8)
    _enlarge(small, plane, np.array(sampling))
    return plane


def reduce(plane: np.ndarray, is_known: np.ndarray, sampling: Sampling, first: np.ndarray | None = None) -> np.ndarray:
    """Return the plane that makes a larger one, or nearly.

    Args:
        plane: uint8 [height, width], the larger one.
        is_known: bool [height, width]: which of its pixels count.
        sampling: how it was made.
        first: uint8, a guess of the smaller one.
    """
    if sampling == WHOLE:
        return plane
    small = np.clip(np.rint(solve(plane, sampling)), 0, 255).astype(np.uint8) if first is None else first.copy()
    _polish(small, np.ascontiguousarray(plane), np.ascontiguousarray(is_known), np.array(sampling), _SWEEPS)
    return small


def solve(plane: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Return the smaller plane by least squares, as if values were not rounded: float64."""
    small = plane.astype(np.float64)
    for axis, factor, cut in ((0, sampling.down, sampling.top), (1, sampling.across, sampling.left)):
        if factor == 2:
            rows = np.ascontiguousarray(np.moveaxis(small, axis, 0))
            small = np.moveaxis(_solve(rows, cut, sampling.smooth), 0, axis)
    return np.ascontiguousarray(small)


def _solve(rows: np.ndarray, cut: int, smooth: int) -> np.ndarray:
    """Return the rows of which pairs were made, by the normal equations, whose matrix has three diagonals."""
    count = (len(rows) + cut + 1) // 2
    found, middle, beside = np.zeros((count, rows.shape[1])), np.zeros(count), np.zeros(count)
    for place, row in enumerate(rows, cut):
        near, far = place // 2, min(max(place // 2 + place % 2 * 2 - 1, 0), count - 1)
        part = 0.75 if smooth and near != far else 1.0
        found[near] += part * row
        middle[near] += part * part
        if part < 1:
            found[far] += row / 4
            middle[far] += 0.0625
            beside[min(near, far)] += 0.1875
    for i in range(1, count):
        ratio = beside[i - 1] / middle[i - 1]
        middle[i] -= ratio * beside[i - 1]
        found[i] -= ratio * found[i - 1]
    for i in range(count - 1, -1, -1):
        after = beside[i] * found[i + 1] if i + 1 < count else 0
        found[i] = (found[i] - after) / middle[i]
    return found


def find_sampling(planes: list[np.ndarray], is_known: np.ndarray) -> Sampling:
    """Return how planes were made larger, all in the same way, or WHOLE if they were not.

    Args:
        planes: uint8 [height, width] each.
        is_known: bool [height, width]: which of their pixels count.
    """
    wrong = [sum(_wrong(plane, is_known, sampling) for plane in planes) for sampling in _CHOICES]
    least = min(wrong)
    is_made = least * _MOST_WRONG < len(planes) * np.count_nonzero(is_known)
    return _CHOICES[wrong.index(least)] if is_made else WHOLE


def _wrong(plane: np.ndarray, is_known: np.ndarray, sampling: Sampling) -> int:
    made = enlarge(reduce(plane, is_known, sampling), plane.shape, sampling)
    return int(np.count_nonzero((made != plane)[1:-1, 1:-1] & is_known[1:-1, 1:-1]))
