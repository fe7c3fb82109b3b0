"""All matches that are worth a choice: for each length the nearest one, from binary trees of a stream's past.

Each hash has a tree that is sorted by what follows, with the latest position at its root. Encoders that look for the
cheapest tokens of a block find matches in this way or find the same ones in chains.
"""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.deflate.layout import LEAST_MATCH, MOST_MATCH
from squeeze.codecs.parse.deflate.matcher import CHAIN, NICE, RING, STEPS, WINDOW
from squeeze.numerics.jit import inline, part

SPAN = 1 << 15  # positions whose matches are remembered
_POOL = 1 << 19  # matches that are remembered
_HASH_BITS, _MULTIPLY = 16, 2654435761

# Entries of a state: the first position whose matches are remembered, the position behind the last one, and the
# position before which none is looked for.
FIRST, FOUND, QUIET = range(3)


class Finder(NamedTuple):
    """Binary trees over a stream's content, and the matches at some positions."""

    content: np.ndarray  # uint8 [n]
    settings: np.ndarray  # int64 [matcher.FIELDS]
    roots: np.ndarray  # int32 [hashes]: the last position of each hash, or -1
    sons: np.ndarray  # int32 [2 * RING]: of each position one with smaller bytes behind it and one with larger, or -1
    matches: np.ndarray  # uint32: length << 16 | distance, from short to long at each position
    ends: np.ndarray  # int64 [SPAN + 1]: matches before each position from FIRST on
    state: np.ndarray  # int64 [3]
    steps: np.ndarray  # int64, the state of a matcher, which has the steps that may still be taken


def finder(content: np.ndarray, settings: np.ndarray, steps: np.ndarray, is_used: bool) -> Finder:
    """Return a finder at the start of a content, or one without room if it is not used."""
    hashes, ring = (1 << _HASH_BITS, RING) if is_used else (1, 1)
    positions = max(min(SPAN, content.size), 1) if is_used else 1
    return Finder(
        content,
        settings,
        np.full(hashes, -1, np.int32),
        np.full(2 * ring, -1, np.int32),
        np.zeros(min(_POOL, MOST_MATCH * positions), np.uint32),
        np.zeros(positions + 1, np.int64),
        np.zeros(3, np.int64),
        steps,
    )


@inline
def _hash(content, p):
    """Return the hash of the three bytes at a position."""
    value = np.int64(content[p]) | np.int64(content[p + 1]) << 8 | np.int64(content[p + 2]) << 16
    return (value * _MULTIPLY & 0xFFFFFFFF) >> 32 - _HASH_BITS


@inline
def _same(content, p, q, k, most):
    """Return how many bytes at two positions are the same, at most `most`, if the first k are."""
    while k < most and content[p + k] == content[q + k]:
        k += 1
    return k


@part
def _insert(f, p, count):
    """Let a position join its tree, and return the number of matches with those that it has.

    The matches stand behind the first `count` ones, each longer than the one before.
    """
    content, sons = f.content, f.sons
    most, best = min(MOST_MATCH, content.size - p), LEAST_MATCH - 1
    if most < LEAST_MATCH:
        return count
    nice, h = min(f.settings[NICE], most), _hash(content, p)
    q, steps = np.int64(f.roots[h]), f.settings[CHAIN]
    f.roots[h] = p
    smaller, larger = 2 * (p & RING - 1), 2 * (p & RING - 1) + 1  # places of sons that are free
    left, right = 0, 0  # bytes that the last smaller and the last larger position share with p
    while q >= 0 and p - q <= f.settings[WINDOW] and steps > 0 and f.steps[STEPS] >= 0:
        known, node = min(left, right), 2 * (q & RING - 1)
        length = _same(content, p, q, known, most)
        f.steps[STEPS] -= 1 + (length - known >> 3)
        steps -= 1
        if length > best:
            best = length
            f.matches[count] = np.uint32(length << 16 | p - q)
            count += 1
        if length >= nice:
            sons[smaller], sons[larger] = sons[node], sons[node + 1]
            return count
        if content[q + length] < content[p + length]:
            sons[smaller] = q
            left, smaller, q = length, node + 1, np.int64(sons[node + 1])
        else:
            sons[larger] = q
            right, larger, q = length, node, np.int64(sons[node])
    sons[smaller] = sons[larger] = -1
    return count


@part
def find(f, end):
    """Find the matches of the positions up to `end`, or of fewer if there is no more room. Return the end of them."""
    state, ends = f.state, f.ends
    p, first = state[FOUND], state[FIRST]
    while p < end and p - first < ends.size - 1 and ends[p - first] + MOST_MATCH <= f.matches.size:
        before = ends[p - first]
        count = _insert(f, p, before)
        if p < state[QUIET]:
            count = before
        elif count > before:
            length = np.int64(f.matches[count - 1]) >> 16
            if MOST_MATCH > f.settings[NICE] <= length:
                state[QUIET] = p + length
        p += 1
        ends[p - first] = count
    state[FOUND] = p
    return p


@part
def forget(f, start):
    """Forget the matches of the positions before `start`, and pass over those that were not found."""
    state, ends = f.state, f.ends
    if start >= state[FOUND]:
        for p in range(state[FOUND], start):
            _insert(f, p, 0)
        state[FIRST] = state[FOUND] = start
        ends[0] = 0
        return
    gone = start - state[FIRST]
    before = ends[gone]
    for k in range(before, ends[state[FOUND] - state[FIRST]]):
        f.matches[k - before] = f.matches[k]
    for k in range(state[FOUND] - start + 1):
        ends[k] = ends[k + gone] - before
    state[FIRST] = start
