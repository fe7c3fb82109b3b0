"""The layout of an array: its numbers and columns, and how a payload says so."""

import io
from typing import NamedTuple

from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["FLOAT", "MOST_ACROSS", "MOST_COLUMNS", "SIGNED", "UNSIGNED", "WIDTHS", "Layout"]

WIDTHS = (2, 4, 8)
UNSIGNED, SIGNED, FLOAT = range(3)
MOST_COLUMNS = 64
MOST_ACROSS = 1 << 24


class Layout(NamedTuple):
    """The layout of an array in bytes that it covers wholly, but for a prefix.

    Attributes:
        width: Bytes of a number: 2, 4 or 8.
        columns: Numbers of a row, 1 to 64.
        kind: UNSIGNED, SIGNED or FLOAT.
        big: 1 if the high byte of a number comes first.
        prefix: Bytes before the first number.
        across: Numbers of a line of a grid, such as an image or a map, 2 to 2^24, or 0 if there are no lines.
    """

    width: int
    columns: int = 1
    kind: int = 0
    big: int = 0
    prefix: int = 0
    across: int = 0

    @property
    def bits(self) -> int:
        """The bits of a number."""
        return 8 * self.width

    @property
    def row(self) -> int:
        """The bytes of a row."""
        return self.width * self.columns

    @property
    def line(self) -> int:
        """The bytes of a line of a grid, or of a row if there are no lines."""
        return self.width * (self.across or self.columns)

    def to_bytes(self) -> bytes:
        """Return what `read` reads."""
        flags = WIDTHS.index(self.width) | self.kind << 2 | self.big << 4 | (self.across > 0) << 5
        return bytes([flags, self.columns]) + varint(self.prefix) + (varint(self.across) if self.across else b"")

    @classmethod
    def read(cls, file: io.BytesIO, length: int) -> "Layout":
        """Read the layout of an array of `length` bytes, with its prefix.

        Raises:
            DamagedError: if there is no such array.
        """
        flags, columns = read_exactly(file, 2)
        prefix = read_varint(file)[0]
        across = read_varint(file)[0] if flags >> 5 & 1 else 0
        form = cls(WIDTHS[flags & 3 if flags & 3 < 3 else 0], columns, flags >> 2 & 3, flags >> 4 & 1, prefix, across)
        wrong = flags & 3 == 3 or flags >> 2 & 3 == 3 or flags >> 6 or (flags >> 5 == 1 and not across)
        if wrong or not form.is_possible(length):
            raise DamagedError("the layout of an array is impossible: the file is damaged")
        return form

    def is_possible(self, length: int) -> bool:
        """Return whether `length` bytes may have this layout."""
        fits = 1 <= self.columns <= MOST_COLUMNS and 0 <= self.prefix <= length
        return fits and (self.across == 0 or self.columns < self.across <= MOST_ACROSS)
