"""The coefficients of JPEG blocks that make given pixels exactly, or nearly so.

Rounded to the quantisation steps, the coefficients of the pixels mostly make them again. In blocks with steps of 1 they
do not always: there, coefficients are changed by one step each, always the one that brings the pixels nearest. Pixels
that are not known, or were cut off at black or white, are taken from what the coefficients make.
"""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.image.blocks import Plane, draw
from squeeze.codecs.image.sampling import WHOLE
from squeeze.codecs.jpeg.transform import FINE, FORWARD, INVERSE, forward, inverse, wide_of
from squeeze.numerics.jit import inline, kernel

__all__ = ["fit"]

_ROUNDS = 8  # of pixels that are not known
_PART = 1 << 12  # parts of a pixel
_ALL = 65  # wrong pixels of a block that was not tried: more than it has


class _Tables(NamedTuple):
    """Arrays that transforms need: two matrices, pixels of each coefficient in 4096ths [64, 64], and room [8, 64]."""

    forward: np.ndarray
    inverse: np.ndarray
    patterns: np.ndarray
    work: np.ndarray


class _Found(NamedTuple):
    """The blocks of a plane: steps, rows and columns of the first ones that are cut off, coefficients, wrong pixels."""

    steps: np.ndarray
    cut: np.ndarray
    coefficients: np.ndarray
    wrong: np.ndarray


_SCALED = INVERSE / 8192
_PATTERNS = np.rint(np.einsum("vy,ux->vuyx", _SCALED, _SCALED).reshape(64, 64) * (_PART / 8)).astype(np.int64)


@inline
def _copy(source, copy):
    for k in range(64):
        copy[k] = source[k]


@inline
def _wrong(pixels, target, is_known):
    """Return how many known pixels are others than those of the target."""
    count = 0
    for k in range(64):
        count += is_known[k] != 0 and min(max(pixels[k], 0), 255) != target[k]
    return count


@inline
def _distance(at, target, moved, pattern, is_known, most):
    """Return how far pixels are beyond half a step from the target, squared, with `moved` times a pattern added."""
    total = np.int64(0)
    for k in range(64):
        if is_known[k]:
            error = at[k] + moved * pattern[k] - _PART * (target[k] - 128)
            if (target[k] == 0 and error < 0) or (target[k] == 255 and error > 0):
                continue
            error = abs(error) - _PART // 2
            if error > 0:
                total += error * error
                if total >= most:
                    break
    return total


@inline
def _step_nearer(block, steps, target, is_known, patterns, at):
    """Change the coefficient by a step that brings the pixels nearest to the target, and return whether one does."""
    least = _distance(at, target, 0, patterns[0], is_known, np.int64(1) << 62)
    best, sign = -1, 0
    for k in range(64):
        for way in (-1, 1):
            distance = _distance(at, target, way * steps[k], patterns[k], is_known, least)
            if distance < least:
                least, best, sign = distance, k, way
    if best < 0:
        return False
    block[best] += sign
    for k in range(64):
        at[k] += sign * steps[best] * patterns[best, k]
    return True


@inline
def _take_free(wanted, made, target, is_known):
    """Let pixels that are not known, or that were cut off, be what they were made, and return whether any changed."""
    changed = False
    for k in range(64):
        is_free = not is_known[k] or (target[k] == 0 and made[k] < 0) or (target[k] == 255 and made[k] > 255)
        pixel = made[k] if is_free else target[k]
        changed = changed or pixel != wanted[k]
        wanted[k] = pixel
    return changed


@inline
def _fit(block, steps, m, most_changes):
    """Find the coefficients that make a block, and return how many of its pixels they do not make.

    Args:
        block: int64 [64], which is written.
        steps: int64 [64].
        m: the tables. The first rows of their room are the pixels, and whether they are known.
        most_changes: of coefficients.
    """
    target, is_known, made, wanted, room, values, best = (
        m.work[0],
        m.work[1],
        m.work[2],
        m.work[3],
        m.work[4],
        m.work[5],
        m.work[6],
    )
    least = np.int64(_ALL)
    _copy(target, wanted)
    for _ in range(_ROUNDS):
        forward(wanted, m.forward, room, values)
        for k in range(64):
            scaled = FINE * steps[k]
            block[k] = (values[k] + scaled // 2) // scaled
        inverse(block, steps, m.inverse, room, made)
        wrong = _wrong(made, target, is_known)
        if wrong < least:
            least = wrong
            _copy(block, best)
        if not least or not _take_free(wanted, made, target, is_known):
            break
    _copy(best, block)
    for k in range(64):
        wanted[k] = 0
        for other in range(64):
            wanted[k] += block[other] * steps[other] * m.patterns[other, k]
    changes = 0
    while least and changes < most_changes and _step_nearer(block, steps, target, is_known, m.patterns, wanted):
        changes += 1
        inverse(block, steps, m.inverse, room, made)
        wrong = _wrong(made, target, is_known)
        if wrong < least:
            least = wrong
            _copy(block, best)
    _copy(best, block)
    return least


@kernel
def _fit_plane(plane, known, found, m, most_changes):
    """Find the coefficients of those blocks of a plane that have wrong pixels, and how many these are then.

    Args:
        plane: uint8 [height, width].
        known: bool [height, width]: which of its pixels count.
        found: the blocks, whose coefficients and wrong pixels are written.
        m: the tables.
        most_changes: of coefficients of a block.
    """
    height, width = plane.shape
    wide = (width + found.cut[1] + 7) // 8
    for i in range(found.wrong.size):
        if not found.wrong[i]:
            continue
        row, column = i // wide * 8 - found.cut[0], i % wide * 8 - found.cut[1]
        for k in range(64):
            y, x = row + k // 8, column + k % 8
            m.work[0, k] = plane[min(max(y, 0), height - 1), min(max(x, 0), width - 1)]
            m.work[1, k] = 0 <= y < height and 0 <= x < width and known[y, x]
        found.wrong[i] = _fit(m.work[7], found.steps, m, most_changes)
        for k in range(64):
            found.coefficients[i, k] = min(max(m.work[7, k], -2047), 2047)


def fit(plane: np.ndarray, is_known: np.ndarray, found: Plane, most_changes: int) -> Plane:
    """Return the blocks that make a plane or nearly so, with the steps and the place of `found`.

    Args:
        plane: uint8 [height, width], as it was before it was made larger.
        is_known: bool [height, width]: which of its pixels count.
        found: the steps and the place. Blocks that it has, and that make their known pixels, stay.
        most_changes: of coefficients of a block, after rounding.
    """
    top, left = found.top, found.left
    high, wide = wide_of(plane.shape[0], top), wide_of(plane.shape[1], left)
    coefficients, wrong = np.zeros((high * wide, 64), np.int16), np.full(high * wide, _ALL)
    if found.coefficients.size:
        coefficients[:] = found.coefficients
        around = (top, 8 * high - top - plane.shape[0]), (left, 8 * wide - left - plane.shape[1])
        others = np.pad((draw(found._replace(sampling=WHOLE), plane.shape) != plane) & is_known, around)
        wrong[:] = others.reshape(high, 8, wide, 8).sum(axis=(1, 3)).ravel()
    blocks = _Found(found.steps, np.array([top, left]), coefficients, wrong)
    tables = _Tables(FORWARD, INVERSE, _PATTERNS, np.zeros((8, 64), np.int64))
    _fit_plane(plane, is_known, blocks, tables, most_changes)
    return found._replace(coefficients=coefficients)
