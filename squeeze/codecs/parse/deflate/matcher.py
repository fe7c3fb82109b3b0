"""Predictions of what zlib writes next: hash chains, greedy or lazy matching, with the limits of each level.

The position and the tokens before it are those of the stream, so that after a choice of another encoder the prediction
goes on from there. See deflate.c of zlib, and preflate (Steinke, 2018), which predicts tokens from the stream's own
past in this way.
"""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.deflate.layout import LEAST_MATCH, MOST_DISTANCE, MOST_MATCH
from squeeze.numerics.jit import inline, part

RING = 2 * MOST_DISTANCE  # positions whose chains are remembered
NOTHING, LAZY, MATCH = 0, 1, 2  # predictions: a literal without a match, one before a longer match, a match
MARGIN = 262  # of a window, that zlib does not look back into
_LONG_HASH, _MULTIPLY = 16, 2654435761  # bits of a hash of four bytes, which zlib-ng takes so
_LOW_FACTOR, _HIGH_FACTOR = 0xE84B - 0x10000, 0x97B1 - 0x10000  # of a hash of ISA-L
_TOO_FAR = 4096  # distance beyond which lazy matching takes no match of three bytes
_SHORT = 5  # longest match that the strategy for filtered data does not take

# Entries of a configuration. FIRST is the position that matches must lie behind: zlib takes 0 for no position.
# Of long matches, HEAD positions behind the first join, and TAIL at the end.
SPEED, GOOD, LAZIEST, NICE, CHAIN, WINDOW, HASH_BITS, FILTERED, BLOCK, FIRST, JOINED, HASHED, HEAD, TAIL = range(14)
FIELDS = 14
GREEDY, LAZY_MATCHING, LITERALS_ONLY, RUNS, CHEAPEST, MEDIUM = range(6)  # values of SPEED
THREE, FOUR, BY_CRC, BY_PRODUCTS = range(4)  # values of HASHED: the bytes that are hashed; four of them by CRC-32C

# Entries of a state: the next position that joins the chains, the match that a literal put off and where the next one
# was looked for, and the steps that may still be taken.
NEXT, PLACE, LENGTH, DISTANCE, STEPS = range(5)


class Matcher(NamedTuple):
    """Hash chains over a stream's content."""

    content: np.ndarray  # uint8 [n]
    settings: np.ndarray  # int64 [FIELDS]
    heads: np.ndarray  # int32 [hashes]: the last position of each hash, or -1
    chains: np.ndarray  # int32 [RING]: the position before, of the same hash, or -1
    state: np.ndarray  # int64 [5]


def matcher(content: np.ndarray, settings: np.ndarray, steps: int) -> Matcher:
    """Return a matcher at the start of a content, which may compare `steps` candidates."""
    bits = _LONG_HASH if settings[HASHED] == FOUR else int(settings[HASH_BITS])
    heads = np.full(1 << bits, -1, np.int32)
    state = np.array([0, -1, 0, 0, steps], np.int64)
    return Matcher(content, settings, heads, np.full(RING, -1, np.int32), state)


def _crc_table() -> np.ndarray:
    """Return the remainders of each byte for CRC-32C, int64 [256]."""
    found = np.arange(256, dtype=np.int64)
    for _ in range(8):
        found = found >> 1 ^ np.where(found & 1, 0x82F63B78, 0)
    return found


CRC = _crc_table()


@inline
def _least(m):
    """Return the bytes that are hashed, which are the shortest match that is predicted."""
    return 3 if m.settings[HASHED] == THREE else 4


@inline
def _products(value):
    """Return the sum of products of the two signed halves of 32 bits, modulo 2^32."""
    low, high = value & 0xFFFF, value >> 16 & 0xFFFF
    return ((low ^ 0x8000) - 0x8000) * _LOW_FACTOR + ((high ^ 0x8000) - 0x8000) * _HIGH_FACTOR & 0xFFFFFFFF


@inline
def _hash(m, p):
    """Return the hash of the bytes at a position."""
    bits, hashed = m.settings[HASH_BITS], m.settings[HASHED]
    x, y, z = np.int64(m.content[p]), np.int64(m.content[p + 1]), np.int64(m.content[p + 2])
    if hashed == THREE:
        shift = (bits + 2) // 3
        return (x << 2 * shift ^ y << shift ^ z) & ((1 << bits) - 1)
    w = np.int64(m.content[p + 3])
    if hashed == FOUR:
        return ((x | y << 8 | z << 16 | w << 24) * _MULTIPLY & 0xFFFFFFFF) >> 32 - _LONG_HASH
    if hashed == BY_PRODUCTS:
        return _products(_products(x | y << 8 | z << 16 | w << 24)) & ((1 << bits) - 1)
    x = CRC[x]
    y = x >> 8 ^ CRC[(x ^ y) & 255]
    z = y >> 8 ^ CRC[(y ^ z) & 255]
    return (z >> 8 ^ CRC[(z ^ w) & 255]) & ((1 << bits) - 1)


@inline
def _insert(m, end):
    """Let all positions before `end` join the chains."""
    last = min(end, m.content.size - _least(m) + 1)
    for p in range(m.state[NEXT], last):
        h = _hash(m, p)
        m.chains[p & (RING - 1)] = m.heads[h]
        m.heads[h] = p
    m.state[NEXT] = max(m.state[NEXT], end)


@inline
def _same(content, p, q, most):
    """Return how many bytes at two positions are the same, at most `most`."""
    k = 0
    while k < most and content[p + k] == content[q + k]:
        k += 1
    return k


@part
def _longest(m, p, least):
    """Search for a match that is longer than `least`.

    Returns its length and distance, or (least, 0). The position must have joined the chains.
    """
    content, settings = m.content, m.settings
    most = min(MOST_MATCH, content.size - p)
    best, distance = least, 0
    if most < _least(m):
        return best, distance
    reach = settings[WINDOW] - MARGIN if settings[FIRST] == 0 else settings[WINDOW]
    nice, steps = min(settings[NICE], most), settings[CHAIN]
    if least >= settings[GOOD]:
        steps >>= 2
    q = np.int64(m.chains[p & (RING - 1)])
    if q <= settings[FIRST] or p - q > reach:
        return best, distance
    while True:
        m.state[STEPS] -= 1
        if best < most and content[q + best] == content[p + best] and content[q] == content[p]:
            length = _same(content, p, q, most)
            m.state[STEPS] -= length >> 3
            if length > best:
                best, distance = length, p - q
                if length >= nice:
                    break
        q = np.int64(m.chains[q & (RING - 1)])
        steps -= 1
        if q <= settings[FIRST] or p - q >= reach or steps == 0 or m.state[STEPS] < 0:
            break
    return best, distance


@inline
def _worth(m, length, distance):
    """Return whether lazy matching takes a match."""
    if length < LEAST_MATCH or distance == 0:
        return False
    if m.settings[FIRST] != 0:
        return True
    return not (length <= _SHORT and (m.settings[FILTERED] or (length == LEAST_MATCH and distance > _TOO_FAR)))


@inline
def _run(content, p):
    """Return how often the byte before a position follows, at most as often as a match is long."""
    most = min(MOST_MATCH, content.size - p)
    return _same(content, p, p - 1, most) if p else 0


@inline
def _join(m, p, length):
    """Let a match join the chains, if it is long only some of its positions."""
    if length > m.settings[LAZIEST]:
        _insert(m, p + 1 + min(m.settings[HEAD], length - 1))
        m.state[NEXT] = max(m.state[NEXT], p + length - m.settings[TAIL])
    _insert(m, p + length)


@part
def _medium(m, p):
    """Predict as zlib-ng's medium strategy: the match behind this one is moved to the left if it then covers all of it.

    A single byte of this one may remain, which is a literal.
    """
    state, content = m.state, m.content
    if state[PLACE] == p:
        length, distance = state[LENGTH], state[DISTANCE]
    else:
        length, distance = _longest(m, p, _least(m) - 1)
    if distance == 0:
        return NOTHING, 0, 0
    _join(m, p, length)
    q = p + length
    if content.size - p <= MARGIN:
        return MATCH, length, distance
    _insert(m, q + 1)
    longer, further = _longest(m, q, _least(m) - 1)
    moved = 0
    while further and moved < length and longer + moved < MOST_MATCH - 2 and q - further - moved > 1:
        if content[q - 1 - moved] != content[q - 1 - moved - further]:
            break
        moved += 1
    moved = moved if moved >= length - 1 else 0
    state[PLACE], state[LENGTH], state[DISTANCE] = q - moved, longer + moved, further
    if moved == length:
        return MATCH, longer + moved, further
    return (LAZY if moved else MATCH), length, distance


@part
def predict(m, p):
    """Return what comes at position p: NOTHING, LAZY or MATCH, and the length and distance of the match there."""
    state, settings = m.state, m.settings
    if settings[SPEED] == LITERALS_ONLY:
        return NOTHING, 0, 0
    _insert(m, p + 1)
    if settings[SPEED] == RUNS:
        length = _run(m.content, p)
        return (MATCH, length, 1) if length >= LEAST_MATCH else (NOTHING, 0, 0)
    if settings[SPEED] == MEDIUM:
        return _medium(m, p)
    if settings[SPEED] == LAZY_MATCHING and state[PLACE] == p:
        length, distance = state[LENGTH], state[DISTANCE]
    else:
        length, distance = _longest(m, p, _least(m) - 1)
        if settings[SPEED] == GREEDY:
            return (MATCH, length, distance) if distance else (NOTHING, 0, 0)
        if not _worth(m, length, distance):
            length, distance = 0, 0
    if distance == 0:
        return NOTHING, 0, 0
    if length < settings[LAZIEST]:
        _insert(m, p + 2)
        longer, further = _longest(m, p + 1, length)
        if longer > length and _worth(m, longer, further):
            state[PLACE], state[LENGTH], state[DISTANCE] = p + 1, longer, further
            return LAZY, length, distance
    return MATCH, length, distance


@inline
def advance(m, p, length):
    """Go past a token: a literal if `length` is 0. Only lazy matching lets all positions of long matches join."""
    if m.settings[SPEED] == LITERALS_ONLY:
        return
    if m.settings[SPEED] == LAZY_MATCHING or m.settings[SPEED] == RUNS:
        _insert(m, p + max(length, 1))
    else:
        _join(m, p, max(length, 1))


@inline
def _before(m, p):
    """Return the nearest candidate of a position, or -1; the last positions have no hash."""
    return np.int64(m.chains[p & (RING - 1)]) if p + _least(m) <= m.content.size else np.int64(-1)


@part
def rank_of(m, p, length, distance, most):
    """Return the number of candidates nearer than a match that are as long, or `most` if it is not among the first."""
    content, reach = m.content, m.settings[WINDOW]
    q, rank = _before(m, p), 0
    while q >= 0 and p - q <= reach and p - q <= distance and rank < most and m.state[STEPS] >= 0:
        m.state[STEPS] -= 1
        if _same(content, p, q, length) == length:
            if p - q == distance:
                return rank
            rank += 1
        q = np.int64(m.chains[q & (RING - 1)])
    return most


@part
def of_rank(m, p, length, rank):
    """Return the distance of the match that has this rank, or 0."""
    content, reach = m.content, m.settings[WINDOW]
    q = _before(m, p)
    while q >= 0 and p - q <= reach and m.state[STEPS] >= 0:
        m.state[STEPS] -= 1
        if _same(content, p, q, length) == length:
            if rank == 0:
                return p - q
            rank -= 1
        q = np.int64(m.chains[q & (RING - 1)])
    return 0
