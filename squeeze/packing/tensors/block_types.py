"""The streams of the block types of GGUF: which bits of a block are the scales, and which are each code.

A stream has some elements of each block, a byte each. An element is a low part and a high part, each some bits of a
byte of the block. Every bit of a block is in one element. docs/format.md has the same tables.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from squeeze.checkpoint.ggml_types import BLOCKS
from squeeze.packing.tensors.float_payload import Array

__all__ = ["STREAMS", "Stream", "streams_of"]

Part = tuple[int, int, int]  # byte, lowest bit, number of bits
Element = tuple[int, int, int, int, int, int]  # the low part and the high one


class Stream(NamedTuple):
    """A stream. Its type is U16 for the differences of float16 words from those of the first stream.

    Attributes:
        dtype: the type as which it is coded.
        elements: a row of six numbers each, int64 [elements, 6].
        begin: the first byte in a block if the elements are whole bytes, one after the other, otherwise -1.
    """

    dtype: str
    elements: Array
    begin: int

    @classmethod
    def of(cls, dtype: str, elements: list[Element]) -> "Stream":
        """Return a stream of elements of a block."""
        begin = elements[0][0]
        return cls(dtype, np.array(elements, np.int64), begin if elements == _whole(begin, len(elements)) else -1)


def _whole(begin: int, count: int) -> list[Element]:
    return [(byte, 0, 8, 0, 0, 0) for byte in range(begin, begin + count)]


def _both(low: Part, high: Part = (0, 0, 0)) -> Element:
    return (*low, *high)


def _scales(begin: int) -> tuple[list[Element], list[Element]]:
    """Return the 8 scales and the 8 minima of 6 bits in 12 bytes of Q4_K and Q5_K."""
    scales = [_both((begin + j, 0, 6)) for j in range(4)]
    scales += [_both((begin + 8 + j, 0, 4), (begin + j, 6, 2)) for j in range(4)]
    minima = [_both((begin + 4 + j, 0, 6)) for j in range(4)]
    minima += [_both((begin + 8 + j, 4, 4), (begin + 4 + j, 6, 2)) for j in range(4)]
    return scales, minima


def _fives(low: int, high: int) -> list[Element]:
    """Return the 32 codes of Q5_0 and Q5_1."""
    return [_both((low + j % 16, j // 16 * 4, 4), (high + j // 8, j % 8, 1)) for j in range(32)]


def _q4_k(begin: int) -> list[Element]:
    """Return the 256 codes of Q4_K, two in a byte: those of each 32 together."""
    found = []
    for j in range(128):
        byte, bit = begin + j // 32 * 32 + j % 16, j // 16 % 2 * 4
        found.append(_both((byte, bit, 4), (byte + 16, bit, 4)))
    return found


def _q5_k(low: int, high: int) -> list[Element]:
    return [_both((low + j // 64 * 32 + j % 32, j // 32 % 2 * 4, 4), (high + j % 32, j // 32, 1)) for j in range(256)]


def _q6_k(low: int, high: int) -> list[Element]:
    found = []
    for j in range(256):
        half, quarter, place = j // 128, j // 32 % 4, j % 32
        byte = low + 64 * half + 32 * (quarter % 2) + place
        found.append(_both((byte, quarter // 2 * 4, 4), (high + 32 * half + place, 2 * quarter, 2)))
    return found


def _twos(low: int, high: int | None = None) -> list[Element]:
    """Return the 256 codes of Q2_K and, with a high bit, Q3_K."""
    found = []
    for j in range(256):
        half, quarter, place = j // 128, j // 32 % 4, j % 32
        above = (0, 0, 0) if high is None else (high + place, 4 * half + quarter, 1)
        found.append(_both((low + 32 * half + place, 2 * quarter, 2), above))
    return found


def _q3_k_scales(begin: int) -> list[Element]:
    return [_both((begin + j % 8, j // 8 * 4, 4), (begin + 8 + j % 4, j // 4 * 2, 2)) for j in range(16)]


STREAMS: dict[str, list[tuple[str, list[Element]]]] = {
    "Q4_0": [("F16", _whole(0, 2)), ("U8", _whole(2, 16))],
    "Q4_1": [("F16", _whole(0, 2)), ("U16", _whole(2, 2)), ("U8", _whole(4, 16))],
    "Q5_0": [("F16", _whole(0, 2)), ("U8", _fives(6, 2))],
    "Q5_1": [("F16", _whole(0, 2)), ("U16", _whole(2, 2)), ("U8", _fives(8, 4))],
    "Q8_0": [("F16", _whole(0, 2)), ("I8", _whole(2, 32))],
    "Q2_K": [
        *(("F16", _whole(80, 2)), ("F16", _whole(82, 2))),
        *(("U8", [_both((j, bit, 4)) for j in range(16)]) for bit in (0, 4)),
        ("U8", _twos(16)),
    ],
    "Q3_K": [("F16", _whole(108, 2)), ("U8", _q3_k_scales(96)), ("U8", _twos(32, 0))],
    "Q4_K": [
        *(("F16", _whole(0, 2)), ("F16", _whole(2, 2))),
        *(("U8", part) for part in _scales(4)),
        ("U8", _q4_k(16)),
    ],
    "Q5_K": [
        *(("F16", _whole(0, 2)), ("F16", _whole(2, 2))),
        *(("U8", part) for part in _scales(4)),
        ("U8", _q5_k(48, 16)),
    ],
    "Q6_K": [("F16", _whole(208, 2)), ("I8", _whole(192, 16)), ("U8", _q6_k(0, 128))],
    "IQ4_NL": [("F16", _whole(0, 2)), ("U8", _whole(2, 16))],
    "IQ4_XS": [
        ("F16", _whole(0, 2)),
        ("U8", [_both((4 + j // 2, j % 2 * 4, 4), (2 + j // 4, j % 4 * 2, 2)) for j in range(8)]),
        ("U8", _whole(8, 128)),
    ],
    "MXFP4": [("U8", _whole(0, 1)), ("U8", _whole(1, 16))],
}


@cache
def streams_of(dtype: str) -> tuple[Stream, ...]:
    """Return the streams of a block type; a type without a table has its first two bytes apart from the others."""
    rows = STREAMS.get(dtype) or [("F16", _whole(0, 2)), ("U8", _whole(2, BLOCKS[dtype] - 2))]
    return tuple(Stream.of(kind, elements) for kind, elements in rows)
