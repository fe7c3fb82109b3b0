"""Restoring packed files and folders, or verifying them without writing."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from squeeze.checkpoint.safetensors import Bytes
from squeeze.errors import DamagedError, FormatError, LimitError, escaped, printable
from squeeze.packing import container, folder, manifest
from squeeze.packing.base import Base
from squeeze.packing.others import Others, needing
from squeeze.packing.pack import Progress, Totals
from squeeze.packing.record import Record, naming
from squeeze.packing.running_hash import RunningHash
from squeeze.packing.tensors.content import Content, InFile, whole
from squeeze.system import files, storage
from squeeze.system.binary import Positional
from squeeze.system.hub import local_copy
from squeeze.system.limits import Limits
from squeeze.system.moving import synced
from squeeze.system.parallel import LARGE, in_order
from squeeze.system.upload import staged
from squeeze.system.work import scratch_folder


def unpack(
    source: Path | str,
    target: Path | str,
    *,
    base: Path | str | None = None,
    threads: int = 1,
    overwrite: bool = False,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Totals:
    """Restore a packed file or folder to `target`, byte for byte.

    Args:
        source: the packed file or folder, or a URL of fsspec.
        target: the restored file or folder, or a URL.
        base: the checkpoint that a difference needs; found in the folder of `source` if not given.
        threads: threads that decode.
        overwrite: replace an existing target.
        limits: bounds of memory and output.
        progress: called with the number of raw bytes restored since the last call.

    Returns:
        The bytes restored and read.

    Raises:
        FormatError: if the source is not packed, or (as a child of it) damaged.
        LimitError: if `limits` do not allow the memory or the output.
        SqueezeError: if the base is missing or another.
    """
    source, target = local_copy(storage.path_of(source)), storage.path_of(target)
    if place := storage.remote(target):
        folder.check_apart(source, target)
        with staged(place, overwrite) as local:
            return unpack(source, local, base=base, threads=threads, limits=limits, progress=progress)
    folder.check_target(source, target, overwrite)
    with scratch_folder(target) as work:
        content = work / folder.CONTENT
        totals = Restoring.of(source, base, threads, limits, progress).restore(source, content)
        folder.move_into_place(content, target, overwrite)
    return totals


def verify(
    source: Path | str,
    *,
    base: Path | str | None = None,
    threads: int = 1,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Totals:
    """Decode a packed file or folder and compare every checksum, without writing anything.

    Args:
        source: the packed file or folder, a path or a URL that fsspec reads.
        base: the base of a difference, if it is not where the file says.
        threads: threads of the decoder.
        limits: limits on memory.
        progress: called with the bytes done since the last call.

    Returns:
        The bytes decoded and read.

    Raises:
        FormatError: if the source is not packed, or (as a child of it) damaged.
        LimitError: if `limits` do not allow the memory.
        SqueezeError: if the base is missing or another.
    """
    source = local_copy(storage.path_of(source))
    return Restoring.of(source, base, threads, limits, progress).restore(source, None)


@dataclass(frozen=True)
class Restoring:
    """The settings with which all files of a packed checkpoint are restored."""

    base: Base | None
    threads: int
    limits: Limits
    progress: Progress

    @classmethod
    def of(
        cls, source: Path, base: Path | str | None, threads: int, limits: Limits | None, progress: Progress | None
    ) -> "Restoring":
        limits = limits or Limits()
        return cls(Base.needed(source, base, limits), threads, limits, progress or (lambda count: None))

    def restore(self, source: Path, target: Path | None) -> Totals:
        """Restore a file or folder, or only verify it if `target` is None."""
        if not source.is_dir():
            return self._packed_file(source, target, 0, "")[0]
        listed = manifest.read(source, self.limits)
        coded = listed.packed_names
        totals = Totals(0, (source / folder.MANIFEST).stat().st_size)
        for name, expected in listed.hashes.items():
            before, after = source / name, target / name if target else None
            if not before.is_file():
                needed = needing(before, "", self.limits)
                raise DamagedError(f"{source}: {printable(name)} is missing from the packed folder{needed}")
            if after:
                after.parent.mkdir(parents=True, exist_ok=True)
            if name in coded:
                file_totals, digest = self._packed_file(before, after, totals.raw, name)
            else:
                file_totals, digest = self._other_file(before, after, listed.changed_files.get(name), totals.raw)
            if digest != expected:
                path = source / printable(name)
                raise DamagedError(f"{path}: the restored file has another SHA-256: the folder is damaged")
            totals = Totals(totals.raw + file_totals.raw, totals.coded + file_totals.coded)
        return totals

    def _other_file(
        self, source: Path, target: Path | None, original: bytes | None, restored_bytes: int
    ) -> tuple[Totals, str]:
        """Restore a file that was copied, or one that was changed.

        Args:
            source: the file in the packed folder.
            target: where it goes, or None.
            original: its original bytes if it was changed, or None.
            restored_bytes: bytes that were restored before.
        """
        size = source.stat().st_size
        totals = Totals(size if original is None else len(original), size)
        self.limits.need_output(restored_bytes + totals.raw)
        if original is not None:
            if target:
                target.write_bytes(original)
                files.copy_status(source, target)
            digest = hashlib.sha256(original).hexdigest()
        else:
            if target:
                files.copy(source, target)
            digest = folder.sha256_of(target or source)
        self.progress(totals.raw)
        return totals, digest

    def _packed_file(self, source: Path, target: Path | None, restored_bytes: int, name: str) -> tuple[Totals, str]:
        """Restore a packed file; return its sizes and the SHA-256 of the original, which was compared.

        Args:
            source: the packed file.
            target: where the original goes, or None.
            restored_bytes: bytes that were restored before.
            name: its name in the folder.
        """
        try:
            packed = self.described(source, restored_bytes)
            with source.open("rb") as reading:
                if target is None:
                    self.decode(packed, reading, None, name)
                else:
                    with target.open("xb") as writing, synced(writing):
                        self.decode(packed, reading, writing, name)
                    files.copy_status(source, target)
        except (FormatError, LimitError) as error:
            raise type(error)(f"{escaped(str(source))}: {error}") from None
        return Totals(packed.description.size, packed.file.size), packed.description.sha256

    def described(self, source: Path, restored_bytes: int = 0) -> container.PackedFile:
        """Return the header of a packed file after checking limits and base. Raises as `unpack` does."""
        packed = container.read(source, self.limits)
        _check_base(packed.description.base, self.base)
        self.limits.need_output(restored_bytes + packed.description.size)
        container.check_limits(packed, self.limits, LARGE)
        return packed

    def decode(self, packed: container.PackedFile, source: BinaryIO, sink: BinaryIO | None, name: str) -> None:
        """Decode all tensors in order.

        Args:
            packed: the packed file.
            source: the opened file.
            sink: where the original goes, or None.
            name: name of the file in its folder.

        Raises DamagedError if a checksum or the SHA-256 of the file differs.
        """
        description, gaps = packed.description, packed.original.gaps
        self.progress(len(description.header))
        with RunningHash() as state:
            tensors = self.tensors(packed, source, name)
            for record, gap, data in zip(description.records, gaps[:-1], tensors, strict=True):
                if sink:
                    sink.write(gap)
                state.skip(gap)
                for piece in data:
                    state.update(piece)
                    if sink:
                        sink.write(piece.data)
                self.progress(record.size)
            if sink:
                sink.write(gaps[-1])
            digest = state.finish(gaps[-1])
        if digest != description.sha256:
            raise other_hash()

    def tensors(
        self, packed: container.PackedFile, source: BinaryIO, name: str, first: int = 0, count: int | None = None
    ) -> Iterator[Iterable[Bytes]]:
        """Yield the bytes of each tensor, or of `count` tensors from `first` on, in order.

        Args:
            packed: the packed file.
            source: the opened file.
            name: name of the file in its folder.
            first: number of the first tensor.
            count: number of tensors, or None for all.

        Raises DamagedError if a checksum differs.
        """
        scope, payloads = name if packed.is_torch else "", Positional(source)
        others = Others(packed, self.base, self.limits)
        pairs = list(zip(packed.file.tensors, packed.description.records, strict=True))[first:]

        def tasks() -> Iterator[tuple[int, Callable[[int], Iterable[Bytes]]]]:
            for tensor, record in pairs[:count]:
                payload = InFile(payloads, tensor.begin, tensor.size)
                if record.coding.is_member:
                    yield record.size, partial(_member, others, tensor.name, record, scope, payload)
                elif record.size >= LARGE:
                    yield record.size, partial(_pieces, others, tensor.name, record, scope, payload)
                else:
                    with naming(tensor.name):
                        yield record.size, partial(_tensor, others, tensor.name, record, scope, whole(payload))

        return in_order(tasks(), self.threads)


def _tensor(others: Others, name: str, record: Record, scope: str, payload: Bytes, threads: int) -> tuple[Bytes]:
    with others.explaining(name, record, scope):
        other = others.for_record(name, record, scope)
        return (record.restore(name, payload, other, threads),)


def _member(others: Others, name: str, record: Record, scope: str, payload: Content, threads: int) -> tuple[Bytes]:
    """Return the bytes of a tensor in a bundle, whose payload is read once for all of them."""
    with others.explaining(name, record, scope), ExitStack() as opened:
        other = others.content_for(record, name, scope, opened)
        return (record.restore_content(name, payload, other, threads),)


def _pieces(others: Others, name: str, record: Record, scope: str, payload: Content, threads: int) -> Iterator[Bytes]:
    """Yield all bytes of a large tensor, decoded on demand."""
    with others.explaining(name, record, scope), ExitStack() as opened:
        other = others.content_for(record, name, scope, opened)
        yield from record.restore_parts(name, payload, other, threads)


def other_hash() -> DamagedError:
    """Return the error for a restored file with another SHA-256."""
    return DamagedError("the restored file has another SHA-256: the file is damaged")


def _check_base(hashes: tuple[str, ...], base: Base | None) -> None:
    if base is not None and hashes:
        base.check(hashes)
