"""Headers of zip members: reading the one at a place, and finding the one that ends at a place.

The fields are those of APPNOTE.TXT by PKWARE, 4.3.7.
"""

import struct
from typing import NamedTuple

__all__ = ["LONGEST", "MARK", "SIZE", "Header", "ending_at", "read"]

MARK = b"PK\3\4"
SIZE = 30  # bytes without name and extra fields
LONGEST = 1 << 12  # bytes before a place in which a header that ends there is looked for
_STREAMED = 8  # flag of members whose sizes follow them


class Header(NamedTuple):
    """The header of a member.

    Attributes:
        start: Its first byte.
        end: The one after its last.
        fields: 24 bytes: version, flags, method, time, date, CRC-32, sizes, length of the name.
        name: The member's name.
        extra: Its extra fields.
    """

    start: int
    end: int
    fields: bytes
    name: bytes
    extra: bytes

    @property
    def is_streamed(self) -> bool:
        """Return whether CRC-32 and sizes follow the member."""
        return bool(self.fields[2] & _STREAMED)

    @property
    def method(self) -> int:
        """Return 0 for stored members, 8 for deflated ones."""
        return int.from_bytes(self.fields[4:6], "little")

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the coded content, and those of the content."""
        coded, size = struct.unpack_from("<II", self.fields, 14)
        return coded, size

    def with_sums(self, sums: bytes) -> "Header":
        """Return the same header with another CRC-32, or with all of CRC-32 and sizes."""
        return self._replace(fields=self.fields[:10] + sums + self.fields[10 + len(sums) :])


def read(data: bytes | bytearray, start: int, stop: int) -> Header | None:
    """Return the header that begins at a place, or None if it does not end by another place.

    Args:
        data: bytes with `MARK` at `start`.
        start: the first byte of the header.
        stop: the place by which it ends.
    """
    begin = start + SIZE
    if begin > stop:
        return None
    name, extra = struct.unpack_from("<HH", data, start + 26)
    middle = begin + name
    end: int = middle + extra
    if end > stop:
        return None
    return Header(start, end, bytes(data[start + 4 : start + 28]), bytes(data[begin:middle]), bytes(data[middle:end]))


def ending_at(data: bytes, end: int, begin: int = 0) -> Header | None:
    """Return the header that ends at a place, the nearest if there are several, or None.

    Args:
        data: bytes of a file.
        end: the place.
        begin: where the header begins at the earliest.
    """
    start = end
    while (start := data.rfind(MARK, max(begin, end - LONGEST), start)) >= 0:
        header = read(data, start, end)
        if header and header.end == end:
            return header
    return None
