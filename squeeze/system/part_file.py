"""Parts of an output that workers write before they are joined.

A part is bytes of the output, a description in JSON, its length in 8 bytes, and two XXH3-64 checksums: of the bytes and
of what follows them. If a part is an object of the store that the output goes to, the store copies its bytes.
"""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import xxhash

from squeeze.errors import DamagedError, FormatError
from squeeze.system.binary import PIECE, copy_pieces, read_exactly, write_all
from squeeze.system.documents import parse
from squeeze.system.upload import copier

__all__ = ["FORMAT", "PartFile", "PartWriter", "damaged", "is_whole", "passed_on"]

FORMAT = 3  # version of the format of parts
_DIGEST = 8
_END = 8 + 2 * _DIGEST


class PartWriter:
    """A writer of a part."""

    def __init__(self, sink: BinaryIO):
        self._sink, self._hash = sink, xxhash.xxh3_64()

    def write(self, data: bytes) -> int:
        """Write bytes of the output and return their number."""
        self._hash.update(data)
        write_all(self._sink, data)
        return len(data)

    def finish(self, description: Any) -> None:
        """End the part with a description that JSON can hold."""
        text = json.dumps(description, separators=(",", ":")).encode()
        rest = text + len(text).to_bytes(8, "little") + self._hash.digest()
        write_all(self._sink, rest + xxhash.xxh3_64_digest(rest))


class PartFile:
    """A part that is read from start to end. Raises DamagedError if the file is not a part.

    Attributes:
        description: The description.
        size: The number of bytes of the output.
    """

    def __init__(self, file: BinaryIO):
        self._file, self._hash, self._copied = file, xxhash.xxh3_64(), False
        length = file.seek(0, io.SEEK_END)
        file.seek(max(length - _END, 0))
        end = read_exactly(file, _END)
        self.size = length - _END - int.from_bytes(end[:8], "little")
        if self.size < 0:
            raise damaged()
        file.seek(self.size)
        text = read_exactly(file, length - _END - self.size)
        if xxhash.xxh3_64_digest(text + end[:-_DIGEST]) != end[-_DIGEST:]:
            raise damaged()
        self.description, self._digest = _described(text), end[8:-_DIGEST]
        file.seek(0)

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        data = read_exactly(self._file, count)
        self._hash.update(data)
        return data

    def pass_on(self, count: int, sink: BinaryIO) -> None:
        """Write the next `count` bytes to a sink."""
        if copy := copier(sink, self._file, count):
            copy()
            self._copied = True
            return
        for piece in copy_pieces(self._file, count):
            self._hash.update(piece)
            sink.write(piece)

    def check(self) -> None:
        """Raise DamagedError if the bytes that were read do not match the checksum.

        Bytes that a store copied are not checked: stores keep checksums of their own.
        """
        if not self._copied and self._hash.digest() != self._digest:
            raise damaged()


def is_whole(file: BinaryIO, wanted: Callable[[Any], bool] = lambda description: True) -> bool:
    """Return whether a file is a complete, undamaged part whose description satisfies `wanted`."""
    with suppress(DamagedError):
        part = PartFile(file)
        if wanted(part.description):
            for _ in range(0, part.size, PIECE):
                part.read(min(PIECE, part.size - file.tell()))
            part.check()
            return True
    return False


def _described(text: bytes) -> Any:
    try:
        return parse(text)
    except FormatError:
        raise damaged() from None


def passed_on(file: BinaryIO, sink: BinaryIO) -> Iterator[bytes]:
    """Write a whole file to a sink and yield its bytes in pieces, for a hash."""
    count = file.seek(0, io.SEEK_END)
    file.seek(0)
    copy = copier(sink, file, count)
    for piece in copy_pieces(file, count):
        if not copy:
            sink.write(piece)
        yield piece
    if copy:
        file.seek(0)
        copy()


def damaged() -> DamagedError:
    """Return the error for a damaged part."""
    return DamagedError("a part of the file is damaged: run again to replace it")
