"""The filters of PNG: rows without them, what filter an encoder probably chose, and rows with them again."""

from typing import NamedTuple

import numpy as np

from squeeze.numerics.bitmodels import adaptive, coder as arithmetic
from squeeze.numerics.jit import inline, kernel, part

__all__ = ["FILTERS", "Filtered", "add_filters", "code_filter", "guess_filter", "remove_filters"]

FILTERS = 5  # none, left, above, mean, Paeth


class Filtered(NamedTuple):
    """Rows without their filters, and these.

    Attributes:
        data: uint8, zeros before the rows, and these.
        filters: uint8 [rows], or none.
        filter_entries: uint32, the probabilities of filters.
    """

    data: np.ndarray
    filters: np.ndarray
    filter_entries: np.ndarray

    @classmethod
    def empty(cls, size: int, rows: int) -> "Filtered":
        """Return `size` zeros, and `rows` filters of none."""
        entries = np.full((FILTERS + 1) * FILTERS * 8, adaptive.EVEN, np.uint32)
        return cls(np.zeros(size, np.uint8), np.zeros(rows, np.uint8), entries)


@inline
def _paeth(a, b, c):
    estimate = a + b - c
    left, above, corner = abs(estimate - a), abs(estimate - b), abs(estimate - c)
    if left <= above and left <= corner:
        return a
    return b if above <= corner else c


@inline
def _expected(data, i, column, stride, pixel, is_first, kind):
    """Return what a filter subtracts from the byte at `i`, in its row at `column`."""
    a = np.int64(data[i - pixel]) if column >= pixel else 0
    b = 0 if is_first else np.int64(data[i - stride])
    c = np.int64(data[i - stride - pixel]) if column >= pixel and not is_first else 0
    if kind == 1:
        return a
    if kind == 2:
        return b
    if kind == 3:
        return (a + b) >> 1
    return _paeth(a, b, c) if kind == 4 else 0


@kernel
def remove_filters(rows, data, begin, end, stride, pixel, filters, first):
    """Undo the filters of rows, and return whether all filters are known.

    Args:
        rows: uint8, the rows, each after its filter.
        data: uint8, of which `begin` to `end` are written.
        begin: Where the first row begins.
        end: Where the last row ends.
        stride: Bytes of a row.
        pixel: Bytes of a pixel.
        filters: uint8, of which the filters of the rows are written.
        first: The number of the first row.
    """
    at, i, row = 0, begin, first
    while at < rows.size:
        kind = rows[at]
        if kind >= FILTERS:
            return False
        filters[row] = kind
        at += 1
        for column in range(min(stride, end - i)):
            expected = _expected(data, i, column, stride, pixel, row == first, kind)
            data[i] = np.uint8((np.int64(rows[at]) + expected) & 255)
            at += 1
            i += 1
        row += 1
    return True


@kernel
def add_filters(rows, data, begin, end, stride, pixel, filters, first):
    """Filter rows again; the arguments are those of `remove_filters`."""
    at, i, row = 0, begin, first
    while at < rows.size:
        kind = filters[row]
        rows[at] = kind
        at += 1
        for column in range(min(stride, end - i)):
            expected = _expected(data, i, column, stride, pixel, row == first, kind)
            rows[at] = np.uint8((np.int64(data[i]) - expected) & 255)
            at += 1
            i += 1
        row += 1


@part
def guess_filter(data, begin, size, stride, pixel, is_first):
    """Return the filter that makes a row of `size` bytes smallest: the sum of its bytes as signed numbers."""
    best, least = 0, np.int64(1) << 62
    for kind in range(FILTERS):
        total = np.int64(0)
        for column in range(size):
            i = begin + column
            rest = (np.int64(data[i]) - _expected(data, i, column, stride, pixel, is_first, kind)) & 255
            total += min(rest, 256 - rest)
        if total < least:
            best, least = kind, total
    return best


@part
def code_filter(m, coder, coded, row, end, size, decoding):
    """Code the filter of a row after its bytes.

    Args:
        m: The model of the image.
        coder: The arithmetic coder.
        coded: Its bytes.
        row: The number of the row.
        end: Where it ends in the data of the model.
        size: Its bytes.
        decoding: The direction.

    Returns:
        Whether it is one of PNG, and there was room for the coded bytes, or enough of them.
    """
    guess = guess_filter(m.data, end - size, size, m.state.stride, m.state.pixel, row == m.state.first)
    before = np.int64(m.filters[row - 1]) if row else FILTERS
    first = (before * FILTERS + guess) * 8
    m.filters[row] = adaptive.code_tree(m.filters[row], 3, m.filter_entries, first, coder, coded, decoding)
    return m.filters[row] < FILTERS and not arithmetic.is_over(coder, coded, decoding)
