"""Lossless coding of tensors of which many values are 0: where the others are, one bit a value, and what they are.

Bits and values are coded by floats.py or floats_archive.py, each on its own. The bits are eight to a byte, in order, so
that a byte holds two whole groups of 2:4 or one of N:8, and entropy coding finds that only 36, or C(8, N), of 256 bytes
occur: log2(6) / 4 = 0.646 bits a value for 2:4. Values count as 0 where all their bits are 0, so -0.0 is kept.
"""

import struct
from collections.abc import Callable

import numpy as np

from squeeze.codecs.tensors import floats
from squeeze.codecs.tensors.content import Content, InMemory, Parts
from squeeze.codecs.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.codecs.tensors.tables import damaged

__all__ = ["decode", "decode_mask", "encode", "encode_mask", "share"]

_COUNTED = 1 << 16  # values at a time
_HEAD = struct.Struct("<QQ")  # values that are not 0, bytes of the coded bits
Encoder = Callable[[Array, str, int, int], Array | None]
Decoder = Callable[[Array, str, int, int, Array | None], Array]


def share(content: Array | Content, dtype: str, threads: int = 1) -> float:
    """Of a tensor's values that are 0."""
    if isinstance(content, np.ndarray):
        content = InMemory(content)
    parts = Parts(content, WORDS[DTYPES[dtype][0]], _COUNTED, threads)
    present = sum(parts.map(lambda values, first, last: np.count_nonzero(values)))
    return 1 - present / parts.count if parts.count else 0.0


def encode(data: Array, dtype: str, coder: Encoder = floats.encode, threads: int = 1, columns: int = 0) -> Array | None:
    """The payload (uint8; a multiple of 8 bytes if the coder's are) of a tensor's bytes, None where it is no shorter.
    coder: encodes the values; columns: of the matrix."""
    values = data.view(WORDS[DTYPES[dtype][0]])
    present = values != 0
    bits, nonzero = encode_mask(present, threads), values[present]
    if columns and present.size % columns == 0:
        counts = np.count_nonzero(present.reshape(-1, columns), 1)
        columns = int(counts[0]) if (counts == counts[0]).all() else 0
    raw = nonzero.view(np.uint8)
    coded = coder(raw, dtype, threads, columns)
    sections = [np.frombuffer(_HEAD.pack(nonzero.size, bits.size), np.uint8), bits, _padding(bits.size)]
    sections += [raw, _padding(raw.size)] if coded is None else [coded]
    payload = np.concatenate(sections)
    return payload if payload.size < data.size else None


def decode(
    payload: Array, dtype: str, size: int, decoder: Decoder = floats.decode, threads: int = 1, out: Array | None = None
) -> Array:
    """The `size` bytes that `payload` was coded from, into `out` (uint8) if given. Raises DamagedError."""
    width = DTYPES[dtype][0] // 8
    if payload.size < _HEAD.size:
        raise damaged("its zeros are cut off")
    count, length = _HEAD.unpack(payload[: _HEAD.size].tobytes())
    start = _HEAD.size + length + -length % 8
    if count * width > size or start > payload.size:
        raise damaged("its zeros do not fit it")
    present = decode_mask(payload[_HEAD.size : _HEAD.size + length], size // width, threads)
    if np.count_nonzero(present) != count:
        raise damaged("it has not as many values as bits say")
    if out is None:
        out = np.empty(size, np.uint8)
    raw = count * width
    coded = payload[start:]
    nonzero = coded[:raw] if coded.size == raw + -raw % 8 else decoder(coded, dtype, raw, threads, None)
    values = out.view(WORDS[8 * width])
    values[:] = 0
    values[present] = np.ascontiguousarray(nonzero).view(values.dtype)
    return out


def encode_mask(present: Array, threads: int = 1) -> Array:
    """The payload of bits, bool [N]: coded where that is shorter, else eight to a byte."""
    raw = np.packbits(present, bitorder="little")
    coded = floats.encode(raw, "U8", threads)
    return raw if coded is None else coded


def decode_mask(payload: Array, count: int, threads: int = 1) -> Array:
    """bool [count] from what `encode_mask` made. Raises DamagedError."""
    raw = -(-count // 8)
    packed = payload if payload.size == raw else floats.decode(np.ascontiguousarray(payload), "U8", raw, threads)
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)


def _padding(size: int) -> Array:
    return np.zeros(-size % 8, np.uint8)
