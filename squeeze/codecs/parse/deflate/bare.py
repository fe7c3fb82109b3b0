"""Finding deflate streams without a header: each byte is tried as the start of a block with codes of its own.

Few bytes pass. The code of code lengths must be complete, and all code lengths must be there. The codes of literals and
distances must be complete, too, and a block must be able to end.
"""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.deflate import layout
from squeeze.numerics.jit import inline, kernel, part

__all__ = ["find"]

_LEAST_SIZE = 64  # bytes that a stream has at least
_MOST = 1 << 12  # places that are found at a time
_FULL = 1 << 15  # all codes of up to 15 bits
_SHORT = 1 << 7  # all codes of up to 7 bits
_LEAST_LITERALS = 8  # literals and lengths that have a code


def find(data: np.ndarray, start: int) -> np.ndarray:
    """Return the next places from `start` on where a block with codes of its own may begin, int64.

    Args:
        data: uint8.
        start: the first place to look at.
    """
    sizes = layout.REPEAT_CODES, 8, layout.REPEAT_CODES, layout.USED_LITERALS + layout.DISTANCES
    places = np.zeros(_MOST, np.int64)
    return places[: _find(data, start, places, _Work(*(np.zeros(size, np.int64) for size in sizes)))]


class _Work(NamedTuple):
    """Room for the code of code lengths and for the code lengths of a block, int64."""

    own: np.ndarray  # [symbols]: code lengths of code lengths
    counts: np.ndarray  # [8]: codes of each length
    symbols: np.ndarray  # of the codes in order
    lengths: np.ndarray  # code lengths of literals, and those of distances behind them


@inline
def _bits(data, bit):
    """Return at least 25 bits from a place on that is at least 4 bytes before the end."""
    start = bit >> 3
    value = np.int64(data[start]) | np.int64(data[start + 1]) << 8
    value |= np.int64(data[start + 2]) << 16 | np.int64(data[start + 3]) << 24
    return value >> (bit & 7)


@inline
def _has_complete_code(data, place, count):
    """Return whether the code of code lengths at a place is complete."""
    left, bit = _SHORT, 8 * place + 17
    for _ in range(count):
        length = _bits(data, bit) & 7
        if length:
            left -= _SHORT >> length
        bit += 3
    return left == 0


@part
def _symbol(data, bit, counts, symbols):
    """Return the symbol of a code at a place, and its bits, by the number of codes of each length."""
    code, first, index, value = np.int64(0), np.int64(0), np.int64(0), _bits(data, bit)
    for length in range(1, 8):
        code |= value >> (length - 1) & 1
        if code - first < counts[length]:
            return symbols[index + code - first], length
        index += counts[length]
        first = (first + counts[length]) << 1
        code <<= 1
    return np.int64(-1), 0


@part
def _is_block(data, place, w):
    """Return whether the codes of a block are at a place."""
    own, counts, symbols, lengths = w.own, w.counts, w.symbols, w.lengths
    own[:], counts[:] = 0, 0
    header = _bits(data, 8 * place)
    literals, distances, repeats = 257 + (header >> 3 & 31), 1 + (header >> 8 & 31), 4 + (header >> 13 & 15)
    bit = 8 * place + 17
    for k in range(repeats):
        own[layout.REPEAT_ORDER[k]] = _bits(data, bit) & 7
        bit += 3
    at = 0
    for length in range(1, 8):
        for symbol in range(19):
            if own[symbol] == length:
                symbols[at] = symbol
                counts[length] += 1
                at += 1
    done, total = 0, literals + distances
    while done < total:
        if (bit >> 3) + 8 > data.size:
            return False
        symbol, used = _symbol(data, bit, counts, symbols)
        bit += used
        count, value = 1, symbol
        if symbol < 0 or (symbol == 16 and done == 0):
            return False
        if symbol > 15:
            width = 2 if symbol == 16 else 3 if symbol == 17 else 7
            count = (_bits(data, bit) & ((1 << width) - 1)) + (11 if symbol == 18 else 3)
            value = lengths[done - 1] if symbol == 16 else 0
            bit += width
        if done + count > total:
            return False
        for k in range(done, done + count):
            lengths[k] = value
        done += count
    return _are_complete(lengths, literals, distances)


@inline
def _are_complete(lengths, literals, distances):
    """Return whether code lengths of literals are complete, and those of distances, or these are at most one."""
    left, used = _FULL, 0
    for k in range(literals):
        if lengths[k]:
            left -= _FULL >> lengths[k]
            used += 1
    if left != 0 or used < _LEAST_LITERALS or lengths[layout.END_OF_BLOCK] == 0:
        return False
    left, used = _FULL, 0
    for k in range(literals, literals + distances):
        if lengths[k]:
            left -= _FULL >> lengths[k]
            used += 1
    return left == 0 or used <= 1


@kernel
def _find(data, start, places, work):
    """Write places where a block may begin, and return their number."""
    count = 0
    for place in range(start, data.size - _LEAST_SIZE):
        byte = data[place]
        if byte >> 1 & 3 != layout.DYNAMIC or byte >> 3 > 29 or data[place + 1] & 31 > 29:
            continue
        repeats = 4 + (_bits(data, 8 * place) >> 13 & 15)
        if _has_complete_code(data, place, repeats) and _is_block(data, place, work):
            places[count] = place
            count += 1
            if count == places.size:
                break
    return count
