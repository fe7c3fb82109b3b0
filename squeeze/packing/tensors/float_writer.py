"""Writers of payloads, to an array or a file; each section is written at its place, in parts."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from squeeze.packing.tensors.content import PART, Content, pieces
from squeeze.packing.tensors.float_payload import HEAD, MAX_TABLES, PLANE, Array, raw_size
from squeeze.packing.tensors.rans import MAX_SYMBOLS
from squeeze.packing.tensors.tables import VARINT
from squeeze.system.arena import allocate, shrink
from squeeze.system.binary import Positional

__all__ = ["Behind", "FileWriter", "MemoryWriter", "Writer", "aligned", "copy", "in_memory", "most_bytes"]

_ROOM = 3 * PART + (1 << 16)  # bytes: more than any section of a part


class Writer(Protocol):
    """A sink for a payload, with places in bytes from its start. in_place: whether rooms are parts of the payload."""

    in_place: bool

    def reserve(self, most: int) -> None:
        """Prepare for a payload of at most `most` bytes, before anything is written."""

    def room(self, place: int, count: int, kind: type) -> Array:
        """Return an uninitialised array to fill, and then to `put` unless the writer is in place."""

    def put(self, place: int, section: Array) -> None:
        """Write an array, from a room or not."""


class MemoryWriter:
    """A writer to one array. Untouched memory is not allocated, so the array may be as large as any payload."""

    in_place = True

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def reserve(self, most: int) -> None:
        shrink(self._buffer, 0)  # of a payload that was given up
        self._buffer = allocate(most)

    def room(self, place: int, count: int, kind: type) -> Array:
        return self._buffer[place : place + count * np.dtype(kind).itemsize].view(kind)

    def put(self, place: int, section: Array) -> None:
        self._buffer[place : place + section.nbytes] = section.view(np.uint8)

    def payload(self, size: int) -> Array:
        """Return the first bytes, uint8, and end the writer."""
        buffer, self._buffer = self._buffer, np.empty(0, np.uint8)
        return shrink(buffer, size)


def in_memory(write: Callable[[Writer], int]) -> Array | None:
    """Return the payload, uint8, that `write` writes, or None if it returns 0."""
    writer = MemoryWriter()
    size = write(writer)
    payload = writer.payload(size)
    return payload if size else None


class FileWriter:
    """A writer to a file, from `begin` on."""

    in_place = False

    def __init__(self, file: Positional, begin: int):
        self.file, self.begin = file, begin
        self._rooms = deque[Array]()

    def reserve(self, most: int) -> None:
        pass

    def room(self, place: int, count: int, kind: type) -> Array:
        try:
            room = self._rooms.pop()
        except IndexError:
            room = np.empty(_ROOM, np.uint8)
        return room[: count * np.dtype(kind).itemsize].view(kind)

    def put(self, place: int, section: Array) -> None:
        self.file.put(self.begin + place, section.view(np.uint8))
        room = section.base
        if isinstance(room, np.ndarray) and room.size == _ROOM:
            self._rooms.append(room)


class Behind:
    """A writer of a payload within another one, from `begin` on, whose memory the other one has reserved."""

    def __init__(self, writer: Writer, begin: int):
        self._writer, self._begin = writer, begin
        self.in_place = writer.in_place and begin % 8 == 0

    def reserve(self, most: int) -> None:
        pass

    def room(self, place: int, count: int, kind: type) -> Array:
        if self.in_place or not self._writer.in_place:
            return self._writer.room(self._begin + place, count, kind)
        return np.empty(count, kind)

    def put(self, place: int, section: Array) -> None:
        self._writer.put(self._begin + place, section)


def copy(content: Content, writer: Writer, place: int, threads: int = 1) -> int:
    """Write all bytes of a content; return their number."""
    end = place
    for piece in pieces(content, threads):
        writer.put(end, piece)
        end += piece.size
    return end - place


def aligned(place: int) -> int:
    """Return where the next section begins, at a multiple of 4 bytes."""
    return -(-place // 4) * 4


def most_bytes(count: int, widths: tuple[int, ...], lanes: int, rows: int) -> int:
    """Return an upper bound of the payload's bytes.

    Args:
        count: number of values.
        widths: widths of the planes.
        lanes: lanes of a segment.
        rows: rows of a segment.
    """
    segments = -(-count // (lanes * rows))
    text = VARINT * (1 + 2 * MAX_SYMBOLS + MAX_TABLES * MAX_SYMBOLS)
    plane = PLANE.size + text + segments * (1 + 4 + 4 * lanes) + 2 * count + 2 * lanes + 32
    return HEAD.size + sum(plane + 4 * raw_size(count, lanes, rows, width) for width in widths) + 64
