"""Lossless coding of floats in codes of a fixed length, for checkpoints that are written often.

Weights have few different exponents: a code of two bits names one of the three most frequent in a block of values, or
leaves the value open. Open values have a code of two bits in the next level, and so on; those still open after LEVELS
levels have their exponent as a byte. Sign and mantissa stay raw. Nothing is looked up, divided or carried from one
value to the next. So a vector of values is coded at once: several times faster than rANS (floats.py), and about 1.5 %
larger.

A value is rotated left by one bit, so that its exponent leads. Packing the bits of exponents in blocks at a fixed
length is the idea of ENEC; codes in levels are new. docs/format.md specifies the bytes.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from squeeze.packing.tensors.content import Content, InMemory, InSegments, Parts
from squeeze.packing.tensors.fixed_blocks import KNOWN, LEVELS, SLACK, block_sizes, decode_blocks, encode_blocks
from squeeze.packing.tensors.fixed_groups import GROUP, KINDS
from squeeze.packing.tensors.float_payload import Array
from squeeze.packing.tensors.float_writer import Writer, in_memory
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import allocate, thread_buffer
from squeeze.system.parallel import parallel_ranges

__all__ = [
    "DTYPES",
    "Coded",
    "DecodedFixed",
    "decode",
    "decode_part",
    "decode_segments",
    "directory_size",
    "encode",
    "has_noise",
    "parse",
    "write",
]

DTYPES = tuple(KINDS)
_FORMAT = 1
_HEAD = struct.Struct("<B7xQ")  # and the number of values
_PER_BLOCK = 1 << 16
_SAMPLE = 1 << 11  # bytes


def encode(data: Array, dtype: str, threads: int = 1) -> Array | None:
    """Return the payload (uint8, a multiple of 8 bytes) of a tensor's little-endian bytes, or None if it is no shorter.

    Args:
        data: the bytes, uint8.
        dtype: safetensors' name of the type, one of DTYPES.
        threads: threads that code blocks.
    """
    return in_memory(lambda writer: write(InMemory(data), dtype, writer, threads))


def write(content: Content, dtype: str, writer: Writer, threads: int = 1) -> int:
    """Write the payload of a tensor; return its bytes, or 0 if it is no shorter. Args are as in `encode`."""
    view, prefix_bits = KINDS[dtype]
    parts, record = Parts(content, view, _PER_BLOCK, threads), _record(dtype)
    blocks, start, most = parts.segments, _start(parts.segments), _max_block_bytes(min(parts.count, _PER_BLOCK), record)
    writer.reserve(start + blocks * most + 8)
    directory = np.empty(start, np.uint8)
    directory[: _HEAD.size] = np.frombuffer(_HEAD.pack(_FORMAT, parts.count), np.uint8)
    names, counts = _directory(directory, blocks)

    def work(values: Array, first: int, last: int) -> tuple[int, Array]:
        begin = start + first * most
        section = writer.room(begin, (last - first) * most, np.uint8)
        size = encode_blocks(
            *(values, 0, last - first, _PER_BLOCK, record, prefix_bits, names[first:last], counts[first:last], section),
            *(np.empty(_PER_BLOCK + SLACK, np.uint8), *_space(view), np.empty((2, 256), np.int64)),
        )
        return begin, section[:size]

    end = start
    for begin, section in parts.map(work):
        if begin != end or not writer.in_place:
            writer.put(end, section)
        end += section.nbytes
    writer.put(end, np.zeros(-end % 8, np.uint8))
    writer.put(0, directory)
    whole = -(-end // 8) * 8
    return whole if whole < content.size else 0


def has_noise(content: Content) -> bool:
    """Return whether the lower bytes of 16-bit values are about uniform, judged by a sample.

    Then only exponents get shorter, and rANS is little shorter than codes of fixed length. It is not so if many values
    are equal, such as 0.
    """
    step = max(content.size // (4 * _SAMPLE), 1) * 2
    if isinstance(content, InMemory):
        lower = content.data[::step][:_SAMPLE]
    else:
        lower = np.empty(min(_SAMPLE, -(-content.size // step)), np.uint8)
        for number in range(lower.size):
            content.fill(number * step, lower[number : number + 1])
    return bool(np.bincount(lower, minlength=256).max() <= _SAMPLE // 32)


@dataclass(frozen=True)
class Coded:
    """A parsed payload. Its blocks correspond to the segments of float_payload.Coded."""

    payload: Array  # uint8
    dtype: str
    count: int
    names: Array  # uint8 [blocks, LEVELS * KNOWN]
    counts: Array  # uint32 [blocks, LEVELS]
    starts: Array  # int64 [blocks + 1]: where each block begins in the payload
    rotated: ClassVar[bool] = True
    lanes: ClassVar[int] = GROUP
    rows: ClassVar[int] = _PER_BLOCK // GROUP

    @property
    def bits(self) -> int:
        return 8 * np.dtype(KINDS[self.dtype][0]).itemsize

    @property
    def segments(self) -> int:
        return len(self.counts)

    @property
    def record(self) -> int:
        return _record(self.dtype)


def parse(payload: Array, dtype: str, size: int) -> Coded:
    """Parse `payload` for a tensor of `size` bytes. Raises DamagedError if they contradict each other."""
    if payload.size < _HEAD.size or payload.size % 8:
        raise damaged("its length is invalid")
    form, count = _HEAD.unpack(payload[: _HEAD.size].tobytes())
    if form != _FORMAT or payload[1:8].any():
        raise damaged("its coding is unknown")
    blocks, record = -(-count // _PER_BLOCK), _record(dtype)
    if count * np.dtype(KINDS[dtype][0]).itemsize != size or payload.size < _start(blocks):
        raise damaged("its size is not that of the tensor")
    if payload.ctypes.data % 8 or not payload.flags.c_contiguous:
        payload = payload.copy()
    names, counts = _directory(payload, blocks)
    sizes = np.empty(blocks, np.int64)
    block_sizes(count, _PER_BLOCK, record, counts, sizes)
    starts = _start(blocks) + np.append(0, np.cumsum(sizes))
    if (sizes < 0).any() or -(-int(starts[-1]) // 8) * 8 != payload.size:
        raise damaged("its blocks do not fill it")
    return Coded(payload, dtype, count, names, counts, starts)


def decode(payload: Array, dtype: str, size: int, threads: int = 1, out: Array | None = None) -> Array:
    """Decode a payload to `size` bytes.

    Args:
        payload: uint8.
        dtype: safetensors' name of the type.
        size: bytes of the tensor.
        threads: threads that decode blocks.
        out: uint8 array for the result, or None.

    Raises DamagedError.
    """
    coded = parse(payload, dtype, size)
    if out is None:
        out = allocate(size)
    decode_segments(coded, 0, coded.segments, out, threads)
    return out


def decode_segments(coded: Coded, first: int, last: int, out: Array, threads: int = 1) -> None:
    """Decode blocks first to last into `out`, as bytes or as numbers. Raises DamagedError."""
    values = out.view(KINDS[coded.dtype][0])

    def work(begin: int, end: int) -> None:
        part = values[begin * _PER_BLOCK : end * _PER_BLOCK]
        _decode(coded, coded.payload, 0, first + begin, first + end, part)

    parallel_ranges(work, last - first, threads)


def decode_part(coded: Coded, part: Array, first: int, last: int, out: Array) -> None:
    """Decode blocks first to last, whose bytes are `part` (uint8), into `out`. Raises DamagedError."""
    _decode(coded, part, int(coded.starts[first]), first, last, out.view(KINDS[coded.dtype][0]))


def _decode(coded: Coded, payload: Array, begin: int, first: int, last: int, values: Array) -> None:
    """Decode blocks first to last, whose bytes begin at `begin` of the whole payload."""
    bad = decode_blocks(
        *(values, first, last, _PER_BLOCK, _record(coded.dtype), coded.names, coded.counts, payload),
        *(payload.view(np.uint32), coded.starts[first] - begin, np.empty(_PER_BLOCK + SLACK, np.uint8)),
        *(np.empty(_PER_BLOCK + SLACK, np.uint8), *_space(values.dtype.type)),
    )
    if bad >= 0:
        raise damaged(f"block {bad} does not decode")


def directory_size(dtype: str, size: int) -> int:
    """Return the bytes before the blocks of a payload, for a tensor of `size` bytes."""
    return _start(-(-size // (_PER_BLOCK * np.dtype(KINDS[dtype][0]).itemsize)))


def _record(dtype: str) -> int:
    """Return the bytes of a group of values.

    They are two masks of codes, a mask for each bit between its prefix and the next byte, and bytes.
    """
    view, prefix_bits = KINDS[dtype]
    return 4 * (2 + 8 - prefix_bits) + GROUP * (np.dtype(view).itemsize - 1)


def _start(blocks: int) -> int:
    """Return where blocks begin in a payload."""
    return _HEAD.size + blocks * LEVELS * (KNOWN + 4)


def _directory(payload: Array, blocks: int) -> tuple[Array, Array]:
    """Return known prefixes, uint8 [blocks, LEVELS * KNOWN], and open values, uint32 [blocks, LEVELS]."""
    middle = _HEAD.size + blocks * LEVELS * KNOWN
    names = payload[_HEAD.size : middle].reshape(blocks, LEVELS * KNOWN)
    return names, payload[middle : _start(blocks)].view(np.uint32).reshape(blocks, LEVELS)


def _max_block_bytes(count: int, record: int) -> int:
    """Return the maximal bytes of a block."""
    groups = -(-count // GROUP)
    return int(groups * (record + 8 * (LEVELS - 1) + GROUP))


def _space(view: type) -> tuple[Array, Array]:
    """Allocate working space for a group's prefixes and for its values."""
    return np.empty(GROUP, np.uint8), np.empty(GROUP, view)


class DecodedFixed(InSegments):
    """A content that decodes a payload as it is read. Raises DamagedError if the payload contradicts itself."""

    def __init__(self, payload: Content, dtype: str, size: int):
        self._payload, self.size = payload, size
        index = np.zeros(payload.size, np.uint8)
        known = min(directory_size(dtype, size), payload.size)
        payload.fill(0, index[:known])
        self._coded = parse(index, dtype, size)
        self.step = self._coded.lanes * self._coded.rows * self._coded.bits // 8

    def _decode(self, first: int, last: int, out: Array) -> None:
        begin, end = int(self._coded.starts[first]), int(self._coded.starts[last])
        part = thread_buffer("part", end - begin)
        self._payload.fill(begin, part)
        decode_part(self._coded, part, first, last, out)
