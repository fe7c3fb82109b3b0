"""A vocabulary as a binary trie, in which choosing a token is a sequence of binary decisions.

Tokens sorted by their bytes are neighbours if they begin alike, so every node is an interval of leaves. At a node the
decision is whether the token stops here, or the next bit of its next byte. The probability of a decision is the share
of the frequencies of its leaves.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from squeeze.numerics import frequencies
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.logistic import LOGIT_BITS, clamp_logit

STOP = 8  # the shift of a decision to stop or to go on
FREQUENCY_BITS = 40  # the most probable leaf counts 2^40
_PRECISION = 24  # fractional bits of a logarithm
_STEPS = 12  # bits of the mantissa that the table resolves


class Trie(NamedTuple):
    """The inner nodes of a trie in the order of a walk from the root. A child is a node, or ~leaf."""

    low: np.ndarray  # int32: first leaf of a node
    middle: np.ndarray  # first leaf of its second child
    high: np.ndarray  # leaf after its last
    depth: np.ndarray  # bytes before the one decided
    shift: np.ndarray  # place of the bit decided, 7 to 0, or STOP: the first child stops, the second goes on
    children: np.ndarray  # int32 [nodes, 2]
    offsets: np.ndarray  # int64 [leaves + 1]: where a leaf's bytes begin in `spelling`
    spelling: np.ndarray  # uint8
    decisions: np.ndarray  # int32 [leaves]: nodes on the path to a leaf


def build(leaves: Sequence[bytes]) -> Trie:
    """Build the trie of distinct, non-empty byte strings in sorted order."""
    count = len(leaves)
    offsets = np.concatenate([[0], np.cumsum([len(leaf) for leaf in leaves])]).astype(np.int64)
    nodes = max(count - 1, 0)
    low, middle, high, depth, shift = np.zeros((5, nodes), np.int32)
    trie = Trie(
        *(low, middle, high, depth, shift),
        children=np.zeros((nodes, 2), np.int32),
        offsets=offsets,
        spelling=np.frombuffer(b"".join(leaves), np.uint8).copy(),
        decisions=np.zeros(count, np.int32),
    )
    if nodes:
        _fill(trie, np.zeros((2 * count, 6), np.int64))
    return trie


@kernel
def _fill(trie, stack):
    """Fill the nodes from the root. A stack entry is an interval, the next decision, the parent and side, and the
    level.
    """
    count, nodes = trie.offsets.size - 1, 0
    stack[0, 1], stack[0, 3], stack[0, 4] = count, STOP, -1
    size = 1
    while size > 0:
        size -= 1
        low, high, depth, shift, parent = stack[size, 0], stack[size, 1], stack[size, 2], stack[size, 3], stack[size, 4]
        level = stack[size, 5]
        node = ~low
        if high - low == 1:
            trie.decisions[low] = level
        else:
            middle = _split(trie, low, high, depth, shift)
            while middle in (low, high):
                depth, shift = _following(depth, shift)
                middle = _split(trie, low, high, depth, shift)
            node = nodes
            nodes += 1
            trie.low[node], trie.middle[node], trie.high[node] = low, middle, high
            trie.depth[node], trie.shift[node] = depth, shift
            depth, shift = _following(depth, shift)
            for begin, end, side in ((middle, high, 1), (low, middle, 0)):
                stack[size, 0], stack[size, 1], stack[size, 2], stack[size, 3] = begin, end, depth, shift
                stack[size, 4], stack[size, 5] = 2 * node + side, level + 1
                size += 1
        if parent >= 0:
            trie.children[parent >> 1, parent & 1] = node


@inline
def _following(depth, shift):
    if shift == 0:
        return depth + 1, STOP
    return depth, shift - 1


@inline
def _split(trie, low, high, depth, shift):
    """Return the first leaf of the interval that goes on, or whose bit is set."""
    if shift == STOP:
        return low + 1 if trie.offsets[low + 1] - trie.offsets[low] == depth else low
    begin, end = low, high
    while begin < end:
        middle = (begin + end) >> 1
        if (trie.spelling[trie.offsets[middle] + depth] >> shift) & 1:
            end = middle
        else:
            begin = middle + 1
    return begin


def _logarithm_table() -> np.ndarray:
    """Return int64 [4097]: ln(1 + i / 4096) with _PRECISION fractional bits, computed in integers."""
    one, table, total = 1 << 96, np.zeros((1 << _STEPS) + 1, np.int64), 0
    for i in range(1, (1 << _STEPS) + 1):
        n = 2 * ((1 << _STEPS) + i) - 1  # ln(m / (m - 1)) = 2 atanh(1 / (2m - 1))
        power, k = one // n, 1
        while power:
            total += 2 * (power // k)
            power //= n * n
            k += 2
        table[i] = total >> (96 - _PRECISION)
    return table


_LOGARITHM = _logarithm_table()
_LN2 = np.int64(_LOGARITHM[-1])
FIRST_CHOICE = np.int64(FREQUENCY_BITS) * _LN2  # the logarithm of the most probable leaf's count


@inline
def logarithm(x):
    """Return ln of a positive integer below 2^63 with 24 fractional bits."""
    bits = np.float64(x).view(np.int64)
    exponent = (bits >> 52) - 1023
    i = (bits >> (52 - _STEPS)) & ((1 << _STEPS) - 1)
    fraction = (bits >> (36 - _STEPS)) & 0xFFFF
    return exponent * _LN2 + _LOGARITHM[i] + (((_LOGARITHM[i + 1] - _LOGARITHM[i]) * fraction) >> 16)


@inline
def logit_of(trie, cdf, r, node):
    """Return the Q12 logit that the decision of a node is a one, from the frequencies of its leaves in row r."""
    low, middle = frequencies.before(cdf, r, trie.low[node]), frequencies.before(cdf, r, trie.middle[node])
    high = frequencies.before(cdf, r, trie.high[node])
    difference = logarithm(np.int64(high - middle)) - logarithm(np.int64(middle - low))
    return clamp_logit(difference >> (_PRECISION - LOGIT_BITS))
