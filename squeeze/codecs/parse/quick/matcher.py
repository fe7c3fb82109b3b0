"""Predictions of the next token of Snappy and LZ4: one table of the last position of each hash, and one look at it.

Both search from the end of a match on, in steps that grow as long as nothing is found, and look at the place after a
match at once. See snappy.cc and lz4.c of their projects. The position is that of the block which is read, so that
after a token of another encoder the prediction goes on from there.
"""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.deflate.matcher import CRC
from squeeze.codecs.parse.quick.layout import (
    BY_SIZE,
    CRC_OF_14,
    FORMAT,
    HASHED,
    HIGH,
    LEAST_MATCH,
    LINKED,
    LOW_OF_14,
    LZ4,
    MOST_DISTANCE,
    SNAPPY,
)
from squeeze.numerics.jit import inline, part

_MOST_BITS, _LEAST_BITS = 15, 8  # of the hashes of Snappy
_SNAPPY_FACTOR, _LZ4_FACTOR, _LONG_FACTOR = 0x1E35A7BD, 2654435761, np.uint64(889523592379)
_SHORT_BITS, _LONG_BITS = 13, 12  # of the hashes of LZ4: of four bytes in short blocks, or of five
_SHORT_BLOCK = (1 << 16) + 11  # bytes of content
_LZ4_LEAST, _LZ4_LAST = 13, 5  # bytes of the shortest block with a match, and after the last match
_SNAPPY_MARGIN, _LZ4_MARGIN = 15, 11  # bytes before the end, from which on no match begins
_STEPS, _LEAST_STEPS = 16, 1 << 16  # bytes that may be looked at for each byte of content, and for all

# Entries of a state: the hashes' bits, and how they are computed; the steps that may still be taken.
BITS, KIND, STEPS = range(3)
FOUR, FIVE = BY_SIZE + 1, BY_SIZE + 2  # values of KIND, besides those of HASHED


class Matcher(NamedTuple):
    """The positions of hashes in a content."""

    content: np.ndarray  # uint8 [n]
    settings: np.ndarray  # int64 [5]
    table: np.ndarray  # int32 [2^15]: the last position of each hash, or the first position there may be
    state: np.ndarray  # int64 [3]


def matcher(content: np.ndarray, settings: np.ndarray) -> Matcher:
    """Return a matcher at the start of a content."""
    steps = _STEPS * content.size + _LEAST_STEPS
    return Matcher(content, settings, np.zeros(1 << _MOST_BITS, np.int32), np.array([0, 0, steps], np.int64))


@part
def start_part(m, begin, end):
    """Prepare for the part of a content between two positions."""
    if m.settings[FORMAT] == SNAPPY:
        kind = m.settings[HASHED]
        most = 14 if kind in (HIGH, LOW_OF_14, CRC_OF_14) else 15
        bits = np.int64(_LEAST_BITS)
        while bits < most and 1 << bits < end - begin:
            bits += 1
        m.state[BITS], m.state[KIND] = bits, kind
    elif m.settings[LINKED] or end - begin >= _SHORT_BLOCK:
        m.state[BITS], m.state[KIND] = _LONG_BITS, FIVE
    else:
        m.state[BITS], m.state[KIND] = _SHORT_BITS, FOUR
    if begin == 0 or not m.settings[LINKED]:
        for k in range(1 << m.state[BITS]):
            m.table[k] = begin


@inline
def _word(content, p):
    low = np.int64(content[p]) | np.int64(content[p + 1]) << 8
    return low | np.int64(content[p + 2]) << 16 | np.int64(content[p + 3]) << 24


@inline
def _hash(m, p):
    """Return the hash of the bytes at a position, at least five bytes before the end."""
    word, bits, kind = _word(m.content, p), m.state[BITS], m.state[KIND]
    if kind == FIVE:
        long = np.uint64(word | np.int64(m.content[p + 4]) << 32) << np.uint64(24)
        return np.int64(long * _LONG_FACTOR >> np.uint64(64 - _LONG_BITS))
    if kind == FOUR:
        return (word * _LZ4_FACTOR & 0xFFFFFFFF) >> 32 - _SHORT_BITS
    mask = (1 << bits) - 1
    if kind >= CRC_OF_14:
        word ^= mask << 1
        for _ in range(4):
            word = CRC[word & 255] ^ word >> 8
        return word >> 1 & mask
    high = word * _SNAPPY_FACTOR & 0xFFFFFFFF
    return high >> 32 - bits if kind == HIGH else high >> (18 if kind == LOW_OF_14 else 17) & mask


@inline
def _is_match(m, p, q):
    """Return whether a match at p may begin at an earlier position q."""
    distance = p - q
    return 0 < distance <= MOST_DISTANCE and _word(m.content, p) == _word(m.content, q)


@inline
def _whole(m, p, place, q, begin, end):
    """Return the token at p whose match was found at `place`, and begins at q.

    Returns its literals, length and distance. The match is extended forwards, in LZ4 also backwards.
    """
    distance, last = place - q, end
    if m.settings[FORMAT] == LZ4:
        last = end - _LZ4_LAST
        low = 0 if m.settings[LINKED] else begin
        while place > p and place - distance > low and m.content[place - 1] == m.content[place - 1 - distance]:
            place -= 1
    stop = place + LEAST_MATCH
    while stop < last and m.content[stop] == m.content[stop - distance]:
        stop += 1
    m.state[STEPS] -= (stop - place) >> 3
    return place - p, stop - place, distance


@part
def predict(m, p, begin, end):
    """Predict the token at position p of a part.

    Returns its literals, its length or 0 if it is the last one, and its distance.
    """
    is_lz4 = m.settings[FORMAT] == LZ4
    limit = end - (_LZ4_MARGIN if is_lz4 else _SNAPPY_MARGIN)
    if p > begin:
        if p >= limit:
            return end - p, np.int64(0), np.int64(0)
        back = p - (2 if is_lz4 else 1)
        m.table[_hash(m, back)] = back
        h = _hash(m, p)
        q = np.int64(m.table[h])
        m.table[h] = p
        if _is_match(m, p, q):
            return _whole(m, p, p, q, begin, end)
    elif is_lz4 and end - begin >= _LZ4_LEAST:
        m.table[_hash(m, begin)] = begin
    place, looks, step = p + 1, np.int64(64 if is_lz4 else 32), np.int64(1)
    while place + step <= limit:
        h = _hash(m, place)
        q = np.int64(m.table[h])
        m.table[h] = place
        m.state[STEPS] -= 1
        if _is_match(m, place, q):
            return _whole(m, p, place, q, begin, end)
        place += step
        if is_lz4:
            step = looks >> 6
            looks += 1
        else:
            looks += step
            step = looks >> 5
    return end - p, np.int64(0), np.int64(0)
