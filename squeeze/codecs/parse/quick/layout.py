"""The tokens of Snappy and LZ4 blocks, and the settings of the encoders that are predicted.

A token is literals and a match after them; the last one of a part has no match. A part is what an encoder codes with
one table: 64 KiB of content in Snappy, a block in LZ4.
"""

from typing import NamedTuple

import numpy as np

__all__ = [
    "BY_SIZE",
    "FORMAT",
    "FRAMED",
    "HASHED",
    "LEAST_MATCH",
    "LINKED",
    "LZ4",
    "MOST_DISTANCE",
    "PART",
    "SNAPPY",
    "SNAPPY_PART",
    "Tokens",
    "empty",
    "parts_of",
    "settings",
]

LEAST_MATCH, MOST_DISTANCE = 4, (1 << 16) - 1
SNAPPY, LZ4 = range(2)
SNAPPY_PART = 1 << 16  # bytes of content
# Entries of settings: the format; how bytes are hashed; the bytes of a part; whether matches may begin in an earlier
# part, and whether parts are stored if they do not shrink, as in LZ4 frames.
FORMAT, HASHED, PART, LINKED, FRAMED = range(5)
# Values of HASHED. Those of Snappy are its highest bits as the size of the table asks for (up to 1.1.8, Go, Rust), the
# lowest of the highest 14 or 15 bits (from 1.1.9 and 1.2 on), or a CRC-32C, where the processor has it.
HIGH, LOW_OF_14, LOW_OF_15, CRC_OF_14, CRC_OF_15, BY_SIZE = range(6)


class Tokens(NamedTuple):
    """A content and its tokens.

    Attributes:
        content: uint8 [n].
        literals: int32 [m], the literals of each token.
        lengths: int32 [m], the bytes of each match, or 0 for the last token of a part.
        offsets: int32 [m], how far back each match begins.
        ends: int64 [parts], the number of tokens up to the end of each part.
        stored: uint8 [parts], 1 for parts that are stored, whose tokens are those that were tried.
    """

    content: np.ndarray
    literals: np.ndarray
    lengths: np.ndarray
    offsets: np.ndarray
    ends: np.ndarray
    stored: np.ndarray

    @property
    def total(self) -> int:
        """The number of tokens."""
        return int(self.ends[-1])


def parts_of(size: int, part: int) -> int:
    """Return the number of parts of a content of `size` bytes."""
    return -(-size // part)


def empty(content: np.ndarray, part: int) -> Tokens:
    """Return tokens to be filled, of a content uint8 [n] in parts of some bytes, all of them possible."""
    content = np.require(content, requirements="W")  # read-only arrays would have kernels of their own
    parts = parts_of(content.size, part)
    most = content.size // LEAST_MATCH + 2 * parts
    literals, lengths, offsets = np.zeros((3, most), np.int32)
    return Tokens(content, literals, lengths, offsets, np.zeros(parts, np.int64), np.zeros(parts, np.uint8))


def settings(format: int, hashed: int, part: int, linked: bool = False, framed: bool = False) -> np.ndarray:
    """Return the settings of an encoder, int64 [5]."""
    return np.array([format, hashed, part, linked, framed], np.int64)
