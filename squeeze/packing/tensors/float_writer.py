"""Where the bytes of a coded tensor go: an array, or a file. Each section is written at its place, in parts."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from squeeze.packing.tensors.content import PART, Content, pieces
from squeeze.packing.tensors.float_payload import HEAD, MAX_TABLES, PLANE, Array, raw_size
from squeeze.packing.tensors.rans import MAX_SYMBOLS
from squeeze.packing.tensors.tables import VARINT
from squeeze.system.arena import cut, fresh
from squeeze.system.binary import Positional

__all__ = ["Behind", "FileWriter", "MemoryWriter", "Writer", "aligned", "copy", "in_memory", "most_bytes"]

_ROOM = 3 * PART + (1 << 16)  # bytes: more than any section of a part of a tensor takes


class Writer(Protocol):
    """Places are of bytes from the start of the payload. in_place: rooms are parts of it."""

    in_place: bool

    def reserve(self, most: int) -> None:
        """Before all else: a payload is to come that never takes more bytes."""

    def room(self, place: int, count: int, kind: type) -> Array:
        """Numbers of a type, undefined, to be filled, and then `put` unless they are at `place` already."""

    def put(self, place: int, section: Array) -> None:
        """Write what was made in a room, or any other array."""


class MemoryWriter:
    """Puts a payload together in one array. Only what is written of it takes memory, so that it may be as large as a
    payload can ever be."""

    in_place = True

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def reserve(self, most: int) -> None:
        cut(self._buffer, 0)  # of a payload that came to nothing
        self._buffer = fresh(most)

    def room(self, place: int, count: int, kind: type) -> Array:
        return self._buffer[place : place + count * np.dtype(kind).itemsize].view(kind)

    def put(self, place: int, section: Array) -> None:
        self._buffer[place : place + section.nbytes] = section.view(np.uint8)

    def payload(self, size: int) -> Array:
        """The first bytes, uint8; none where it came to nothing. The writer is done then."""
        buffer, self._buffer = self._buffer, np.empty(0, np.uint8)
        return cut(buffer, size)


def in_memory(write: Callable[[Writer], int]) -> Array | None:
    """Return the payload, uint8, that `write` makes, or None if that is no shorter."""
    writer = MemoryWriter()
    size = write(writer)
    payload = writer.payload(size)
    return payload if size else None


class FileWriter:
    """Writes a payload to a file, from `begin` on."""

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
    """A payload within another one, from `begin` on. What it may take is reserved with the other's."""

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
    """Write all bytes of a content; how many they are."""
    end = place
    for piece in pieces(content, threads):
        writer.put(end, piece)
        end += piece.size
    return end - place


def aligned(place: int) -> int:
    """Where the next section begins, at a multiple of 4 bytes."""
    return -(-place // 4) * 4


def most_bytes(count: int, widths: tuple[int, ...], lanes: int, rows: int) -> int:
    """More bytes than the payload of so many values ever takes."""
    segments = -(-count // (lanes * rows))
    text = VARINT * (1 + 2 * MAX_SYMBOLS + MAX_TABLES * MAX_SYMBOLS)
    plane = PLANE.size + text + segments * (1 + 4 + 4 * lanes) + 2 * count + 2 * lanes + 32
    return HEAD.size + sum(plane + 4 * raw_size(count, lanes, rows, width) for width in widths) + 64
