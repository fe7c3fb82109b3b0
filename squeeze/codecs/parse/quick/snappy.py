"""Snappy blocks: a length, and elements that are literals or copies of earlier bytes.

See format_description.txt of google/snappy. A match is one copy or several of 64 bytes or, before a short rest, 60.
"""

import numpy as np

from squeeze.codecs.parse.quick.layout import LEAST_MATCH, SNAPPY_PART, Tokens
from squeeze.numerics.jit import inline, kernel
from squeeze.system.binary import varint

__all__ = ["content_size", "read", "write"]

_LITERAL, _NEAR, _FAR = range(3)  # kinds of elements; the last one, of far copies beyond 64 KiB, no encoder writes
_MOST_HEADER = 5
_LONG = 60  # literals from which on their number follows
_NEAR_LENGTH, _NEAR_OFFSET = 12, 1 << 11  # of copies of two bytes, below
_PIECE, _LEAST_PIECES, _LAST_PIECE = 64, 68, 60  # lengths of copies of longer matches


def content_size(data: np.ndarray) -> tuple[int, int]:
    """Return the bytes of content that a block names, and the bytes of that header; 0 and 0 if it is impossible."""
    size = 0
    for place, byte in enumerate(data[:_MOST_HEADER].tolist()):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            is_shortest = byte or not place
            return (size, place + 1) if is_shortest and size < 1 << 32 else (0, 0)
    return 0, 0


def read(data: np.ndarray, tokens: Tokens, row: int = 0) -> bool:
    """Read a block, uint8, that is all of `data`, as the parts of a content from `row` on.

    Returns:
        whether it is valid, fits, and is such that an encoder would write it so.
    """
    (size, start), begin = content_size(data), row * SNAPPY_PART
    fits = 0 < size <= tokens.content.size - begin
    return fits and bool(_read(data, start, tokens, row, begin, begin + size))


def write(tokens: Tokens, row: int = 0, rows: int = 0) -> np.ndarray:
    """Return the block of some parts of a content, or of all from `row` on, uint8."""
    rows = rows or tokens.ends.size - row
    begin = row * SNAPPY_PART
    size = min(begin + rows * SNAPPY_PART, tokens.content.size) - begin
    first, last = int(tokens.ends[row - 1]) if row else 0, int(tokens.ends[row + rows - 1])
    header = np.frombuffer(varint(size), np.uint8)
    written = np.zeros(header.size + 2 * size + 64, np.uint8)
    written[: header.size] = header
    return written[: _write(tokens, first, last, begin, written, header.size)]


@inline
def _element(data, at):
    """Read an element: its literals, or the length and the distance of its copy, and the place behind these numbers.

    The place is beyond the data if the element is invalid or cut off.
    """
    tag = np.int64(data[at])
    kind, high = tag & 3, tag >> 2
    extra = max(high - _LONG + 1, 0) if kind == _LITERAL else kind
    if at + 1 + extra > data.size or kind > _FAR:
        return np.int64(0), np.int64(0), np.int64(0), data.size + 1
    number = np.int64(0)
    for i in range(extra):
        number |= np.int64(data[at + 1 + i]) << 8 * i
    at += 1 + extra
    if kind == _LITERAL:
        return (number if extra else high) + 1, np.int64(0), np.int64(0), at
    if kind == _NEAR:
        return np.int64(0), LEAST_MATCH + (high & 7), number | high >> 3 << 8, at
    return np.int64(0), high + 1, number, at


@inline
def _add_copy(t, k, literals, length, offset, before):
    """Add a copy to the tokens: to the match before, whose last copy has length `before`, or as a new one.

    Returns the number of tokens, or -1 if it is too short for an encoder.
    """
    if before >= _LAST_PIECE and offset == t.offsets[k - 1]:
        t.lengths[k - 1] += length
        return k
    if length < LEAST_MATCH or k >= t.literals.size:
        return np.int64(-1)
    t.literals[k], t.lengths[k], t.offsets[k] = literals, length, offset
    return k + 1


@inline
def _end_part(t, k, row, literals):
    """End a part after some literals, and return the number of tokens, or -1 if there is no room."""
    if literals:
        if k >= t.literals.size:
            return np.int64(-1)
        t.literals[k], t.lengths[k], t.offsets[k] = literals, 0, 0
        k += 1
    t.ends[row] = k
    return k


@kernel
def _read(data, at, t, row, p, size):
    """Read the elements of a block, which is the content from p up to `size`, each part for itself.

    Copies of one distance in a row are one match. `literals` are those since the last match of the part, and `before`
    is the length of the copy before.

    Returns:
        whether they are this content.
    """
    first, k, literals, before = p, t.ends[row - 1] if row else np.int64(0), np.int64(0), np.int64(0)
    end = min(p + SNAPPY_PART, size)
    while at < data.size and p < size and k >= 0:
        count, length, offset, at = _element(data, at)
        if at + count > data.size or count + length > end - p or (count and literals) or offset > p - first:
            return False
        if count:
            for i in range(count):
                t.content[p + i] = data[at + i]
            at, literals, before = at + count, count, np.int64(0)
        elif offset:
            for i in range(length):
                t.content[p + i] = t.content[p + i - offset]
            k = _add_copy(t, k, literals, length, offset, before)
            literals, before = np.int64(0), length
        else:
            return False
        p += count + length
        if p == end and k >= 0:
            k = _end_part(t, k, row, literals)
            row, literals, before, end = row + 1, np.int64(0), np.int64(0), min(end + SNAPPY_PART, size)
    return at == data.size and p == size and k >= 0


@inline
def _write_literals(content, p, count, written, at):
    """Write literals, and return the place after them."""
    rest = count - 1
    if rest < _LONG:
        written[at] = rest << 2
        at += 1
    else:
        extra = 1
        while rest >> 8 * extra:
            extra += 1
        written[at] = 59 + extra << 2
        for i in range(extra):
            written[at + 1 + i] = rest >> 8 * i & 255
        at += 1 + extra
    for i in range(count):
        written[at + i] = content[p + i]
    return at + count


@inline
def _write_copy(length, offset, written, at):
    """Write a copy of at most 64 bytes, and return the place after it."""
    if length < _NEAR_LENGTH and offset < _NEAR_OFFSET:
        written[at] = _NEAR | length - LEAST_MATCH << 2 | offset >> 8 << 5
        written[at + 1] = offset & 255
        return at + 2
    written[at] = _FAR | length - 1 << 2
    written[at + 1], written[at + 2] = offset & 255, offset >> 8
    return at + 3


@kernel
def _write(t, first, last, p, written, at):
    """Write the tokens between two numbers from position p on, and return the place after them."""
    for k in range(first, last):
        literals, length, offset = np.int64(t.literals[k]), np.int64(t.lengths[k]), np.int64(t.offsets[k])
        if literals:
            at = _write_literals(t.content, p, literals, written, at)
        p += literals + length
        while length >= _LEAST_PIECES:
            at = _write_copy(np.int64(_PIECE), offset, written, at)
            length -= _PIECE
        if length > _PIECE:
            at = _write_copy(np.int64(_LAST_PIECE), offset, written, at)
            length -= _LAST_PIECE
        if length:
            at = _write_copy(length, offset, written, at)
    return at
