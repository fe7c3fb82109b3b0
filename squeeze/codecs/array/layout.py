"""The layout of an array: its numbers and columns, and how a payload says so."""

import io
from typing import NamedTuple

from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["FLOAT", "MOST_COLUMNS", "SIGNED", "UNSIGNED", "WIDTHS", "Layout"]

WIDTHS = (2, 4, 8)
UNSIGNED, SIGNED, FLOAT = range(3)
MOST_COLUMNS = 64


class Layout(NamedTuple):
    """The layout of an array in bytes that it covers wholly, but for a prefix.

    Attributes:
        width: Bytes of a number: 2, 4 or 8.
        columns: Numbers of a row, 1 to 64.
        kind: UNSIGNED, SIGNED or FLOAT.
        big: 1 if the high byte of a number comes first.
        prefix: Bytes before the first number.
    """

    width: int
    columns: int = 1
    kind: int = 0
    big: int = 0
    prefix: int = 0

    @property
    def bits(self) -> int:
        """The bits of a number."""
        return 8 * self.width

    @property
    def row(self) -> int:
        """The bytes of a row."""
        return self.width * self.columns

    def to_bytes(self) -> bytes:
        """Return what `read` reads."""
        flags = WIDTHS.index(self.width) | self.kind << 2 | self.big << 4
        return bytes([flags, self.columns]) + varint(self.prefix)

    @classmethod
    def read(cls, file: io.BytesIO, length: int) -> "Layout":
        """Read the layout of an array of `length` bytes, with its prefix.

        Raises:
            DamagedError: if there is no such array.
        """
        flags, columns = read_exactly(file, 2)
        prefix = read_varint(file)[0]
        if flags & 3 == 3 or flags >> 2 & 3 == 3 or flags >> 5 or not cls(2, columns, 0, 0, prefix).is_possible(length):
            raise DamagedError("the layout of an array is impossible: the file is damaged")
        return cls(WIDTHS[flags & 3], columns, flags >> 2 & 3, flags >> 4, prefix)

    def is_possible(self, length: int) -> bool:
        """Return whether `length` bytes may have this layout."""
        return 1 <= self.columns <= MOST_COLUMNS and 0 <= self.prefix <= length
