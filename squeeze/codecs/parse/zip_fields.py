"""Fields of zip archives that follow from the members: CRC-32 and sizes, and what central directories repeat.

They are zeros in the own bytes of a node, and flags of each member say which of its fields are filled in again. What
directories repeat are differences (zip_directory.py) if a flag of the first member says so.
docs/format.md specifies it (21.2).
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse import zip_directory, zip_header

__all__ = ["ALL", "DIGESTS", "IN_DIRECTORY", "RECORD", "Member", "emptied", "fill"]

_DESCRIPTOR = b"PK\7\x08"
IN_HEADER, IN_DESCRIPTOR = 1, 2  # flags: fields of the header, and of the descriptor
IN_DIRECTORY = 4  # the same of the first member: the node's directories are differences
RECORD = 8  # its content is what remains of the RECORD of a wheel (wheel_record.py)
DIGESTS = 16  # its content is what remains of a manifest or a signature file (jar_digests.py)
ALL = IN_HEADER | IN_DESCRIPTOR | IN_DIRECTORY


class Member(NamedTuple):
    """A wrapper in the bytes of a node.

    Attributes:
        start: Its first byte.
        end: The one after its last.
        content: What is in it, uint8; None for wrappers other than zip members.
        flags: Its fields that are filled in.
    """

    start: int
    end: int
    content: np.ndarray | None = None
    flags: int = 0

    @property
    def fields(self) -> bytes:
        """CRC-32 and both sizes."""
        assert self.content is not None
        sizes = (size & 0xFFFFFFFF for size in (self.end - self.start, self.content.size))
        return struct.pack("<III", zlib.crc32(self.content.data), *sizes)


class _Fields(NamedTuple):
    """Hold the values that follow from a member, and their places.

    Attributes:
        header: Where its header begins.
        descriptor: Where the fields of its descriptor begin, or -1.
        values: CRC-32 and both sizes.
    """

    header: int
    descriptor: int
    values: bytes

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the flags and places of the values."""
        yield IN_HEADER, self.header + 14
        if self.descriptor >= 0:
            yield IN_DESCRIPTOR, self.descriptor


def fill(data: np.ndarray, members: Sequence[Member]) -> np.ndarray:
    """Return the bytes of a node with what the flags of members name.

    Args:
        data: uint8, changed in place.
        members: all wrappers of the node, in order.
    """
    found = _fields(data.tobytes(), members)
    for number, fields in found.items():
        for flag, at in fields.places():
            if members[number].flags & flag:
                data[at : at + len(fields.values)] = np.frombuffer(fields.values, np.uint8)
    if any(member.flags & IN_DIRECTORY for member in members):
        return _exchanged(data, members, found, True)
    return data


def emptied(data: np.ndarray, members: Sequence[Member]) -> tuple[np.ndarray, list[int]]:
    """Return the bytes of a node without what can be filled in, and the flags of all wrappers.

    Args:
        data: uint8.
        members: all wrappers of the node, in order.
    """
    found = _fields(data.tobytes(), members)
    for by_directory in (True, False) if found else ():
        empty, flags = _emptied(data, members, found, by_directory)
        filled = fill(empty.copy(), [member._replace(flags=flag) for member, flag in zip(members, flags, strict=True)])
        if np.array_equal(filled, data):
            return empty, flags
    return data, [0] * len(members)


def _emptied(
    data: np.ndarray, members: Sequence[Member], found: dict[int, _Fields], by_directory: bool
) -> tuple[np.ndarray, list[int]]:
    """Return the bytes of a node without fields, and if `by_directory` with differences that pay, and the flags."""
    raw, flags, empty = data.tobytes(), [0] * len(members), data.copy()
    if by_directory:
        different = _exchanged(data, members, found, False)
        changed = different != data
        if 2 * np.count_nonzero(different[changed]) < np.count_nonzero(changed):
            flags[next(iter(found))], empty = IN_DIRECTORY, different
    for number, fields in found.items():
        for flag, at in fields.places():
            if raw[at : at + len(fields.values)] == fields.values:
                flags[number] |= flag
                empty[at : at + len(fields.values)] = 0
    return empty, flags


def _exchanged(data: np.ndarray, members: Sequence[Member], found: dict[int, _Fields], is_coded: bool) -> np.ndarray:
    """Return the bytes of a node with directories in place of differences, or the other way round."""
    known = {fields.header: fields.values for fields in found.values()}
    return zip_directory.exchange(data, [(member.start, member.end) for member in members], known, is_coded)


def _fields(data: bytes, members: Sequence[Member]) -> dict[int, _Fields]:
    """Return the fields of zip members that have a header, by the numbers of the wrappers."""
    found, done = dict[int, _Fields](), 0
    afters = [*(member.start for member in members[1:]), len(data)][: len(members)]
    for number, (member, after) in enumerate(zip(members, afters, strict=True)):
        header = zip_header.ending_at(data, member.start, done) if member.content is not None else None
        done = member.end
        if header:
            descriptor = done + 4 * (data[done : done + 4] == _DESCRIPTOR)
            found[number] = _Fields(header.start, descriptor if descriptor + 12 <= after else -1, member.fields)
    return found
