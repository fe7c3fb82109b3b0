"""Lossless coding of tensors with many zeros: a bit for each value tells whether it is 0, and the others follow.

Bits and values are coded separately by floats.py or archive.py. A byte holds the bits of eight values in order: two
whole groups of 2:4, or one of N:8. Entropy coding finds that only 36, or C(8, N), of 256 bytes occur, which is log2(6)
/ 4 = 0.646 bits a value for 2:4. A value counts as 0 if all its bits are 0, so -0.0 is kept.
"""

import struct
from collections.abc import Callable

import numpy as np

from squeeze.packing.tensors import floats
from squeeze.packing.tensors.content import PART, Content, InMemory, InSegments, Parts, Section, in_parts
from squeeze.packing.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.packing.tensors.float_writer import Behind, Writer, copy
from squeeze.packing.tensors.floats import Decoded
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import thread_buffer

__all__ = ["DecodedZeros", "count", "decode_mask", "encode_mask", "write"]

_BLOCK = 1 << 16  # values that are counted together
_HEAD = struct.Struct("<QQ")  # values that are not 0, bytes of the coded bits
Coder = Callable[[Content, str, Writer, int, int], int]  # `write` of the coder of values
Reader = Callable[[Content, str, int], Content]  # the content of one of its payloads


def count(content: Content, dtype: str, threads: int = 1) -> Array:
    """Count the values that are not 0 in each block of a tensor, int64 [blocks]."""
    parts = Parts(content, WORDS[DTYPES[dtype][0]], _BLOCK, threads)

    def work(values: Array, first: int, last: int) -> list[int]:
        return [int(np.count_nonzero(values[k : k + _BLOCK])) for k in range(0, values.size, _BLOCK)]

    found = parts.map(work) if parts.count else ()
    return np.array([number for part in found for number in part], np.int64)


def write(content: Content, dtype: str, writer: Writer, coder: Coder, threads: int, columns: int, counts: Array) -> int:
    """Write the payload of a tensor, a multiple of 8 bytes if the coder's is; return its bytes, or 0 if it is no
    shorter.

    Args:
        content: the tensor's bytes.
        dtype: safetensors' name of the type.
        writer: where the payload goes.
        coder: encodes the values.
        threads: threads that code.
        columns: columns of the matrix, if the coder uses them, else 0.
        counts: the result of `count`.
    """
    word = WORDS[DTYPES[dtype][0]]
    if columns:
        columns = _in_each_row(content, word, columns)
    bits: Content
    values: Content
    if isinstance(content, InMemory):
        present = content.data.view(word) != 0
        bits = InMemory(np.packbits(present, bitorder="little"))
        values = InMemory(content.data.view(word)[present].view(np.uint8))
    else:
        bits, values = _Bits(content, word), _Present(content, word, counts)
    bounds = floats.max_size(bits.size, "U8"), floats.max_size(values.size, dtype)
    writer.reserve(_HEAD.size + sum(bounds) + 16 + 2 * values.size)
    inner = Behind(writer, _HEAD.size)
    length = floats.write(bits, "U8", inner, threads) or copy(bits, inner, 0, threads)
    start = _padded(writer, _HEAD.size + length)
    inner = Behind(writer, start)
    size = coder(values, dtype, inner, threads, columns)
    end = start + size if size else _padded(writer, start + copy(values, inner, 0, threads))
    number = values.size // np.dtype(word).itemsize
    writer.put(0, np.frombuffer(_HEAD.pack(number, length), np.uint8))
    return end if end < content.size else 0


class DecodedZeros(InSegments):
    """A content that decodes a payload as it is read. reader: decodes the values.

    Raises DamagedError if the payload contradicts itself.
    """

    room = "decoded zeros"

    def __init__(self, payload: Content, dtype: str, size: int, reader: Reader, threads: int = 1):
        self._width, self.size = DTYPES[dtype][0] // 8, size
        self.step = _BLOCK * self._width
        if payload.size < _HEAD.size:
            raise damaged("its zeros are cut off")
        head = np.empty(_HEAD.size, np.uint8)
        payload.fill(0, head)
        count, length = _HEAD.unpack(head.tobytes())
        start = _HEAD.size + length + -length % 8
        if count * self._width > size or start > payload.size:
            raise damaged("its zeros do not fit it")
        bits, values = Section(payload, _HEAD.size, length), Section(payload, start, payload.size - start)
        packed, raw = -(-size // self._width // 8), count * self._width
        self._bits = bits if length == packed else Decoded(bits, "U8", packed)
        self._values = values if values.size == raw + -raw % 8 else reader(values, dtype, raw)
        most = max(8 * PART // _BLOCK, 1)
        blocks = in_parts(self._counts, -(-size // self.step), most, threads)
        counts = [number for part in blocks for number in part]
        self._starts = np.append(np.int64(0), np.cumsum(counts, dtype=np.int64)).tolist()
        if self._starts[-1] != count:
            raise damaged("its values are not as many as its bits tell")

    def _counts(self, first: int, last: int) -> list[int]:
        present = self._present(first, last)
        return [int(np.count_nonzero(present[k : k + _BLOCK])) for k in range(0, present.size, _BLOCK)]

    def _present(self, first: int, last: int) -> Array:
        """Return whether each value of some blocks is not 0, bool."""
        values = min(last * _BLOCK, self.size // self._width) - first * _BLOCK
        packed = thread_buffer("bits of zeros", -(-values // 8))
        self._bits.fill(first * _BLOCK // 8, packed)
        return np.unpackbits(packed, count=values, bitorder="little").view(np.bool_)

    def _decode(self, first: int, last: int, out: Array) -> None:
        begin, end = self._starts[first], self._starts[last]
        values, found = thread_buffer("values of zeros", self._width * (end - begin)), out.view(WORDS[8 * self._width])
        self._values.fill(self._width * begin, values)
        found[:] = 0
        found[self._present(first, last)] = values.view(found.dtype)


class _Bits:
    """A content with a bit for each value of another one, set if the value is not 0, eight to a byte."""

    def __init__(self, content: Content, word: type):
        self._content, self._word = content, word
        self._count = content.size // np.dtype(word).itemsize
        self.size = -(-self._count // 8)

    def fill(self, begin: int, out: Array) -> None:
        values = _values(self._content, self._word, 8 * begin, min(8 * (begin + out.size), self._count))
        out[:] = np.packbits(values != 0, bitorder="little")


class _Present:
    """A content with the values of another one that are not 0. counts: their number in each block."""

    def __init__(self, content: Content, word: type, counts: Array):
        self._content, self._word, self._count = content, word, content.size // np.dtype(word).itemsize
        self._starts = np.append(np.int64(0), np.cumsum(counts))
        self.size = int(self._starts[-1]) * np.dtype(word).itemsize

    def fill(self, begin: int, out: Array) -> None:
        found: Array = out.view(self._word)
        first = begin // found.itemsize
        block, end = int(np.searchsorted(self._starts, first, "right")) - 1, 0
        skipped, most = first - int(self._starts[block]), max(PART // (_BLOCK * found.itemsize), 1)
        while end < found.size and block * _BLOCK < self._count:
            stop = min((block + most) * _BLOCK, self._count)
            values = _values(self._content, self._word, block * _BLOCK, stop)
            values = values[values != 0][skipped:][: found.size - end]
            found[end : end + values.size] = values
            block, skipped, end = block + most, 0, end + values.size


def _values(content: Content, word: type, first: int, last: int) -> Array:
    """Return some values of a content, in memory of this thread."""
    width = np.dtype(word).itemsize
    out = thread_buffer("with zeros", width * (last - first))
    content.fill(width * first, out)
    return out.view(word)


def _in_each_row(content: Content, word: type, columns: int) -> int:
    """Return the number of values that are not 0 in a row, if it is the same in all rows, else 0."""
    parts, begun, known = Parts(content, word, _BLOCK), 0, -1
    if parts.count % columns:
        return 0
    for number in range(parts.segments):
        present, begin = parts.values(number, number + 1) != 0, number * _BLOCK
        edges = np.append(0, np.arange(columns - begin % columns, present.size, columns))
        counts = np.add.reduceat(present, edges, dtype=np.int64)
        counts[0] += begun
        is_open = (begin + present.size) % columns > 0
        whole, begun = (counts[:-1], int(counts[-1])) if is_open else (counts, 0)
        known = int(whole[0]) if whole.size and known < 0 else known
        if (whole != known).any():
            return 0
    return max(known, 0)


def encode_mask(present: Array, threads: int = 1) -> Array:
    """Return the payload of a mask, bool [N]: coded if that is shorter, else eight bits to a byte."""
    raw = np.packbits(present, bitorder="little")
    coded = floats.encode(raw, "U8", threads)
    return raw if coded is None else coded


def decode_mask(payload: Array, count: int, threads: int = 1) -> Array:
    """Return the mask, bool [count], from the payload of `encode_mask`. Raises DamagedError."""
    raw = -(-count // 8)
    packed = payload if payload.size == raw else floats.decode(np.ascontiguousarray(payload), "U8", raw, threads)
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)


def _padded(writer: Writer, place: int) -> int:
    """Pad with zeros to a multiple of 8 bytes; return the end."""
    writer.put(place, np.zeros(-place % 8, np.uint8))
    return place + -place % 8
