"""Lossless coding of float tensors in codes of a fixed length, for checkpoints that are written often.

Exponents of weights are few: a code of two bits names the three that are most frequent in a block of values, or leaves
the value open. Those left open have a code of two bits in the next level, and so on; what LEVELS levels leave open has
its exponent as a byte. Sign and mantissa stay raw. So nothing is looked up, divided or carried from one value to the
next, and a vector of values is coded at once: several times faster than rANS (floats.py), and about 1.5 % larger.

A value is rotated left by one bit, so that its exponent leads. The idea of packing the bits of exponents by blocks at a
fixed length is ENEC's; codes in levels are ours. How bytes lie is in docs/format.md.
"""

import ctypes
import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from squeeze.codecs.tensors.fixed_blocks import KNOWN, LEVELS, SLACK, block_sizes, decode_blocks, encode_blocks
from squeeze.codecs.tensors.fixed_groups import GROUP, KINDS
from squeeze.codecs.tensors.float_models import spread
from squeeze.codecs.tensors.float_payload import Array
from squeeze.codecs.tensors.tables import damaged
from squeeze.system.arena import cut, fresh, scratch

__all__ = ["DTYPES", "Coded", "decode", "decode_segments", "encode", "has_noise", "parse"]

DTYPES = tuple(KINDS)
_FORMAT = 1
_HEAD = struct.Struct("<B7xQ")  # and the number of values
_PER_BLOCK = 1 << 16
_SAMPLE = 1 << 11  # bytes


def encode(data: Array, dtype: str, threads: int = 1) -> Array | None:
    """The payload (uint8, a multiple of 8 bytes) of a tensor's little-endian bytes, or None where it is no shorter.

    `dtype` is safetensors' name of the type, one of DTYPES.
    """
    view, prefix_bits = KINDS[dtype]
    values = data.view(view)
    blocks, record = -(-values.size // _PER_BLOCK), _record(dtype)
    start, room = _start(blocks), _most(min(values.size, _PER_BLOCK), record)
    buffer = scratch(start + blocks * room + 8)
    buffer[: _HEAD.size] = np.frombuffer(_HEAD.pack(_FORMAT, values.size), np.uint8)
    names, counts = _directory(buffer, blocks)

    def work(first: int, last: int) -> tuple[int, int]:
        place = start + first * room
        size = encode_blocks(
            *(values, first, last, _PER_BLOCK, record, prefix_bits, names, counts, buffer[place:]),
            *(np.empty(_PER_BLOCK + SLACK, np.uint8), *_space(view), np.empty((2, 256), np.int64)),
        )
        return place, int(size)

    end = start
    for place, size in spread(work, blocks, threads):
        if place != end:  # what other threads wrote moves up
            ctypes.memmove(buffer.ctypes.data + end, buffer.ctypes.data + place, size)
        end += size
    whole = -(-end // 8) * 8
    buffer[end:whole] = 0
    return cut(buffer, whole) if whole < data.size else None


def has_noise(data: Array) -> bool:
    """Whether the lower bytes of 16-bit values are about evenly many, in a sample: then only exponents can get shorter,
    and rANS is little shorter than codes of fixed length. It is not so where many values are equal, such as 0."""
    lower = data[:: max(data.size // (4 * _SAMPLE), 1) * 2][:_SAMPLE]
    return bool(np.bincount(lower, minlength=256).max() <= _SAMPLE // 32)


@dataclass(frozen=True)
class Coded:
    """A parsed payload. Its blocks are what float_payload.Coded calls segments."""

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


def parse(payload: Array, dtype: str, size: int) -> Coded:
    """The parts of `payload`, for a tensor of `size` bytes. Raises DamagedError where they contradict that."""
    if payload.size < _HEAD.size or payload.size % 8:
        raise damaged("its length is impossible")
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
    """The `size` bytes that `payload` was coded from, into `out` (uint8) if given. Raises DamagedError."""
    coded = parse(payload, dtype, size)
    if out is None:
        out = fresh(size)
    decode_segments(coded, 0, coded.segments, out, threads)
    return out


def decode_segments(coded: Coded, first: int, last: int, out: Array, threads: int = 1) -> None:
    """Decode blocks first to last into `out`, their values as bytes or as numbers. Raises DamagedError."""
    view, record = KINDS[coded.dtype][0], _record(coded.dtype)
    values, longs = out.view(view), coded.payload.view(np.uint32)

    def work(begin: int, end: int) -> int:
        bad = decode_blocks(
            *(values[begin * _PER_BLOCK : end * _PER_BLOCK], first + begin, first + end, _PER_BLOCK, record),
            *(coded.names, coded.counts, coded.payload, longs, coded.starts[first + begin]),
            *(np.empty(_PER_BLOCK + SLACK, np.uint8), np.empty(_PER_BLOCK + SLACK, np.uint8), *_space(view)),
        )
        return int(bad)

    bad = max(spread(work, last - first, threads), default=-1)
    if bad >= 0:
        raise damaged(f"block {bad} does not decode")


def _record(dtype: str) -> int:
    """Bytes of a group of values: two masks of codes, a mask for each bit between its prefix and the next byte, and
    bytes."""
    view, prefix_bits = KINDS[dtype]
    return 4 * (2 + 8 - prefix_bits) + GROUP * (np.dtype(view).itemsize - 1)


def _start(blocks: int) -> int:
    """Where blocks begin."""
    return _HEAD.size + blocks * LEVELS * (KNOWN + 4)


def _directory(payload: Array, blocks: int) -> tuple[Array, Array]:
    """Known prefixes, uint8 [blocks, LEVELS * KNOWN], and values that levels leave open, uint32 [blocks, LEVELS]."""
    middle = _HEAD.size + blocks * LEVELS * KNOWN
    names = payload[_HEAD.size : middle].reshape(blocks, LEVELS * KNOWN)
    return names, payload[middle : _start(blocks)].view(np.uint32).reshape(blocks, LEVELS)


def _most(count: int, record: int) -> int:
    """The most bytes of a block."""
    groups = -(-count // GROUP)
    return int(groups * (record + 8 * (LEVELS - 1) + GROUP))


def _space(view: type) -> tuple[Array, Array]:
    """Where a group's prefixes, and its values, stand for a while."""
    return np.empty(GROUP, np.uint8), np.empty(GROUP, view)
