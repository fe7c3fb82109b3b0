"""The Huffman codes that bzip2 chooses for a block: two to six tables, each for some of the groups of 50 symbols."""

import numpy as np

from squeeze.numerics.jit import inline, kernel

__all__ = ["GROUP", "MOST_SYMBOLS", "MOST_TABLES", "choose_tables", "tables_of"]

GROUP = 50  # symbols that are coded by one table
MOST_TABLES, MOST_SYMBOLS = 6, 258
_LONGEST = 17  # bits of a code
_ROUNDS = 4
_NEVER = 15  # bits that a symbol counts as at first, in tables that are not for it
_BOUNDS = (200, 600, 1200, 2400)  # symbols of a block from which on it has another table


def tables_of(count: int) -> int:
    """Return how many tables a block of `count` symbols has."""
    return 2 + sum(count >= bound for bound in _BOUNDS)


@inline
def _set_first(lengths, totals, tables, alphabet, count):
    """Give each table a range of symbols that occur about equally often."""
    begin, rest = 0, count
    for part in range(tables, 0, -1):
        wanted, end, found = rest // part, begin - 1, np.int64(0)
        while found < wanted and end < alphabet - 1:
            end += 1
            found += totals[end]
        if end > begin and part not in (tables, 1) and (tables - part) % 2 == 1:
            found -= totals[end]
            end -= 1
        for symbol in range(alphabet):
            lengths[part - 1, symbol] = 0 if begin <= symbol <= end else _NEVER
        begin, rest = end + 1, rest - found


@inline
def _sift_up(heap, weights, place):
    node = heap[place]
    while weights[node] < weights[heap[place >> 1]]:
        heap[place] = heap[place >> 1]
        place >>= 1
    heap[place] = node


@inline
def _sift_down(heap, weights, size):
    """Let the node at the top of a heap sink."""
    place, node = 1, heap[1]
    while 2 * place <= size:
        below = 2 * place
        if below < size and weights[heap[below + 1]] < weights[heap[below]]:
            below += 1
        if weights[node] < weights[heap[below]]:
            break
        heap[place] = heap[below]
        place = below
    heap[place] = node


@inline
def _join(heap, weights, parents, alphabet):
    """Join the two lightest nodes until one is left. A weight has the depth of its tree in its low byte."""
    size, nodes = 0, alphabet
    heap[0], weights[0] = 0, 0
    for symbol in range(1, alphabet + 1):
        parents[symbol] = -1
        size += 1
        heap[size] = symbol
        _sift_up(heap, weights, size)
    while size > 1:
        one = heap[1]
        heap[1] = heap[size]
        size -= 1
        _sift_down(heap, weights, size)
        two = heap[1]
        heap[1] = heap[size]
        size -= 1
        _sift_down(heap, weights, size)
        nodes += 1
        parents[one], parents[two], parents[nodes] = nodes, nodes, -1
        depth = 1 + max(weights[one] & 255, weights[two] & 255)
        weights[nodes] = ((weights[one] & ~255) + (weights[two] & ~255)) | depth
        size += 1
        heap[size] = nodes
        _sift_up(heap, weights, size)


@inline
def _set_lengths(lengths, counts, alphabet, work):
    """Write the lengths of a table's codes. If one is too long, the counts are made more alike."""
    heap, weights, parents = work[0], work[1], work[2]
    for symbol in range(alphabet):
        weights[symbol + 1] = max(counts[symbol], 1) << 8
    longest = _LONGEST + 1
    while longest > _LONGEST:
        _join(heap, weights, parents, alphabet)
        longest = 0
        for symbol in range(1, alphabet + 1):
            node, length = symbol, 0
            while parents[node] >= 0:
                node = parents[node]
                length += 1
            lengths[symbol - 1] = length
            longest = max(longest, length)
        for symbol in range(1, alphabet + 1):
            weights[symbol] = (1 + (weights[symbol] >> 8) // 2) << 8


@kernel
def choose_tables(symbols, alphabet, tables, totals, lengths, selectors, counts, work):
    """Choose the tables of a block, and the one of each group.

    Args:
        symbols: uint16, the symbols of the block.
        alphabet: Symbols that it may have.
        tables: Tables that it has.
        totals: int64 [MOST_SYMBOLS], how often each symbol occurs.
        lengths: int64 [MOST_TABLES, MOST_SYMBOLS], of which the lengths of all codes are written.
        selectors: uint8 [groups], of which the tables are written.
        counts: int64 [MOST_TABLES, MOST_SYMBOLS], room.
        work: int64 [3, 2 * MOST_SYMBOLS + 2], room.
    """
    _set_first(lengths, totals, tables, alphabet, symbols.size)
    for _ in range(_ROUNDS):
        counts[:] = 0
        for group in range(selectors.size):
            begin, end = group * GROUP, min((group + 1) * GROUP, symbols.size)
            best, least = 0, np.int64(1) << 40
            for table in range(tables):
                cost = np.int64(0)
                for i in range(begin, end):
                    cost += lengths[table, symbols[i]]
                if cost < least:
                    best, least = table, cost
            selectors[group] = best
            for i in range(begin, end):
                counts[best, symbols[i]] += 1
        for table in range(tables):
            _set_lengths(lengths[table], counts[table], alphabet, work)
