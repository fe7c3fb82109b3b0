"""The payload of the archive coding (archive.py), as encoder and decoder share it.

It has the header, the cut of values into coded and raw bits, and the segments. docs/format.md specifies it.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from squeeze.packing.tensors.archive_models import ArchiveModel, build_model
from squeeze.packing.tensors.content import Content
from squeeze.packing.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import thread_buffer

__all__ = [
    "AT_ONCE",
    "FORMAT",
    "FORMS",
    "HEAD",
    "MAX_COLUMNS",
    "MAX_MIXED",
    "MIXED",
    "SEGMENT",
    "WHOLE",
    "WIDENED",
    "BitSplit",
    "Factors",
    "model_of",
    "segments",
    "tops",
]

FORMAT = 1
WHOLE, MIXED, WIDENED = 0, 1, 2  # after the header: a payload of floats.py, this coding, or this coding of float16
SEGMENT = 1 << 22  # values that one set of models codes
MAX_COLUMNS = 1 << 28
HEAD = struct.Struct("<BBBBIQQ")  # format, mode, mixed mantissa bits, middle, columns, values, rest bytes
MAX_MIXED = 7
AT_ONCE = 1 << 18  # values that are cut at a time

# Bits of exponent and mantissa of each dtype that is mixed.
FORMS = {"BF16": (8, 7), "F16": (5, 10), "F32": (8, 23), "F8_E4M3": (4, 3), "F8_E5M2": (5, 2)}


@dataclass(frozen=True)
class BitSplit:
    """The cut of a value of `bits` bits into its exponent, the leading mantissa bits that are mixed, and the rest."""

    bits: int
    exponent: int
    mixed: int

    @property
    def unmixed_bits(self) -> int:
        """The bits of a value that are not mixed."""
        return self.bits - self.exponent - self.mixed

    @property
    def dtype(self) -> str:
        """The dtype as which the rest is coded."""
        return next(f"U{width}" for width in (8, 16, 32) if self.unmixed_bits <= width)

    @property
    def width(self) -> int:
        """The bytes of the rest."""
        return DTYPES[self.dtype][0] // 8

    def rotated(self, content: Content, first: int, last: int) -> Array:
        """Return some values rotated left by one bit, in memory of this thread."""
        data = thread_buffer("of archive", (last - first) * self.bits // 8)
        content.fill(first * self.bits // 8, data)
        values = data.view(WORDS[self.bits])
        kind = values.dtype.type
        rotated: Array = (values << kind(1)) | (values >> kind(self.bits - 1))
        return rotated

    def top(self, content: Content, first: int, last: int) -> Array:
        """Return exponent and mixed bits of some values, uint16, in memory of this thread."""
        found = tops(last - first)
        for begin in range(first, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            rotated = self.rotated(content, begin, end)
            found[begin - first : end - first] = rotated >> rotated.dtype.type(self.bits - self.exponent - self.mixed)
        return found


def tops(count: int) -> Array:
    """Return an uninitialised array, uint16 [count]; each thread has one."""
    return thread_buffer("tops of archive", 2 * count).view(np.uint16)


def segments(count: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield the first value of each segment and the one after its last; short rows stay whole."""
    size = SEGMENT // columns * columns if columns <= SEGMENT else SEGMENT
    for begin in range(0, count, size):
        yield begin, min(begin + size, count)


@dataclass(frozen=True)
class Factors:
    """Hold what the magnitudes of each `per` values are multiplied by: the scales of GGUF blocks, or 1.

    scales: bits of a float16 for each `per` values, or None.
    """

    scales: Content | None
    per: int

    @classmethod
    def of(cls, scales: Content | None, count: int) -> "Factors":
        """Return the factors of `count` values. Raises DamagedError if the scales do not divide these."""
        if scales is None:
            return cls(None, count)
        if not scales.size or count % (scales.size // 2):
            raise damaged("its scales are others")
        return cls(scales, count // (scales.size // 2))

    def between(self, begin: int, end: int) -> tuple[Array, int, int]:
        """Return the factors of values begin to end, float64, and `per` and `offset` as `archive_models.code` has them.

        They are in units of their median. Scales that are 0 or not finite count as 1.
        """
        if self.scales is None:
            return np.ones(1), end - begin, 0
        first, last = begin // self.per, -(-end // self.per)
        bits = np.empty(last - first, np.uint16)
        self.scales.fill(2 * first, bits.view(np.uint8))
        bits &= 0x7FFF
        bits[(bits == 0) | (bits >= 0x7C00)] = 0x3C00
        factors = bits.view(np.float16).astype(np.float64)
        return factors / np.sort(factors)[factors.size // 2], self.per, begin - first * self.per


def model_of(cut: BitSplit, values: Array, columns: int, middle: int) -> ArchiveModel:
    """Return the initial model of a segment, in memory of this thread."""
    return build_model(1 << cut.exponent, min(columns, values.size), cut.mixed, middle)
