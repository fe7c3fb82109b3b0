"""Writing the bytes of a coded tensor, in one array: what float_payload.py parses."""

import numpy as np

from squeeze.codecs.tensors.float_payload import HEAD, MAX_TABLES, PLANE, Array, raw_size
from squeeze.codecs.tensors.plane_reader import whole_size
from squeeze.codecs.tensors.rans import MAX_SYMBOLS
from squeeze.codecs.tensors.tables import VARINT
from squeeze.system.arena import cut, scratch


class Writer:
    """Puts a payload together in one array: sections one after the other, each from a multiple of 4 bytes on.

    Only what is written of the array takes memory, so that it may be as large as a payload can ever be.
    """

    def __init__(self, most: int, head: bytes, planes: int):
        self._buffer = scratch(most)
        self._directory = len(head)
        self._end, self._words_end = len(head) + planes * PLANE.size, 0
        self._buffer[: len(head)] = np.frombuffer(head, np.uint8)

    def add_plane(self, *entry: int) -> None:
        """The next entry of the directory."""
        self._put(self._directory, PLANE.pack(*entry))
        self._directory += PLANE.size

    def add(self, content: bytes) -> None:
        self._put(self._end, content)
        self.close(self.room(len(content), np.uint8))

    def _put(self, place: int, content: bytes) -> None:
        self._buffer[place : place + len(content)] = np.frombuffer(content, np.uint8)

    def room(self, count: int, kind: type) -> Array:
        """Where the next section goes, if it has so many numbers of a type. It is part of the payload once `close`d."""
        size = count * np.dtype(kind).itemsize
        return self._buffer[self._end : self._end + size].view(kind)

    def close(self, section: Array) -> None:
        """End a section that was written to the `room`."""
        end = self._end + section.nbytes
        self._end = -(-end // 4) * 4
        self._buffer[end : self._end] = 0
        if section.dtype == np.uint16:
            self._words_end = self._end

    def payload(self, lanes: int) -> Array:
        """All of it, uint8, with zeros at the end as `whole_size` says. The writer is done then."""
        size = int(whole_size(self._end, self._words_end, lanes))
        self._buffer[self._end : size] = 0
        return cut(self._buffer, size)


def most_bytes(count: int, widths: tuple[int, ...], lanes: int, rows: int) -> int:
    """More bytes than the payload of so many values ever takes."""
    segments = -(-count // (lanes * rows))
    text = VARINT * (1 + 2 * MAX_SYMBOLS + MAX_TABLES * MAX_SYMBOLS)
    plane = PLANE.size + text + segments * (1 + 4 + 4 * lanes) + 2 * count + 2 * lanes + 32
    return HEAD.size + sum(plane + 4 * raw_size(count, lanes, rows, width) for width in widths) + 64
