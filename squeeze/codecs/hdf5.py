"""The arrays in HDF5 and NetCDF-4 files: those that are stored in one piece, and the chunks that are coded.

Object headers are looked for where they may be, without the groups that name the arrays. The format is that of "HDF5
File Format Specification Version 3.0" (The HDF Group). Section IV.A.1 has the object headers. IV.A.2 has the messages
on data spaces, data types, layouts and filters, and III.A.1 the trees of chunks.
"""

import re
import struct
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import NamedTuple

__all__ = ["FLOAT", "SIGNED", "UNSIGNED", "Numbers", "find_arrays", "find_chunks"]

UNSIGNED, SIGNED, FLOAT = range(3)
_MARK = re.compile(rb"\x89HDF\r\n\x1a\n")
_HEADER = re.compile(rb"OHDR\x02|\x01\0..\x01\0\0\0....\0\0\0\0", re.DOTALL)  # of version 2, and of 1
_SPACE, _TYPE, _LAYOUT, _FILTERS, _MORE = 1, 3, 8, 11, 16  # messages
_CONTIGUOUS, _CHUNKED = 1, 2  # layouts
_DEFLATE, _SHUFFLE = 1, 2  # filters
_TREE, _NODE, _DEEPEST = b"TREE\x01", 24, 4  # mark of a node of chunks, bytes before its entries, levels of nodes
_MOST = 1 << 14  # headers that are looked at
_LEAST = 1 << 13  # bytes of an array that pays for cutting what is around it
_FREE = 1 << 10  # messages and entries of trees that are read beyond one for _EACH bytes
_EACH = 16
_WIDTHS = (2, 4, 8)


class Numbers(NamedTuple):
    """The numbers of an array.

    Attributes:
        width: Bytes of a number: 2, 4 or 8.
        kind: UNSIGNED, SIGNED or FLOAT.
        big: Whether the high byte of a number comes first.
        shape: Numbers along each axis, the fastest last; of a chunk, those of the chunk.
        shuffled: Whether the first bytes of all numbers of a chunk come first, then their second ones, and so on.
    """

    width: int
    kind: int
    big: bool
    shape: tuple[int, ...]
    shuffled: bool = False


def find_arrays(raw: bytes) -> Iterator[tuple[int, int, Numbers]]:
    """Yield (start, end, numbers) of the arrays that are stored in one piece."""
    for file in _files(raw):
        for messages in file.headers():
            layout, numbers = messages[_LAYOUT], _numbers(messages)
            if layout[0] not in (3, 4) or layout[1] != _CONTIGUOUS or len(layout) < 18 or not numbers:
                continue
            start, size = struct.unpack_from("<QQ", layout, 2)
            if size >= _LEAST and file.start + start + size <= file.end:
                yield file.start + start, file.start + start + size, numbers


def find_chunks(raw: bytes) -> Iterator[tuple[int, Numbers]]:
    """Yield the start of each chunk that is coded by deflate, and its numbers. A start is found once."""
    seen = set[int]()
    for file in _files(raw):
        for messages in file.headers():
            layout, numbers, filters = messages[_LAYOUT], _numbers(messages), messages.get(_FILTERS, b"")
            if layout[:2] != bytes([3, _CHUNKED]) or len(filters) < 10 or not numbers or len(layout) < 11:
                continue
            axes, first = layout[2], int.from_bytes(filters[8:10] if filters[0] == 1 else filters[2:4], "little")
            if not 0 < axes <= (len(layout) - 11) // 4 or first not in (_DEFLATE, _SHUFFLE):
                continue
            *shape, width = struct.unpack_from(f"<{axes}I", layout, 11)
            if width == numbers.width:
                chunk = numbers._replace(shape=tuple(shape), shuffled=first == _SHUFFLE)
                for place in file.entries(int.from_bytes(layout[3:11], "little"), axes):
                    if place not in seen:
                        seen.add(place)
                        yield place, chunk


def _numbers(messages: dict[int, bytes]) -> Numbers | None:
    """Return the numbers of an array by the messages of its header, or None if they are of another kind."""
    kind, space = messages[_TYPE], messages[_SPACE]
    if len(kind) < 12 or len(space) < 4 or kind[0] & 15 > 1:
        return None
    width, offset, bits = struct.unpack_from("<IHH", kind, 4)
    axes, at = space[1], 8 if space[0] == 1 else 4
    if width not in _WIDTHS or offset or bits != 8 * width or len(space) < at + 8 * axes:
        return None
    form = FLOAT if kind[0] & 15 else SIGNED if kind[1] & 8 else UNSIGNED
    return Numbers(width, form, bool(kind[1] & 1), struct.unpack_from(f"<{axes}Q", space, at))


def _files(raw: bytes) -> "Iterator[_File]":
    """Yield the HDF5 files in data, each up to the next one."""
    left = [len(raw) // _EACH + _FREE]
    for start, end in pairwise([*(match.start() for match in _MARK.finditer(raw)), len(raw)]):
        yield _File(raw, start, end, left)


class _File:
    """An HDF5 file in data, and the number of its parts that may still be read, since many may name the same one.

    All files of some data share that number, a list of one.
    """

    def __init__(self, raw: bytes, start: int, end: int, left: list[int]):
        self.raw, self.start, self.end, self._left = raw, start, end, left

    def headers(self) -> Iterator[dict[int, bytes]]:
        """Yield the messages of each object header that describes an array, by their types."""
        for match in islice(_HEADER.finditer(self.raw, self.start, self.end), _MOST):
            messages = dict[int, bytes]()
            if match[0][:4] == b"OHDR":
                flags = self.raw[match.end()] if match.end() < self.end else 0
                at = match.end() + 1 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
                size = int.from_bytes(self.raw[at : at + (1 << (flags & 3))], "little")
                spans = [(at + (1 << (flags & 3)), size, flags & 4, 2)]
            else:
                spans = [(match.end(), int.from_bytes(match[0][8:12], "little"), 0, 1)]
            for number, span in enumerate(spans):  # which grows as blocks go on in others
                if number < _DEEPEST:
                    spans += self._read(*span, messages)
            if {_SPACE, _TYPE, _LAYOUT} <= messages.keys() and len(messages[_LAYOUT]) > 2:
                yield messages

    def _read(
        self, at: int, size: int, ordered: int, version: int, messages: dict[int, bytes]
    ) -> list[tuple[int, int, int, int]]:
        """Read the messages of a block of a header, and return the blocks in which it goes on."""
        more, end = list[tuple[int, int, int, int]](), min(at + size, self.end)
        head = 8 if version == 1 else 6 if ordered else 4
        while at + head <= end and self._left[0] > 0:
            self._left[0] -= 1
            kind = self.raw[at] if version == 2 else int.from_bytes(self.raw[at : at + 2], "little")
            place = at + (2 if version == 1 else 1)
            length = int.from_bytes(self.raw[place : place + 2], "little")
            at += head + length
            if at > end:
                break
            if kind == _MORE and length >= 16:
                start, total = struct.unpack_from("<QQ", self.raw, at - length)
                mark = 4 if version == 2 else 0  # OCHK, and a checksum
                more.append((self.start + start + mark, total - 2 * mark, ordered, version))
            elif kind in (_SPACE, _TYPE, _LAYOUT, _FILTERS) and kind not in messages:
                messages[kind] = self.raw[at - length : at]
        return more

    def entries(self, root: int, axes: int, level: int = _DEEPEST) -> Iterator[int]:
        """Yield the places in data of the chunks that a tree names, whose root is a place in the file."""
        node = self.start + root
        if level < 0 or node + _NODE > self.end or self.raw[node : node + len(_TREE)] != _TREE:
            return
        height, count = self.raw[node + 5], int.from_bytes(self.raw[node + 6 : node + 8], "little")
        step = 8 * axes + 16
        for at in range(node + _NODE + step - 8, min(node + _NODE + count * step, self.end) - 7, step):
            self._left[0] -= 1
            if self._left[0] < 0:
                return
            place = int.from_bytes(self.raw[at : at + 8], "little")
            if height:
                yield from self.entries(place, axes, min(level, height) - 1)
            elif self.start + place < self.end:
                yield self.start + place
