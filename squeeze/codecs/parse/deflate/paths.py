"""The cheapest tokens from each position to the end of a block, for given costs of the symbols.

A token's excess is what it costs more than the cheapest one, the rest of the block included. Encoders that look for the
cheapest tokens use costs near those of the codes that they write, so they take tokens with little excess.
"""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.deflate import layout
from squeeze.codecs.parse.deflate.finder import FIRST, Finder, find, finder, forget
from squeeze.codecs.parse.deflate.matcher import STEPS
from squeeze.numerics.jit import inline, part

RANKED = 12  # tokens that are ranked by their excess
NEVER = 1 << 30  # cost of what is impossible
_AHEAD = 1 << 11  # positions that are looked at beyond those whose tokens are coded, unless the block ends
STOP, END = range(2)  # entries of a state: the position up to which costs hold, and the one where they are 0


class Paths(NamedTuple):
    """The costs of the symbols, and of the tokens from some positions on."""

    finder: Finder
    symbols: (
        np.ndarray
    )  # int64 [layout.FIRST_REPEAT_CODE]: bits of a literal, a length or a distance, with its extra bits
    rest: np.ndarray  # int64 [SPAN + 1]: bits of the cheapest tokens from each position on
    tokens: np.ndarray  # int64 [RANKED]: of a position, by their excess
    excess: np.ndarray  # int64 [RANKED]
    state: np.ndarray  # int64 [2]


def paths(content: np.ndarray, settings: np.ndarray, steps: np.ndarray, is_used: bool) -> Paths:
    """Return paths with the costs of the fixed codes, or without room if they are not used."""
    found = finder(content, settings, steps, is_used)
    sizes = found.ends.size, RANKED, RANKED, 2
    fixed = np.concatenate([layout.FIXED_LENGTHS, np.full(layout.DISTANCES, 5)]).astype(np.int64)
    fixed[layout.END_OF_BLOCK + 1 : layout.USED_LITERALS] += layout.LENGTH_EXTRA
    fixed[layout.FIRST_DISTANCE :] += layout.DISTANCE_EXTRA
    return Paths(found, fixed, *(np.zeros(size, np.int64) for size in sizes))


@part
def set_costs(x, codes, row, without):
    """Take the costs of symbols from the code lengths of a row; symbols without a code cost `without` bits."""
    for k in range(layout.FIRST_REPEAT_CODE):
        extra = 0
        if layout.END_OF_BLOCK < k < layout.USED_LITERALS:
            extra = layout.LENGTH_EXTRA[k - layout.END_OF_BLOCK - 1]
        elif k >= layout.FIRST_DISTANCE:
            extra = layout.DISTANCE_EXTRA[k - layout.FIRST_DISTANCE]
        bits = np.int64(codes[row, k])
        x.symbols[k] = bits + extra if bits else without + extra


@inline
def _distance_cost(x, distance):
    return x.symbols[layout.FIRST_DISTANCE + layout.DISTANCE_SYMBOL[distance]]


@inline
def _length_cost(x, length):
    return x.symbols[layout.END_OF_BLOCK + 1 + layout.LENGTH_SYMBOL[length]]


@part
def look(x, p, block_end):
    """Find the matches from position p on, as far as there is room."""
    f = x.finder
    forget(f, p)
    end = find(f, block_end)
    x.state[END] = min(end, block_end)
    x.state[STOP] = x.state[END]
    if end < block_end:
        x.state[STOP] = end - min(_AHEAD, (end - p) // 2)


@part
def measure(x, p):
    """Compute the costs from each position from p on to the end."""
    f, rest, end = x.finder, x.rest, x.state[END]
    rest[end - p] = 0
    for q in range(end - 1, p - 1, -1):
        best = x.symbols[f.content[q]] + rest[q + 1 - p]
        length = layout.LEAST_MATCH
        for k in range(f.ends[q - p], f.ends[q + 1 - p]):
            match = np.int64(f.matches[k])
            bits = _distance_cost(x, match & 0xFFFF)
            last = min(match >> 16, end - q)
            while length <= last:
                best = min(best, bits + _length_cost(x, length) + rest[q + length - p])
                length += 1
        rest[q - p] = min(best, NEVER)


@inline
def _add(x, token, bits, count):
    """Add a token to the ranked ones: behind those with the same cost."""
    k = min(count, RANKED - 1)
    if count == RANKED and x.excess[k] <= bits:
        return count
    while k > 0 and x.excess[k - 1] > bits:
        x.tokens[k], x.excess[k] = x.tokens[k - 1], x.excess[k - 1]
        k -= 1
    x.tokens[k], x.excess[k] = token, bits
    return min(count + 1, RANKED)


@part
def rank(x, q):
    """Rank the tokens at a position by their excess, and return how many are possible."""
    f, rest, end, p = x.finder, x.rest, x.state[END], x.finder.state[FIRST]
    count, bits = 0, x.symbols[f.content[q]] + rest[q + 1 - p]
    if bits < NEVER:
        count = _add(x, 0, bits, count)
    length = layout.LEAST_MATCH
    for k in range(f.ends[q - p], f.ends[q + 1 - p]):
        match = np.int64(f.matches[k])
        of_distance, last = _distance_cost(x, match & 0xFFFF), min(match >> 16, end - q)
        while length <= last:
            bits = of_distance + _length_cost(x, length) + rest[q + length - p]
            if bits < NEVER:
                count = _add(x, length << 16 | (match & 0xFFFF), bits, count)
            length += 1
    f.steps[STEPS] -= length >> 3
    least = x.excess[0]
    for k in range(count):
        x.excess[k] -= least
    return count


@part
def count_symbols(x, p, counts):
    """Count the symbols of the cheapest tokens from p on."""
    for k in range(layout.CODES):
        counts[k] = 0
    while p < x.state[END]:
        token = x.tokens[0] if rank(x, p) else np.int64(0)
        length = token >> 16
        if length:
            counts[layout.END_OF_BLOCK + 1 + layout.LENGTH_SYMBOL[length]] += 1
            counts[layout.FIRST_DISTANCE + layout.DISTANCE_SYMBOL[token & 0xFFFF]] += 1
        else:
            counts[x.finder.content[p]] += 1
        p += max(length, 1)
    counts[layout.END_OF_BLOCK] = 1
