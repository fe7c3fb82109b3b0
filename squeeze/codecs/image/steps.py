"""The blocks of JPEG in pixels: where they begin, and their quantisation steps.

In the right grid of blocks, the coefficients of pixels lie near multiples of the steps, as far as rounding to pixels
has moved them. So the grid is where most coefficients are near zero, and a step is the largest one that all
coefficients of its place are near multiples of. Fan and de Queiroz, "Identification of bitmap compression history: JPEG
detection and quantizer estimation", 2003, find steps in this way.
"""

import math

import numpy as np

from squeeze.codecs.image.sampling import WHOLE, Sampling
from squeeze.codecs.jpeg.transform import FINE, FORWARD, forward
from squeeze.numerics.jit import inline, kernel

__all__ = ["coefficients", "find_grid", "noise_of", "sample", "steps_of"]

_SIDE = 160  # pixels of a sample, across and down
_NEAR_ZERO = 5 * FINE // 8
_MOST_STEP, _LEAST_VALUES = 255, 3  # the largest step, and as many values as tell one
_FAR = 9  # a distance counts at most as many times the expected one, squared
_OUTLIERS = 256  # one of so many values may be wrong
_LEAST_TOLD = 16  # places of which the step is told at once, in blocks of JPEG
_FEW = 3  # a small step is not so many times smaller than those of lower frequencies
_MOST_DESCRIBED = 2048  # values of which the length is computed
_MOST_FAR = 4  # one of so many values may be far from multiples of the step with the shortest description
_FINER = 16  # parts of a pixel
_LEAST_BLOCKS = 16  # blocks that tell steps


@kernel
def _transform(plane, top, left, matrix, work, out):
    """Compute the coefficients of whole blocks of int64 `plane`, from a row and column on, as int64 [blocks, 64]."""
    wide = (plane.shape[1] - left) // 8
    for i in range(out.shape[0]):
        row, column = top + i // wide * 8, left + i % wide * 8
        for k in range(64):
            work[0, k] = plane[row + k // 8, column + k % 8]
        forward(work[0], matrix, work[1], out[i])


@inline
def _error_of(values, k, step, noise):
    """Return the squared distances of the values of place `k` from multiples of a step, or -1 if they are too far."""
    count, scaled = values.shape[0], step * FINE
    total, of_values, found = np.int64(0), np.int64(0), 0
    for i in range(count):
        value = abs(values[i, k])
        times = (value + scaled // 2) // scaled
        error = min((value - times * scaled) ** 2, _FAR * noise)
        total += error
        if times:
            found += 1
            of_values += error
        if 2 * total > 3 * noise * count:
            return -1
    allowed = 2 * noise if found >= _LEAST_VALUES else 4 * noise
    return total if found and of_values <= allowed * found else -1


@inline
def _largest(values, k, highest, noise, errors):
    """Return the largest step, at least 2, of those that explain the values of place `k` nearly best, or 0."""
    least, found = np.int64(-1), 0
    for step in range(2, highest + 1):
        errors[step] = _error_of(values, k, step, noise)
        if errors[step] >= 0 and (least < 0 or errors[step] < least):
            least = errors[step]
    for step in range(2, highest + 1):
        if 0 <= errors[step] <= least + least // 8 + _FAR * noise * (1 + values.shape[0] // _OUTLIERS):
            found = step
    return found


@inline
def _logarithm(number):
    """Return 16 times the binary logarithm of a number of at least 1, interpolated between powers of two."""
    bits, rest = 0, number
    while rest > 1:
        rest >>= 1
        bits += 1
    return 16 * bits + ((number << 4) >> bits) - 16


@inline
def _shortest(values, k, highest, noise):
    """Return the step with which the values of place `k` have the shortest description: multiples, and distances.

    It is for values with more noise than expected. If the values that it leaves are far from zero, it is 1.
    """
    stride = 1 + values.shape[0] // _MOST_DESCRIBED
    best, least = np.int64(1), np.int64(-1)
    for step in range(4, max(highest, np.int64(3)) + 2):
        scaled = (step if step <= highest else _MOST_STEP) * FINE  # the last one leaves all values zero
        total = np.int64(0)
        for i in range(0, values.shape[0], stride):
            value = abs(values[i, k])
            times = (value + scaled // 2) // scaled
            distance = value - times * scaled
            total += _logarithm(1 + distance * distance // noise) + 3 * _logarithm(1 + times)
        if least < 0 or total <= least:
            best, least = scaled // FINE, total
    far = 0
    for i in range(values.shape[0]):
        value = abs(values[i, k])
        times = (value + best * FINE // 2) // (best * FINE)
        far += (value - times * best * FINE) ** 2 > _FAR * noise
    return best if _MOST_FAR * far <= values.shape[0] else np.int64(1)


@kernel
def _find_steps(values, steps, noise, errors):
    """Find the quantisation steps of int64 [blocks, 64] `values` in 256ths, and write them; in few places, none.

    Args:
        values: the coefficients.
        steps: int64 [64] of ones, which is written.
        noise: int64 [64], the squared distance from multiples that rounding of pixels makes, on average.
        errors: int64 [2, 256], room: for the distances of each step, and the highest step of each place.
    """
    told = 0
    for k in range(64):
        largest = np.int64(0)
        for i in range(values.shape[0]):
            largest = max(largest, abs(values[i, k]))
        errors[1, k] = min((largest + FINE) // FINE, np.int64(_MOST_STEP))
        steps[k] = max(_largest(values, k, errors[1, k], noise[k], errors[0]), 1)
        told += steps[k] > 1 or largest < FINE
    for k in range(64 * (told >= _LEAST_TOLD)):
        lower = np.int64(0)
        for near in range(k):  # steps of lower frequencies
            if near % 8 <= k % 8 and steps[near] < _MOST_STEP:
                lower = max(lower, steps[near])
        if steps[k] == 1 or (steps[k] < 4 and steps[k] * _FEW < lower):
            steps[k] = max(_shortest(values, k, errors[1, k], noise[k]), steps[k])


def coefficients(plane: np.ndarray, top: int, left: int) -> np.ndarray:
    """Return the coefficients of whole blocks in 256ths, int64 [blocks, 64]."""
    count = (plane.shape[0] - top) // 8 * ((plane.shape[1] - left) // 8)
    out = np.zeros((count, 64), np.int64)
    fine = np.rint(_FINER * (plane - 128.0)).astype(np.int64) + 128
    _transform(fine, top, left, FORWARD, np.zeros((2, 64), np.int64), out)
    return (out + _FINER // 2) // _FINER


def sample(plane: np.ndarray) -> np.ndarray:
    """Return the middle of a plane. The row and column at which it begins are multiples of 8."""
    top, left = (max(length - _SIDE, 0) // 16 * 8 for length in plane.shape)
    return np.ascontiguousarray(plane[top : top + _SIDE, left : left + _SIDE])


def find_grid(samples: list[np.ndarray]) -> tuple[int, int]:
    """Return the row and column at which blocks begin in all samples."""
    shares = np.zeros(64)
    for place in range(64):
        values = np.concatenate([coefficients(sample, *divmod(place, 8)) for sample in samples])
        shares[place] = np.count_nonzero(np.abs(values) < _NEAR_ZERO) / max(values.size, 1)
    return divmod(int(shares.argmax()), 8)


def noise_of(sampling: Sampling) -> np.ndarray:
    """Return by how much rounding moves each coefficient, squared, on average: float64 [64]."""
    cosines = np.array([math.cos(k * math.pi / 8) for k in range(8)])
    more = [8 / (10 + 6 * cosines) if factor == 2 else np.ones(8) for factor in (sampling.down, sampling.across)]
    return (1 + (sampling != WHOLE) * np.outer(*more).ravel()) / 12


def steps_of(smalls: list[np.ndarray], is_known: np.ndarray, place: tuple[int, int], noise: np.ndarray) -> np.ndarray:
    """Return the steps of planes, int64 [64], which have the same.

    Args:
        smalls: the pixels that the planes were made larger from, uint8 or float64.
        is_known: bool, which of them count: blocks with others are left out if enough remain.
        place: the row and column of the first whole block.
        noise: float64 [64], see noise_of.
    """
    values = np.concatenate([coefficients(small, *place) for small in smalls])
    high, wide = ((length - cut) // 8 for length, cut in zip(is_known.shape, place, strict=True))
    blocks = is_known[place[0] : place[0] + 8 * high, place[1] : place[1] + 8 * wide].reshape(high, 8, wide, 8)
    is_whole = np.tile(blocks.all(axis=(1, 3)).ravel(), len(smalls))
    if np.count_nonzero(is_whole) >= _LEAST_BLOCKS:
        values = values[is_whole]
    steps, errors = np.ones(64, np.int64), np.zeros((2, _MOST_STEP + 1), np.int64)
    _find_steps(values, steps, np.rint(FINE * FINE * noise).astype(np.int64), errors)
    return steps
