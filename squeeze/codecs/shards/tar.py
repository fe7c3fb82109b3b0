"""Tars as WebDataset and tar read them, with the same bytes on every machine: names and contents of files, without
times, owners or modes."""

import tarfile
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import xxhash

from squeeze.codecs.stream.members import Member, line_of

__all__ = ["Entry", "Tar", "header_bytes", "padded", "sample_key", "tar_size"]

_BLOCK, _RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
_END = 2 * _BLOCK  # zeros at the end


class Entry(NamedTuple):
    """A file that goes into a tar: `size` bytes, in pieces."""

    name: str
    size: int
    pieces: Iterable[bytes]


def sample_key(name: str) -> str:
    """Return the key of the sample that a file belongs to: its path up to the first dot of its name, as in WebDataset.

    A name without a dot, or that begins with one, is a sample of its own.
    """
    folder, slash, last = name.rpartition("/")
    stem = last.partition(".")[0]
    return f"{folder}{slash}{stem}." if stem != last and stem else name


def header_bytes(name: str, size: int) -> bytes:
    """Return a file's header: ustar, with pax records if its name or size needs them."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padded(size: int, block: int = _BLOCK) -> int:
    """Round a size up to whole blocks."""
    return -(-size // block) * block


def tar_size(size: int) -> int:
    """Return the bytes of a tar whose members take `size` bytes with their headers."""
    return padded(size + _END, _RECORD)


class Tar:
    """A readable stream of a tar, made as it is read, so that no file is held as a whole.

    `lines` is the index of the members read so far, `checksums` are theirs, and `digest` is the XXH3-64 of all bytes
    read.
    """

    def __init__(self, entries: Iterable[Entry]):
        self.lines, self.checksums, self.digest = bytearray(), array("Q"), xxhash.xxh3_64()
        self._pieces = self._generate(entries)
        self._pending = memoryview(b"")

    def seekable(self) -> bool:
        return False

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none only at the end."""
        out = bytearray()
        while len(out) < size:
            self._pending = self._pending or memoryview(next(self._pieces, b""))
            if not self._pending:
                break
            taken = self._pending[: size - len(out)]
            out += taken
            self._pending = self._pending[len(taken) :]
        self.digest.update(out)
        return bytes(out)

    def _generate(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        position = 0
        for entry in entries:
            header, digest = header_bytes(entry.name, entry.size), xxhash.xxh3_64()
            yield header
            for piece in entry.pieces:
                digest.update(piece)
                if piece:
                    yield piece
            member = Member(entry.name, position + len(header), entry.size, digest.intdigest())
            self.lines += line_of(member)
            self.checksums.append(member.checksum)
            position = member.offset + padded(entry.size)
            if padding := padded(entry.size) - entry.size:
                yield bytes(padding)
        yield bytes(tar_size(position) - position)
