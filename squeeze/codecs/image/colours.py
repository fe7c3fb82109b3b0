"""Colours that a JPEG decoder made: its luminance and two colour differences are coded in place of red, green and blue.

Less than a quarter of all colours of 24 bits are made of a luminance and two differences of 8 bits. An image that was
a JPEG once, and only decoded or cropped since, has no others. What it was made of says all, and is smoother. The
conversion is that of ITU-T T.871 in the integers of the Independent JPEG Group's decoder. Other pixels are exceptions.
"""

import io

import numpy as np

from squeeze.codecs.image.layout import Layout
from squeeze.errors import DamagedError
from squeeze.numerics.jit import inline, kernel
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["convert", "find_order", "restore"]

Part = tuple[np.ndarray, int]  # rows, uint8, of which the last may be cut off; bytes from one to the next
_PLACES = {1: np.array([0, 1, 2]), 2: np.array([2, 1, 0])}  # where red, green and blue are in a pixel
_MOST_EXCEPTIONS, _SAMPLED_EXCEPTIONS = 16, 20  # at most one of so many pixels; of the colours of a sample
_SAMPLE, _LEAST_COLOURS = 4096, 64  # pixels of a sample, and different colours that it must have
_RADIUS = 16  # how far the differences of a pixel that was cut off are from those of the pixel before


def _table(factor: float, add: int, shift: int) -> np.ndarray:
    """Return int64 [256]: a colour difference times a factor, in 65536ths if `shift` is 0."""
    return (round(factor * 65536) * np.arange(-128, 128) + add) >> shift


RED, BLUE = _table(1.402, 32768, 16), _table(1.772, 32768, 16)
# What is added to a luminance for green, by both differences, int64 [65536]. The index is 256 * cb + cr.
GREEN = ((_table(-0.34414, 32768, 0)[:, None] + _table(-0.71414, 0, 0)) >> 16).ravel()


@inline
def _cut(value):
    return min(max(value, 0), 255)


@inline
def _luminance(r, g, b, cb, cr, green):
    """Return the luminance of a colour by its differences: that of a sample that was not cut off, if there is one."""
    if 0 < g < 255:
        return g - green[256 * cb + cr]
    if 0 < r < 255:
        return r - RED[cr]
    if 0 < b < 255:
        return b - BLUE[cb]
    return (77 * r + 150 * g + 29 * b) >> 8


@inline
def _makes(y, cb, cr, r, g, b, green):
    """Return whether a luminance and differences make a colour."""
    if not 0 <= y < 256:
        return False
    return _cut(y + RED[cr]) == r and _cut(y + green[256 * cb + cr]) == g and _cut(y + BLUE[cb]) == b


@inline
def _search(made, r, g, b, radius, green):
    """Find what makes a colour within a radius of the differences in `made`, write it there, and return whether."""
    middle_cb, middle_cr = made[1], made[2]
    for ring in range(radius + 1):
        for down in range(-ring, ring + 1):
            step = 1 if abs(down) == ring else 2 * ring
            for right in range(-ring, ring + 1, step):
                cb, cr = _cut(middle_cb + down), _cut(middle_cr + right)
                y = _luminance(r, g, b, cb, cr, green)
                if _makes(y, cb, cr, r, g, b, green):
                    made[0], made[1], made[2] = y, cb, cr
                    return True
    return False


@inline
def _nearest(made, r, g, b):
    """Write the luminance and differences of a colour, rounded."""
    made[0] = _cut((19595 * r + 38470 * g + 7471 * b + 32768) >> 16)
    made[1] = _cut(((-11059 * r - 21709 * g + 32768 * b + 32767) >> 16) + 128)
    made[2] = _cut(((32768 * r - 27439 * g - 5329 * b + 32767) >> 16) + 128)


@inline
def _adapt(green, place, rest, count):
    """Change green for two differences if an exception is of green alone, by one: some decoders round otherwise."""
    if rest[count, 0] == 0 and rest[count, 2] == 0:
        if rest[count, 1] == 1:
            green[place] += 1
        elif rest[count, 1] == 255:
            green[place] -= 1


@kernel
def _convert(data, sizes, places, made, green, at, rest, hints):
    """Replace pixels by what makes them.

    Args:
        data: uint8, rows of pixels, the last of which may be cut off.
        sizes: int64 [3]: bytes from one row to the next, of the pixels of a row, and of a pixel.
        places: int64 [3]: where red, green and blue are in a pixel.
        made: int64 [3]: what makes the pixel before the first one.
        green: int64 [65536]: a copy of GREEN, which is adapted.
        at: int64, of which the numbers of exceptions are written.
        rest: uint8 [exceptions, 3]: what is added to make these.
        hints: uint8 [pixels, 3], or none: what probably makes each pixel.

    Returns:
        The number of exceptions, or -1 if there is no room for them.
    """
    count, number, stride, row, step = 0, 0, sizes[0], sizes[1], sizes[2]
    for begin in range(0, data.size, stride):
        for i in range(begin, min(begin + row, data.size) - step + 1, step):
            r, g, b = np.int64(data[i + places[0]]), np.int64(data[i + places[1]]), np.int64(data[i + places[2]])
            if hints.shape[0]:
                for k in range(3):
                    made[k] = np.int64(hints[number, k])
                if _makes(made[0], made[1], made[2], r, g, b, green):
                    for k in range(3):
                        data[i + k] = hints[number, k]
                    number += 1
                    continue
            is_whole = 0 < r < 255 and 0 < g < 255 and 0 < b < 255
            if is_whole or not _search(made, r, g, b, _RADIUS, green):
                _nearest(made, r, g, b)
                if not _search(made, r, g, b, 1, green):
                    if count == at.size:
                        return -1
                    at[count] = number
                    rest[count, 0] = np.uint8((r - _cut(made[0] + RED[made[2]])) & 255)
                    rest[count, 1] = np.uint8((g - _cut(made[0] + green[256 * made[1] + made[2]])) & 255)
                    rest[count, 2] = np.uint8((b - _cut(made[0] + BLUE[made[1]])) & 255)
                    _adapt(green, 256 * made[1] + made[2], rest, count)
                    count += 1
            for k in range(3):
                data[i + k] = np.uint8(made[k])
            number += 1
    return count


@kernel
def _restore(data, sizes, places, green, at, rest):
    """Make pixels again. The arguments are those of `_convert`; all exceptions are pixels of the rows."""
    count, number, stride, row, step = 0, 0, sizes[0], sizes[1], sizes[2]
    for begin in range(0, data.size, stride):
        for i in range(begin, min(begin + row, data.size) - step + 1, step):
            y, cb, cr = np.int64(data[i]), np.int64(data[i + 1]), np.int64(data[i + 2])
            r, g, b = _cut(y + RED[cr]), _cut(y + green[256 * cb + cr]), _cut(y + BLUE[cb])
            if count < at.size and at[count] == number:
                r, g, b = r + rest[count, 0], g + rest[count, 1], b + rest[count, 2]
                _adapt(green, 256 * cb + cr, rest, count)
                count += 1
            data[i + places[0]], data[i + places[1]] = np.uint8(r & 255), np.uint8(g & 255)
            data[i + places[2]] = np.uint8(b & 255)
            number += 1


def find_order(part: Part, form: Layout) -> int:
    """Return 1 if a JPEG decoder made the pixels of an image, 2 if it has their bytes from blue to red, else 0.

    Grey in three channels is a luminance alone, whatever made it.

    Args:
        part: its rows without filters, or those of a pass.
        form: its layout.
    """
    data, stride = part
    if not form.may_be_converted or data.size < stride:
        return 0
    rows = data[: data.size // stride * stride].reshape(-1, stride)[:, : form.row_of(stride)]
    pixels = rows.reshape(-1, form.pixel)[:, :3]
    pixels = np.unique(pixels[:: max(len(pixels) // _SAMPLE, 1)], axis=0)
    is_coloured = (pixels[:, 0] != pixels[:, 1]) | (pixels[:, 1] != pixels[:, 2])
    if not is_coloured.any():
        return int(len(pixels) >= _LEAST_COLOURS)
    pixels = pixels[is_coloured & (pixels > 0).all(axis=1) & (pixels < 255).all(axis=1)]
    if len(pixels) < _LEAST_COLOURS:
        return 0
    at, rest = _room(len(pixels) // _SAMPLED_EXCEPTIONS)
    for order, places in _PLACES.items():
        made, none = np.full(3, 128), np.zeros((0, 3), np.uint8)
        if _convert(pixels.flatten(), np.full(3, 3), places, made, GREEN.copy(), at, rest, none) >= 0:
            return order
    return 0


def convert(parts: list[Part], form: Layout, hints: np.ndarray | None = None) -> bytes | None:
    """Replace the pixels of an image by what makes them, and return the exceptions, or None if there are too many.

    Args:
        parts: its rows, or those of each pass.
        form: its layout.
        hints: uint8 [pixels, 3]: what probably makes each pixel, if that is known. Colours that were cut off are made
            in several ways.
    """
    hints = np.zeros((0, 3), np.uint8) if hints is None else hints
    found, first, last = list[bytes](), 0, -1
    places, made, green = _PLACES[form.colours], np.full(3, 128), GREEN.copy()
    for data, stride in parts:
        at, rest = _room(_pixels(data, stride, form) // _MOST_EXCEPTIONS)
        count = _convert(data, _sizes(stride, form), places, made, green, at, rest, hints[first:])
        if count < 0:
            return None
        for number, one in zip((at[:count] + first).tolist(), rest[:count], strict=True):
            found.append(varint(number - last - 1) + one.tobytes())
            last = number
        first += _pixels(data, stride, form)
    return b"".join(found)


def restore(parts: list[Part], form: Layout, exceptions: bytes) -> None:
    """Make the pixels of an image again.

    Raises:
        DamagedError: if the exceptions are invalid.
    """
    file, at, rest, number = io.BytesIO(exceptions), list[int](), list[bytes](), -1
    total = sum(_pixels(data, stride, form) for data, stride in parts)
    while file.tell() < len(exceptions):
        number += read_varint(file)[0] + 1
        at.append(number)
        rest.append(read_exactly(file, 3))
        if number >= total:
            raise DamagedError("the coded bytes of an image are impossible: the file is damaged")
    numbers, added, first = np.array(at, np.int64), np.frombuffer(b"".join(rest), np.uint8).reshape(-1, 3), 0
    places, green = _PLACES[form.colours], GREEN.copy()
    for data, stride in parts:
        own = slice(*np.searchsorted(numbers, (first, first + _pixels(data, stride, form))))
        _restore(data, _sizes(stride, form), places, green, numbers[own] - first, added[own].copy())
        first += _pixels(data, stride, form)


def _room(most: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(most, np.int64), np.zeros((most, 3), np.uint8)


def _sizes(stride: int, form: Layout) -> np.ndarray:
    return np.array([stride, form.row_of(stride), form.pixel])


def _pixels(data: np.ndarray, stride: int, form: Layout) -> int:
    """Return the number of whole pixels in rows."""
    row = form.row_of(stride)
    return (data.size // stride * row + min(data.size % stride, row)) // form.pixel
