"""A deflate stream as arrays: its tokens, its blocks, and the Huffman codes of each block.

See Deutsch, "DEFLATE compressed data format specification", RFC 1951, 1996.
"""

from typing import NamedTuple

import numpy as np

from squeeze.numerics.jit import inline

STORED, FIXED, DYNAMIC = 0, 1, 2  # types of blocks
LITERALS, DISTANCES, REPEAT_CODES = 288, 30, 19  # symbols of the three Huffman codes
USED_LITERALS = 286  # those that a stream can have; the fixed code has two more
END_OF_BLOCK = 256
CODES = LITERALS + DISTANCES + REPEAT_CODES  # code lengths of a block, in this order
FIRST_DISTANCE, FIRST_REPEAT_CODE = LITERALS, LITERALS + DISTANCES
LEAST_MATCH, MOST_MATCH, MOST_DISTANCE = 3, 258, 1 << 15
MOST_REPEATS = LITERALS + DISTANCES  # symbols that a block's header has at most
_SMALL = 1 << 22  # bytes of content that may have the shortest blocks
REPEAT_ORDER = np.array([16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15], np.int64)

# Columns of a block's row. END is the number of tokens up to its end, SIZE its raw bytes, PADDING the bits before a
# stored block's length, REPEATS the number of repeat symbols up to its end, and the rest are counts of its header.
TYPE, FINAL, END, SIZE, PADDING, NLITERALS, NDISTANCES, NREPEAT_CODES, REPEATS, COLUMNS = range(10)


class Tokens(NamedTuple):
    """The content of a deflate stream, and the choices that its encoder made."""

    content: np.ndarray  # uint8 [n]
    tokens: np.ndarray  # uint32 [t]: 0 for a literal, length << 16 | distance for a match
    blocks: np.ndarray  # int64 [b, COLUMNS]
    codes: np.ndarray  # uint8 [b, CODES]: code lengths of literals, distances and repeat symbols
    repeats: np.ndarray  # uint16 [r]: symbol | extra bits << 8, for the code lengths of dynamic blocks
    totals: np.ndarray  # int64 [6]: the counts of n, t, b, r, the coded bits, and the bits after the end

    def share_of(self, start: int, end: int) -> float:
        """Return the share of a range of the content in the tokens; without tokens that in the bytes."""
        if not self.tokens.size:
            return (end - start) / max(self.content.size, 1)
        ends = np.cumsum(np.maximum(self.tokens >> 16, 1, dtype=np.int64))
        first, last = np.searchsorted(ends, (start, end), side="right")
        return float(last - first) / self.tokens.size


CONTENT, TOKENS, BLOCKS, SYMBOLS, BITS, REST = range(6)  # entries of `totals`


def most_blocks(size: int) -> int:
    """Return the blocks that a stream with `size` bytes of content may have; more are not worth opening.

    zlib's shortest blocks have 127 tokens. The tables of many would take more memory than the content.
    """
    return 64 + max(size // 1024, min(size, _SMALL) // 127)


def empty(content: int, tokens: int, blocks: int, repeats: int) -> Tokens:
    """Return arrays for a stream with these numbers of raw bytes, tokens, blocks and repeat symbols."""
    return Tokens(
        np.zeros(content, np.uint8),
        np.zeros(tokens, np.uint32),
        np.zeros((blocks, COLUMNS), np.int64),
        np.zeros((blocks, CODES), np.uint8),
        np.zeros(repeats, np.uint16),
        np.zeros(6, np.int64),
    )


def _lengths() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the symbol of each match length, and the least length and the extra bits of each symbol."""
    extra = np.array([0] * 8 + [n for n in range(1, 6) for _ in range(4)] + [0], np.int64)
    base = np.array([*(3 + np.concatenate([[0], np.cumsum(1 << extra[:-2])])).tolist(), 258], np.int64)
    symbol = np.zeros(MOST_MATCH + 1, np.int64)
    for place, start in enumerate(base[:-1]):
        symbol[start : start + (1 << extra[place])] = place
    symbol[MOST_MATCH] = 28
    return symbol, base, extra


def _distances() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the symbol of each distance, and the least distance and the extra bits of each symbol."""
    extra = np.array([0, 0] + [n for n in range(14) for _ in range(2)], np.int64)
    base = 1 + np.concatenate([[0], np.cumsum(1 << extra[:-1])])
    symbol = np.zeros(MOST_DISTANCE + 1, np.int64)
    for place, start in enumerate(base):
        symbol[start : start + (1 << extra[place])] = place
    return symbol, base, extra


LENGTH_SYMBOL, LENGTH_BASE, LENGTH_EXTRA = _lengths()
DISTANCE_SYMBOL, DISTANCE_BASE, DISTANCE_EXTRA = _distances()
FIXED_LENGTHS = np.array([8] * 144 + [9] * 112 + [7] * 24 + [8] * 8, np.uint8)  # of literals; distances have 5 bits
LONGEST = 15  # bits of a code


@inline
def reversed_bits(code, length):
    """Return the low bits of a code in the opposite order, as streams have them."""
    result = 0
    for _ in range(length):
        result = result << 1 | (code & 1)
        code >>= 1
    return result


@inline
def set_fixed_lengths(codes, row):
    """Give a row the code lengths of blocks without codes of their own."""
    for k in range(LITERALS):
        codes[row, k] = FIXED_LENGTHS[k]
    for k in range(DISTANCES):
        codes[row, FIRST_DISTANCE + k] = 5
