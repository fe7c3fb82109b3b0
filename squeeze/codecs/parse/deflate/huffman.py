"""The Huffman codes that zlib gives a block, and the repeat symbols that it writes them with.

zlib builds trees with a heap that breaks ties by depth, and shortens codes that are too long. The same counts must give
the same lengths here, bit for bit, so that the codes of most streams need not be stored.
"""

import numpy as np

from squeeze.codecs.parse.deflate.layout import LITERALS
from squeeze.numerics.jit import inline, part

_HEAP = 2 * LITERALS + 1
FREQUENCY, DEPTH, PARENT, LENGTH, HEAP = range(5)  # rows of the work space


def work_space() -> np.ndarray:
    """Return int64 [5, nodes] that `zlib_lengths` needs; the counts of the symbols go to row FREQUENCY."""
    return np.zeros((5, _HEAP + 1), np.int64)


@inline
def _is_smaller(w, a, b):
    return w[FREQUENCY, a] < w[FREQUENCY, b] or (w[FREQUENCY, a] == w[FREQUENCY, b] and w[DEPTH, a] <= w[DEPTH, b])


@part
def _sift(w, k, count):
    """Move the node at place `k` of the heap down to where its sons are not smaller."""
    node, son = w[HEAP, k], 2 * k
    while son <= count:
        if son < count and _is_smaller(w, w[HEAP, son + 1], w[HEAP, son]):
            son += 1
        if _is_smaller(w, node, w[HEAP, son]):
            break
        w[HEAP, k] = w[HEAP, son]
        k, son = son, 2 * son
    w[HEAP, k] = node


@part
def zlib_lengths(w, size, limit, used):
    """Compute zlib's code lengths.

    Args:
        w: The work space: the counts of the symbols are in row FREQUENCY, the lengths come into row LENGTH.
        size: The number of symbols.
        limit: The longest code in bits.
        used: int64 [limit + 2], work space.
    """
    count, last = 0, -1
    for k in range(size):
        w[LENGTH, k] = w[DEPTH, k] = 0
        if w[FREQUENCY, k]:
            count, last = count + 1, k
            w[HEAP, count] = k
    while count < 2:
        node = 0
        if last < 2:
            last += 1
            node = last
        count += 1
        w[HEAP, count] = node
        w[FREQUENCY, node], w[DEPTH, node] = 1, 0
    for k in range(count // 2, 0, -1):
        _sift(w, k, count)
    end, node = _HEAP, size
    while count >= 2:
        a = w[HEAP, 1]
        w[HEAP, 1] = w[HEAP, count]
        count -= 1
        _sift(w, 1, count)
        b = w[HEAP, 1]
        w[HEAP, end - 1], w[HEAP, end - 2] = a, b
        end -= 2
        w[FREQUENCY, node] = w[FREQUENCY, a] + w[FREQUENCY, b]
        w[DEPTH, node] = max(w[DEPTH, a], w[DEPTH, b]) + 1
        w[PARENT, a] = w[PARENT, b] = node
        w[HEAP, 1] = node
        node += 1
        _sift(w, 1, count)
    end -= 1
    w[HEAP, end] = w[HEAP, 1]
    _assign(w, end, last, limit, used)


@part
def _assign(w, root, last, limit, used):
    """Assign lengths from the root down, then shorten those beyond the limit."""
    overflow = 0
    for k in range(limit + 2):
        used[k] = 0
    w[LENGTH, w[HEAP, root]] = 0
    for k in range(root + 1, _HEAP):
        node = w[HEAP, k]
        length = w[LENGTH, w[PARENT, node]] + 1
        if length > limit:
            length = limit
            overflow += 1
        w[LENGTH, node] = length
        if node <= last:
            used[length] += 1
    if overflow == 0:
        return
    while overflow > 0:
        length = limit - 1
        while used[length] == 0:
            length -= 1
        used[length] -= 1
        used[length + 1] += 2
        used[limit] -= 1
        overflow -= 2
    place = _HEAP
    for length in range(limit, 0, -1):
        waiting = used[length]
        while waiting:
            place -= 1
            if w[HEAP, place] <= last:
                w[LENGTH, w[HEAP, place]] = length
                waiting -= 1


@inline
def zlib_repeat(lengths, row, place, end, before):
    """Return the repeat symbol that zlib writes next, as symbol | extra << 8, and the number of lengths it stands for.

    Args:
        lengths: uint8 [rows, n].
        row: The row of the lengths.
        place: The next length.
        end: The end of the lengths that may be taken together.
        before: The length before, or -1.
    """
    value, run = np.int64(lengths[row, place]), 1
    while place + run < end and run < 138 and lengths[row, place + run] == value:
        run += 1
    if run < 3 or (value and value != before):
        return value, 1
    if value:
        run = min(run, 6)
        return 16 | run - 3 << 8, run
    return (17 | run - 3 << 8, run) if run <= 10 else (18 | run - 11 << 8, run)
