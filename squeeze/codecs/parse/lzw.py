"""LZW as GIF has it (Welch, "A technique for high-performance data compression", 1984; CompuServe, GIF89a, appendix F).

A stream is a list of codes of growing width. Encoders take the longest known string for each code, and
differ in when they clear the table. So a stream is its symbols, and the codes that differ from those of an encoder that
clears its table whenever it has a certain number of codes.
"""

from typing import Any, NamedTuple

import numpy as np

from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import layout
from squeeze.numerics.jit import inline, kernel

__all__ = ["NEVER", "Codes", "Differences", "choose", "compare", "decode", "to_bytes"]

MOST_CODES = 1 << 12
NEVER = MOST_CODES + 1  # codes of the table of an encoder that does not clear it
_BUCKET_BITS = 14  # log2 of the buckets of an encoder's table
_MULTIPLY = 0x9E3779B1  # of a key below 2^20


class Codes(NamedTuple):
    """The codes of a stream.

    Attributes:
        codes: int64 [n], clear codes and the end included.
        symbols: uint8, what they stand for.
        used: bytes of the stream that were read.
        clears_at: codes of the table when it is cleared for the first time after its start, or NEVER.
    """

    codes: np.ndarray
    symbols: np.ndarray
    used: int
    clears_at: int


def decode(stream: np.ndarray, bits: int, most: int, high: bool = False) -> Codes | None:
    """Read a stream up to its end code, or to the last whole code.

    Args:
        stream: uint8.
        bits: bits of a symbol, 1 to 8.
        most: symbols that it may have.
        high: whether high bits are first, and codes grow one code early, as in PDF.

    Returns:
        None if it is invalid or too long.
    """
    codes = np.zeros(8 * stream.size // (bits + 1) + 1, np.int64)
    size, used, clears_at = _measure(stream, bits, codes, most, np.ones(MOST_CODES, np.int64), high)
    if size < 0:
        return None
    symbols, codes = np.zeros(size, np.uint8), codes[: codes[-1]]
    _symbols(codes, bits, symbols, np.zeros(MOST_CODES, np.int64), np.ones(MOST_CODES, np.int64))
    return Codes(codes, symbols, used, clears_at)


class Differences(NamedTuple):
    """Codes that are not those of an encoder.

    Attributes:
        gaps: int64 [n], the codes before each, counted from the one after the last that differed.
        others: int64 [n], the codes. The last one is -1 if the stream ends without an end code.
    """

    gaps: np.ndarray
    others: np.ndarray


_STATE = layout.fields("following at last count number before")  # codes of the table, symbols, last code; codes, and
# differences, that were passed over; codes up to the last difference


class _Encoder(NamedTuple):
    """An encoder, the symbols that it codes, and codes that differ from its own; other arrays are int64."""

    state: Any  # a record of _STATE
    symbols: np.ndarray  # uint8
    codes: np.ndarray
    gaps: np.ndarray
    others: np.ndarray
    keys: np.ndarray  # [buckets]: the code of a string, and a symbol behind it; -1: none
    values: np.ndarray  # [buckets]: the code of both
    lengths: np.ndarray  # [MOST_CODES]: symbols of a code


def _encoder(symbols: np.ndarray, codes: np.ndarray, gaps: np.ndarray, others: np.ndarray) -> _Encoder:
    buckets = 1 << _BUCKET_BITS
    table = np.full(buckets, -1, np.int64), np.zeros(buckets, np.int64), np.ones(MOST_CODES, np.int64)
    return _Encoder(layout.record(_STATE, last=-1), symbols, codes, gaps, others, *table)


def compare(found: Codes, bits: int, most: int) -> Differences | None:
    """Return how the codes of a stream differ from an encoder's, or None if more than `most` do."""
    encoder = _encoder(found.symbols, found.codes, *np.zeros((2, most), np.int64))
    if not _walk(encoder, bits, found.clears_at, True):
        return None
    count = int(encoder.state["number"])
    return Differences(encoder.gaps[:count], encoder.others[:count])


def choose(symbols: np.ndarray, bits: int, clears_at: int, differences: Differences) -> np.ndarray:
    """Return the codes of symbols, int64.

    Args:
        symbols: uint8.
        bits: bits of a symbol, 1 to 8.
        clears_at: codes of the table when it is cleared, or NEVER.
        differences: from an encoder's codes.

    Raises:
        DamagedError: if they are impossible.
    """
    encoder = _encoder(symbols, np.zeros(2 * symbols.size + differences.gaps.size + 4, np.int64), *differences)
    is_possible = (1 << bits) + 2 < clears_at <= NEVER and not (symbols >> bits).any()
    if not (is_possible and _walk(encoder, bits, clears_at, False) and encoder.state["number"] == encoder.gaps.size):
        raise DamagedError("the codes of an image are impossible: the file is damaged")
    codes: np.ndarray = encoder.codes[: encoder.state["count"]]
    return codes


def to_bytes(codes: np.ndarray, bits: int, high: bool = False) -> np.ndarray:
    """Return the stream of codes, uint8, with zeros in the last byte after the last code; `high` as in `decode`."""
    stream = np.zeros(-(-12 * codes.size // 8) + 3, np.uint8)
    return stream[: (_pack(codes, bits, stream, high) + 7) >> 3]


@inline
def _wider(width, following):
    """Return the bits of codes after the table has grown to `following` codes."""
    return width + 1 if following == 1 << width and width < 12 else width


@kernel
def _measure(stream, bits, codes, most, lengths, high):
    """Read codes to `codes`, and their number to its last element; return (symbols, bytes read, clears_at).

    `lengths`, int64 [MOST_CODES], are the symbols of each code, ones at first.
    """
    clear, end = 1 << bits, (1 << bits) + 1
    width, following, before = bits + 1, end + 1, -1
    place, count, size, clears_at = np.int64(0), 0, np.int64(0), NEVER
    while place + width <= 8 * stream.size and count < codes.size - 1:
        value = np.int64(0)
        for k in range(3):
            byte = (place >> 3) + k
            value |= (np.int64(stream[byte]) if byte < stream.size else 0) << (16 - 8 * k if high else 8 * k)
        code = (value >> (24 - width - (place & 7) if high else place & 7)) & ((1 << width) - 1)
        place += width
        codes[count] = code
        count += 1
        if code == end:
            break
        if code == clear:
            if following > end + 1 and clears_at == NEVER:
                clears_at = following
            width, following, before = bits + 1, end + 1, -1
            continue
        if code > following or (code == following and (before < 0 or following == MOST_CODES)):
            return -1, 0, 0
        if before >= 0 and following < MOST_CODES:
            lengths[following] = lengths[before] + 1
            following += 1
            width = _wider(width, following + high)
        elif code >= following:
            return -1, 0, 0
        size += lengths[code]
        if size > most:
            return -1, 0, 0
        before = code
    codes[-1] = count
    return size, (place + 7) >> 3, clears_at


@kernel
def _symbols(codes, bits, symbols, starts, lengths):
    """Write the symbols of valid codes; `starts` and `lengths`, int64 [MOST_CODES], are those of each code."""
    clear, end = 1 << bits, (1 << bits) + 1
    following, before, begin, at = end + 1, np.int64(-1), np.int64(0), np.int64(0)
    for code in codes:
        if code == end:
            break
        if code == clear:
            following, before = end + 1, np.int64(-1)
            continue
        if before >= 0 and following < MOST_CODES:
            starts[following], lengths[following] = begin, lengths[before] + 1
            following += 1
        begin = at
        if code < clear:
            symbols[at] = code
        else:
            for k in range(lengths[code]):
                symbols[at + k] = symbols[starts[code] + k]
        at += lengths[code] if code > end else 1
        before = code
    return at


@inline
def _bucket(keys, key):
    """Return the bucket of a key, or the empty one where it belongs."""
    place = ((key * _MULTIPLY) >> (32 - _BUCKET_BITS)) & (keys.size - 1)
    while keys[place] >= 0 and keys[place] != key:
        place = (place + 1) & (keys.size - 1)
    return place


@inline
def _expected(w, clears_at, clear):
    """Return the next code of an encoder that clears its table at a size, and the length of its string."""
    s, symbols = w.state, w.symbols
    if s.count == 0 or s.following == clears_at:
        return np.int64(clear), np.int64(0)
    if s.at == symbols.size:
        return np.int64(clear + 1), np.int64(0)
    code, length = np.int64(symbols[s.at]), np.int64(1)
    while s.at + length < symbols.size:
        place = _bucket(w.keys, code << 8 | np.int64(symbols[s.at + length]))
        if w.keys[place] < 0:
            break
        code = w.values[place]
        length += 1
    return code, length


@inline
def _noted(w, expected):
    """Return the next code of the given ones, -1 after the last; note it if it is not the expected one."""
    s = w.state
    code = w.codes[s.count] if s.count < w.codes.size else np.int64(-1)
    if code != expected:
        if s.number == w.gaps.size:
            s.number = -1
            return np.int64(-1)
        w.gaps[s.number], w.others[s.number] = s.count - s.before, code
        s.number, s.before = s.number + 1, s.count + 1
    return code


@inline
def _chosen(w, expected):
    """Return the expected code, or the one that is noted instead of it."""
    s = w.state
    if s.number == w.gaps.size or w.gaps[s.number] != s.count - s.before:
        return expected
    s.number, s.before = s.number + 1, s.count + 1
    return w.others[s.number - 1]


@inline
def _learn(w, code, length):
    """Pass over the string of a code, and add it with the next symbol to the table; return whether that is possible."""
    s = w.state
    grows = s.last >= 0 and s.following < MOST_CODES
    if code > s.following - (not grows) or s.at + length > w.symbols.size:
        return False
    s.following += grows
    s.at += length
    s.last = code
    if s.following < MOST_CODES and s.at < w.symbols.size:
        w.lengths[s.following] = length + 1
        key = code << 8 | np.int64(w.symbols[s.at])
        place = _bucket(w.keys, key)
        if w.keys[place] < 0:
            w.keys[place], w.values[place] = key, s.following
    return True


@kernel
def _walk(w, bits, clears_at, comparing):
    """Choose the codes of symbols, or note where given codes differ from these.

    Args:
        w: The encoder.
        bits: Bits of a symbol.
        clears_at: Codes of the table when it is cleared.
        comparing: Whether codes are given and differences are noted, or the reverse.

    Returns:
        Whether the codes are possible, and there is room for all.
    """
    s, clear = w.state, 1 << bits
    s.following = clear + 2
    while True:
        expected, length = _expected(w, clears_at, clear)
        code = _noted(w, expected) if comparing else _chosen(w, expected)
        if code < 0:
            break
        if s.count == w.codes.size:
            return False
        w.codes[s.count] = code
        s.count += 1
        if code == clear + 1:
            break
        if code == clear:
            w.keys[:] = -1
            s.following, s.last = clear + 2, -1
            continue
        if code != expected:
            length = w.lengths[code] if code > clear else np.int64(1)
        if not _learn(w, code, length):
            return False
    return s.at == w.symbols.size and s.number >= 0


@kernel
def _pack(codes, bits, stream, high):
    """Write codes of growing width to zeros, and return their bits."""
    clear = 1 << bits
    width, following, has_last, place = bits + 1, clear + 2, False, np.int64(0)
    for code in codes:
        value = code << (24 - width - (place & 7) if high else place & 7)
        for k in range(3):
            stream[(place >> 3) + k] |= np.uint8((value >> (16 - 8 * k if high else 8 * k)) & 255)
        place += width
        if code == clear:
            width, following, has_last = bits + 1, clear + 2, False
        elif has_last and following < MOST_CODES:
            following += 1
            width = _wider(width, following + high)
        else:
            has_last = True
    return place
