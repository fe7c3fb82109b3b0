"""LZ4 blocks: tokens of literals and a match, with a last one of literals alone.

See lz4_Block_format.md of lz4/lz4. Each block is a part; in a frame, matches may begin in earlier ones.
"""

import numpy as np

from squeeze.codecs.parse.quick.layout import LEAST_MATCH, Tokens
from squeeze.numerics.jit import inline, kernel

__all__ = ["content_size", "read_part", "write_part"]

_LONG = 15  # literals, or bytes of a match, from which on bytes of length follow


def content_size(data: np.ndarray, most: int) -> int:
    """Return the bytes of content of a block, uint8, or -1 if it is invalid or has more than `most`."""
    return int(_measure(data, most))


def read_part(data: np.ndarray, tokens: Tokens, row: int, begin: int, linked: bool) -> int:
    """Read a block, uint8, that is all of `data`, into part `row` of a content, at position `begin`.

    Returns:
        the position after it, or -1 if it is invalid, has no last token, or is longer than the content.
    """
    first = int(tokens.ends[row - 1]) if row else 0
    return int(_read(data, tokens, row, first, begin, 0 if linked else begin))


def write_part(tokens: Tokens, row: int, begin: int, end: int) -> np.ndarray:
    """Return the block of part `row`, the content between two positions, uint8."""
    first = int(tokens.ends[row - 1]) if row else 0
    written = np.zeros(2 * (end - begin) + 64, np.uint8)
    return written[: _write(tokens, first, int(tokens.ends[row]), begin, written)]


@inline
def _length(data, at, length):
    """Return a length with the bytes that follow, if it is long, and the place after them, which may be too far."""
    if length == _LONG:
        byte = np.int64(255)
        while byte == 255 and at < data.size:
            byte = np.int64(data[at])
            length += byte
            at += 1
        if byte == 255:
            at = data.size + 1
    return length, at


@kernel
def _measure(data, most):
    """Return the bytes of content of a block, or -1."""
    at, p = np.int64(0), np.int64(0)
    while at < data.size:
        token = np.int64(data[at])
        literals, at = _length(data, at + 1, token >> 4)
        if literals > data.size - at:
            return -1
        at, p = at + literals, p + literals
        if at == data.size:
            return p if p <= most else -1
        offset = np.int64(data[at]) | np.int64(data[at + 1]) << 8 if at + 2 <= data.size else np.int64(0)
        length, at = _length(data, at + 2, token & 15)
        p += LEAST_MATCH + length
        if offset == 0 or at >= data.size or p > most:
            return -1
    return -1


@kernel
def _read(data, t, row, k, p, low):
    """Read a block whose matches begin at `low` or behind, and return the position after it, or -1."""
    at = np.int64(0)
    while at < data.size and k < t.literals.size:
        token = np.int64(data[at])
        literals, at = _length(data, at + 1, token >> 4)
        if literals > data.size - at or literals > t.content.size - p:
            return -1
        for i in range(literals):
            t.content[p + i] = data[at + i]
        at, p = at + literals, p + literals
        t.literals[k] = literals
        if at == data.size:
            t.lengths[k] = t.offsets[k] = 0
            t.ends[row] = k + 1
            return p if literals else -1
        offset = np.int64(data[at]) | np.int64(data[at + 1]) << 8 if at + 2 <= data.size else np.int64(0)
        length, at = _length(data, at + 2, token & 15)
        length += LEAST_MATCH
        if not 0 < offset <= p - low or length > t.content.size - p:
            return -1
        for i in range(length):
            t.content[p + i] = t.content[p + i - offset]
        t.lengths[k], t.offsets[k] = length, offset
        p += length
        k += 1
    return -1


@inline
def _write_length(length, written, at):
    """Write the bytes of a long length, and return the place after them."""
    if length >= _LONG:
        length -= _LONG
        while length >= 255:
            written[at] = 255
            length -= 255
            at += 1
        written[at] = length
        at += 1
    return at


@kernel
def _write(t, first, last, p, written):
    """Write the tokens between two numbers from position p on, and return how many bytes they are."""
    at = np.int64(0)
    for k in range(first, last):
        literals, length = np.int64(t.literals[k]), np.int64(t.lengths[k])
        rest = max(length - LEAST_MATCH, 0)
        written[at] = min(literals, _LONG) << 4 | min(rest, _LONG)
        at = _write_length(literals, written, at + 1)
        for i in range(literals):
            written[at + i] = t.content[p + i]
        at, p = at + literals, p + literals + length
        if length:
            written[at], written[at + 1] = t.offsets[k] & 255, t.offsets[k] >> 8
            at = _write_length(rest, written, at + 2)
    return at
