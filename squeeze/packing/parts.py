"""Packing and restoring a file in parts, for several workers: each takes some tensors, and one joins the parts.

The joined file is the same as from `pack` or `unpack`. A part of a packed file is its payloads end to end, with a table
of [coding, checksums, size]. A part of a restored file is its bytes alone: the gap before each tensor, and the tensor.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from squeeze.packing import container
from squeeze.packing.base import Base
from squeeze.packing.bundling import described, records_of
from squeeze.packing.container import Coded, PackedFile
from squeeze.packing.repeats import Sharing
from squeeze.packing.run import Run
from squeeze.packing.running_hash import Checksums
from squeeze.packing.sources import Source
from squeeze.packing.unpack import Restoring, other_hash
from squeeze.system import part_file
from squeeze.system.binary import Positional, copy_pieces
from squeeze.system.part_file import PartFile, PartWriter, damaged, passed_on
from squeeze.system.storage import remote

__all__ = [
    "Packing",
    "Span",
    "is_whole",
    "join_packed",
    "join_restored",
    "pack_part",
    "pack_whole",
    "restore_part",
    "sha256_of",
    "size_restored",
]

_DIGEST = 8
_PIECE = 1 << 22


@dataclass(frozen=True)
class Span:
    """A range of `count` tensors of a file, from `first` on."""

    first: int
    count: int


@dataclass(frozen=True)
class Packing:
    """The settings with which all tensors of a file are packed. scope: the scope of its tensors in the base."""

    level: str
    base: Base | None = None
    scope: str = ""
    is_torch: bool = False
    verify: bool = True
    threads: int = 1
    shared: Mapping[str, Sharing] = field(default_factory=dict)  # what tensors share with earlier ones, by name

    @property
    def hashes(self) -> tuple[str, ...]:
        """The hashes of the base for files of this kind."""
        return self.base.identity(self.is_torch) if self.base else ()


def pack_part(source: Source, span: Span, packing: Packing, sink: BinaryIO) -> None:
    """Code some tensors of a file.

    Args:
        source: the file.
        span: its tensors.
        packing: the settings.
        sink: where the part goes.

    Raises as `pack` does.
    """
    with tempfile.TemporaryFile() as writing:
        sized = _write_payloads(source, span, packing, writing)
        part = PartWriter(sink)
        writing.seek(0)
        for piece in copy_pieces(writing, sum(size for _, size in sized)):
            part.write(piece)
        part.finish([[described(records), [one.checksum for one in records], size] for records, size in sized])


def pack_whole(source: Source, packing: Packing, sink: BinaryIO) -> str:
    """Write the packed file; return the SHA-256 of the source."""
    with tempfile.TemporaryFile() as writing:
        sized = _write_payloads(source, Span(0, len(source.file.tensors)), packing, writing)
        with source.file.path.open("rb") as reading:
            sha256 = sha256_of(reading)
        sink.write(_header(source, packing, sized, sha256))
        writing.seek(0)
        for piece in copy_pieces(writing, sum(size for _, size in sized)):
            sink.write(piece)
    return sha256


def is_whole(part: BinaryIO, span: Span) -> bool:
    """Return whether a part of a packed file, of these tensors, is complete and unchanged."""
    return part_file.is_whole(part, lambda table: sum(len(checksums) for _, checksums, _ in table) == span.count)


def join_packed(source: Source, parts: list[Path], packing: Packing, sha256: str, sink: BinaryIO) -> int:
    """Write the packed file of a source from its parts; return its size.

    Args:
        source: the source.
        parts: the parts in order.
        packing: the settings.
        sha256: hash of the source.
        sink: where the file goes.

    Raises DamagedError if a part is damaged.
    """
    first, sized = 0, list[Coded]()
    for path in parts:
        with path.open("rb") as part:
            table = PartFile(part).description
        for coding, checksums, size in table:
            tensors = source.file.tensors[first : first + len(checksums)]
            if len(tensors) != len(checksums):
                raise damaged()
            sized.append((records_of(tensors, coding, checksums), size))
            first += len(tensors)
    if first != len(source.file.tensors):
        raise damaged()
    header = _header(source, packing, sized, sha256)
    written, sizes = sink.write(header), (size for _, size in sized)
    for path in parts:
        with path.open("rb") as part:
            payloads = PartFile(part)
            if payloads.size != sum(islice(sizes, len(payloads.description))):
                raise damaged()
            payloads.pass_on(payloads.size, sink)
            payloads.check()
            written += payloads.size
    return written


def restore_part(job: Restoring, packed: PackedFile, span: Span, source: BinaryIO, sink: BinaryIO, name: str) -> None:
    """Decode some tensors and compare their checksums.

    Args:
        job: the settings.
        packed: the packed file.
        span: its tensors.
        source: the opened packed file.
        sink: where the part goes.
        name: name of the file in its folder.

    Raises as `unpack` does.
    """
    gaps = packed.original.gaps[span.first : span.first + span.count]
    for gap, data in zip(gaps, job.tensors(packed, source, name, span.first, span.count), strict=True):
        sink.write(gap)
        for piece in data:
            sink.write(piece.data)


def size_restored(packed: PackedFile, span: Span) -> int:
    """Return the bytes that `restore_part` writes."""
    end = span.first + span.count
    sizes = (record.size for record in packed.description.records[span.first : end])
    return sum(sizes) + sum(map(len, packed.original.gaps[span.first : end]))


def join_restored(packed: PackedFile, parts: list[Path], sink: BinaryIO) -> int:
    """Write the restored file from its parts in order; return its size.

    Raises DamagedError if its SHA-256 is not that of the original.
    """
    state, written = hashlib.sha256(), 0
    for path in parts:
        with path.open("rb") as part:
            for piece in passed_on(part, sink):
                state.update(piece)
                written += len(piece)
    rest = packed.original.gaps[-1]
    state.update(rest)
    written += sink.write(rest)
    if state.hexdigest() != packed.description.sha256:
        raise other_hash()
    return written


def sha256_of(file: BinaryIO) -> str:
    """Return the SHA-256 of the rest of an opened file."""
    state = hashlib.sha256()
    while piece := file.read(_PIECE):
        state.update(piece)
    return state.hexdigest()


def _header(source: Source, packing: Packing, sized: list[Coded], sha256: str) -> bytes:
    length = container.reserve(source, packing.level, packing.hashes, packing.shared)
    return container.header_of(source, packing.level, packing.hashes, sized, sha256, length)


def _write_payloads(source: Source, span: Span, packing: Packing, writing: BinaryIO) -> list[Coded]:
    """Write the payloads of some tensors end to end; return their records and sizes."""
    base = packing.base if packing.hashes else None
    with _opened(source, span) as reading, Checksums() as checksums:
        options = (packing.level, base, packing.scope, packing.verify, packing.threads, packing.shared)
        run, sized = Run(source.file, reading, writing, checksums, *options), list[Coded]()
        for _, records, payload in run.code(span.first, span.count):
            sized.append((records, payload if isinstance(payload, int) else payload.size))
    writing.truncate(sum(size for _, size in sized))
    return sized


@contextmanager
def _opened(packed_source: Source, span: Span) -> Iterator[Positional]:
    """Open the source for random access. The tensors of an object at a URL are fetched once, to a sparse file."""
    with packed_source.file.path.open("rb") as source:
        if not remote(packed_source.file.path):
            yield Positional(source)
            return
        with tempfile.TemporaryFile() as fetched:
            file, tensors = Positional(fetched), packed_source.file.tensors[span.first : span.first + span.count]
            if tensors:
                source.seek(place := tensors[0].begin)
                for piece in copy_pieces(source, tensors[-1].end - place):
                    file.put(place, np.frombuffer(piece, np.uint8))
                    place += len(piece)
            yield file
