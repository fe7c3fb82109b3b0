"""The archive coding of floats: context mixing over exponents and leading mantissa bits. Smallest, slow, CPU only.

A tensor is a matrix of `columns`. Each exponent is walked down a tree shaped
like its Huffman code (archive_tree.py), so that it costs few decisions; the first `mixed` mantissa
bits follow. Every decision is predicted from the neighbouring exponents and the
running means of its row and column, and mixed as in bitmodels/mixer.py, in
integers (archive_models.py). The bits behind, mostly noise, are coded by floats.py. A tensor that
gains nothing, or is no float, is coded by floats.py as a whole.
"""

import numpy as np

from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.packing.tensors import floats
from squeeze.packing.tensors.archive_models import code
from squeeze.packing.tensors.archive_payload import (
    AT_ONCE,
    FORMAT,
    FORMS,
    HEAD,
    MAX_COLUMNS,
    MIXED,
    MOST_MIXED,
    WHOLE,
    Cut,
    model_of,
    segments,
)
from squeeze.packing.tensors.archive_tree import Tree
from squeeze.packing.tensors.content import PART, Content, InMemory, in_parts, whole
from squeeze.packing.tensors.decoded_archive import DecodedArchive, decoded
from squeeze.packing.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.packing.tensors.float_writer import Behind, Writer, copy, in_memory
from squeeze.system.arena import fresh, kept

__all__ = ["decode", "encode", "write"]

_SMALL = 1 << 16  # bytes below which the coding of floats.py is tried, too


class _Rest:
    """What is behind the top of a content's values."""

    def __init__(self, content: Content, cut: Cut):
        self._content, self._cut = content, cut
        self.size = 8 * content.size // cut.bits * cut.width

    def fill(self, begin: int, out: Array) -> None:
        first, found = begin // self._cut.width, out.view(WORDS[8 * self._cut.width])
        rotated = self._cut.rotated(self._content, first, first + found.size)
        np.bitwise_and(rotated, rotated.dtype.type((1 << self._cut.rest) - 1), out=found, casting="unsafe")


def encode(data: Array, dtype: str, threads: int = 1, columns: int = 0) -> Array | None:
    """The payload of a tensor's bytes, or None where it is no shorter. columns: values in a row, 0 where unknown."""
    return in_memory(lambda writer: write(InMemory(data), dtype, writer, threads, columns))


def write(content: Content, dtype: str, writer: Writer, threads: int = 1, columns: int = 0) -> int:
    """The same payload, written; its bytes, or 0 where it is no shorter."""
    if not content.size:
        return 0
    if dtype not in FORMS:
        writer.reserve(HEAD.size + floats.most(content.size, dtype))
        size = _with_head(writer, floats.write(content, dtype, Behind(writer, HEAD.size), threads))
        return size if size < content.size else 0
    size = _write_mixed(content, dtype, writer, threads, columns)
    if content.size < _SMALL:
        other = floats.encode(whole(content), dtype, threads)
        if other is not None and (not size or other.size + HEAD.size <= size):
            writer.reserve(HEAD.size + other.size)
            writer.put(HEAD.size, other)
            size = _with_head(writer, other.size)
    return size if size < content.size else 0


def _with_head(writer: Writer, size: int) -> int:
    """The size of a payload of floats.py of so many bytes with a header before it, which is written."""
    if not size:
        return 0
    writer.put(0, np.frombuffer(HEAD.pack(FORMAT, WHOLE, 0, 0, 0, 0, 0, size), np.uint8))
    return HEAD.size + size


def _write_mixed(content: Content, dtype: str, writer: Writer, threads: int, columns: int) -> int:
    """0 where a segment takes over four bytes a value, which then does not pay."""
    cut, rest = _chosen(content, dtype)
    count = 8 * content.size // cut.bits
    columns = min(columns or 1 << 16, count, MAX_COLUMNS)
    tree = _tree(content, cut, threads)
    spans = list(segments(count, columns))
    writer.reserve(HEAD.size + len(tree.text) + floats.most(rest.size, cut.dtype) + 4 * count + 2048 * len(spans))
    inner = Behind(writer, HEAD.size + len(tree.text))
    size = floats.write(rest, cut.dtype, inner, threads) or copy(rest, inner, 0, threads)
    lengths_at = HEAD.size + len(tree.text) + size
    lengths, end = np.zeros(len(spans), np.uint32), lengths_at + 4 * len(spans)

    def work(number: int, last: int) -> Array:
        return _encoded(cut.top(content, *spans[number]), tree, columns, cut.mixed)

    for number, stream in enumerate(in_parts(work, len(spans), 1, threads)):
        if not stream.size:
            return 0
        writer.put(end, stream)
        lengths[number], end = stream.size, end + stream.size
    head = HEAD.pack(FORMAT, MIXED, cut.mixed, 0, columns, count, len(tree.text), size)
    writer.put(0, np.frombuffer(head + tree.text, np.uint8))
    writer.put(lengths_at, lengths)
    return end


def _chosen(content: Content, dtype: str) -> tuple[Cut, _Rest]:
    """How many mantissa bits are mixed: all that are not noise."""
    bits, (exponent, mantissa) = DTYPES[dtype][0], FORMS[dtype]
    most = min(MOST_MIXED, mantissa)
    cut = Cut(bits, exponent, min(3, mantissa))
    rest = _Rest(content, cut)
    if cut.mixed < most and floats.estimate(rest, cut.dtype) <= 0.995 * cut.rest * (rest.size // cut.width):
        cut = Cut(bits, exponent, most)
    return cut, _Rest(content, cut)


def _tree(content: Content, cut: Cut, threads: int) -> Tree:
    def work(first: int, last: int) -> Array:
        rotated = cut.rotated(content, first, last)
        shift = rotated.dtype.type(cut.bits - cut.exponent)
        return np.bincount((rotated >> shift).astype(np.uint8), minlength=1 << cut.exponent)

    counts = np.zeros(1 << cut.exponent, np.int64)
    for found in in_parts(work, 8 * content.size // cut.bits, AT_ONCE, threads):
        counts += found
    return Tree.build(counts)


def _encoded(values: Array, tree: Tree, columns: int, mixed: int) -> Array:
    """uint8, the code of a segment's tops; none where it is longer than it may be."""
    model, columns = model_of(values, tree, columns, mixed), min(columns, values.size)
    coder, coded = np.zeros(3, np.uint64), kept("codes of archive", 4 * values.size + 1024)
    arithmetic.start_encoder(coder)
    end = code(model, values, mixed, columns, 0, values.size, tree.paths, coder, coded, False)
    size = arithmetic.finish_encoder(coder, coded) if end == values.size else 0
    return coded[:size].copy()


def decode(payload: Array, dtype: str, size: int, threads: int = 1, out: Array | None = None) -> Array:
    """The `size` bytes that `payload` was coded from, into `out` (uint8) if given. Raises DamagedError."""
    content, found = decoded(InMemory(payload), dtype, size, threads), fresh(size) if out is None else out
    if not isinstance(content, DecodedArchive):
        for _ in in_parts(lambda begin, end: content.fill(begin, found[begin:end]), size, PART, threads):
            pass
        return found
    parts = content.segments

    def work(number: int, last: int) -> None:
        begin, end = parts.spans[number]
        parts.decode(number, found[begin * parts.width : end * parts.width])

    for _ in in_parts(work, len(parts.spans), 1, threads):
        pass
    return found
