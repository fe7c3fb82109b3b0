"""Tars as WebDataset and tar itself read them, with the same bytes on every machine: files by their names and contents
alone, and no times, owners or modes."""

import tarfile
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import xxhash

from squeeze.codecs.stream.members import Member, line_of

__all__ = ["Entry", "Tar", "header_bytes", "key_of", "padded", "tar_size"]

_BLOCK, _RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
_END = 2 * _BLOCK  # zeros


class Entry(NamedTuple):
    """A file that goes into a tar: `size` bytes, in pieces."""

    name: str
    size: int
    pieces: Iterable[bytes]


def key_of(name: str) -> str:
    """Of the sample that a file belongs to: its path up to the first dot of its name, as in WebDataset. A name without
    a dot, or that begins with one, is a sample of its own."""
    folder, slash, last = name.rpartition("/")
    stem = last.partition(".")[0]
    return f"{folder}{slash}{stem}." if stem != last and stem else name


def header_bytes(name: str, size: int) -> bytes:
    """What stands before a file: ustar, and pax where that cannot say it."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padded(size: int, block: int = _BLOCK) -> int:
    return -(-size // block) * block


def tar_size(size: int) -> int:
    """Bytes of a tar whose members take so many, with their headers."""
    return padded(size + _END, _RECORD)


class Tar:
    """The bytes of a tar, made as they are read, so that none of its files is held as a whole. `lines` is the index of
    the members that were read, `checksums` are theirs, and `digest` is the XXH3-64 of all that was read."""

    def __init__(self, entries: Iterable[Entry]):
        self.lines, self.checksums, self.digest = bytearray(), array("Q"), xxhash.xxh3_64()
        self._pieces = self._made(entries)
        self._rest = memoryview(b"")

    def seekable(self) -> bool:
        return False

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end alone."""
        out = bytearray()
        while len(out) < size:
            self._rest = self._rest or memoryview(next(self._pieces, b""))
            if not self._rest:
                break
            taken = self._rest[: size - len(out)]
            out += taken
            self._rest = self._rest[len(taken) :]
        self.digest.update(out)
        return bytes(out)

    def _made(self, entries: Iterable[Entry]) -> Iterator[bytes]:
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
