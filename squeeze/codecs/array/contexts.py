"""The contexts of a number that are hashed, of whole numbers and of single bytes, and their slots."""

import numpy as np

from squeeze.codecs.array.predictions import above
from squeeze.codecs.array.state import MARGIN
from squeeze.numerics.bitmodels import histories
from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.jit import inline, part, prefetch


@inline
def _key(m, k):
    return np.uint64(k) << np.uint64(8) | np.uint64(m.state.column)


@part
def hash_number(m, i):
    """Write the hashes of the contexts of number `i` as a whole, whose slots depend on all of its bits before."""
    at, step, h = MARGIN + i, m.state.columns, m.hashes
    a, b = np.uint64(m.numbers[at - step]), np.uint64(m.numbers[at - 2 * step])
    h[0] = np.uint64(0)
    if m.state.full:
        h[1] = a
        h[2] = mix_hash(a, b)
        h[3] = np.uint64(m.numbers[at - 1])
        h[4] = np.uint64(m.values[1])
        if m.state.across:
            h[5] = np.uint64(above(m, i))
    for k in range(m.state.of_numbers):
        h[k] = mix_hash(h[k], _key(m, k))


@inline
def _byte(number, place):
    return np.uint64(number) >> np.uint64(8 * place) & np.uint64(255)


@part
def hash_byte(m, i, place, prefix):
    """Write the hashes of the contexts of the byte at `place` of number `i`, 0 for the lowest.

    Args:
        m: The model of the array.
        i: The number of the number.
        place: The place of the byte.
        prefix: The bits of the number before the byte, after a leading one.
    """
    at, step, h, first = MARGIN + i, m.state.columns, m.hashes, m.state.of_numbers
    a, before = m.numbers[at - step], np.uint64(prefix) & np.uint64(255)
    near, same = _byte(a, place), np.uint64(0)
    if place < 7 and (np.uint64(m.state.at) ^ np.uint64(a)) >> np.uint64(8 * place + 8) == 0:
        same = np.uint64(1)
    h[first] = np.uint64(place)
    h[first + 1] = near << np.uint64(1) | same
    h[first + 2] = before
    if m.state.full:
        b = _byte(m.numbers[at - 2 * step], place)
        h[first + 3] = before << np.uint64(8) | near
        h[first + 4] = b << np.uint64(8) | near
        h[first + 5] = _byte(m.values[m.state.best], place) << np.uint64(1) | same
    if m.state.across:
        up = _byte(above(m, i), place)
        h[h.size - 1] = up << np.uint64(8) | near
        if m.state.full:
            h[h.size - 2] = up << np.uint64(8) | before
    for k in range(first, h.size):
        h[k] = mix_hash(h[k] << np.uint64(8) | np.uint64(place), _key(m, k))


@inline
def find_slots(m, prefix, partial):
    """Find each context's slot for this half of a byte: by all bits of the number, or by those of the byte."""
    mask = np.uint64(m.state.line_mask)
    for k in range(m.hashes.size):
        salt = prefix if k < m.state.of_numbers else partial
        prefetch(m.slots, histories.line_of(mix_hash(m.hashes[k], np.uint64(salt)), mask))
    for k in range(m.hashes.size):
        salt = prefix if k < m.state.of_numbers else partial
        m.slot[k] = histories.find_slot(m.slots, mix_hash(m.hashes[k], np.uint64(salt)), mask)
    m.state.node = 1
