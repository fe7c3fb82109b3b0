"""The way back: packed files and folders to what they were, or only checked."""

import hashlib
import os
import shutil
from functools import partial
from pathlib import Path
from typing import BinaryIO

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.errors import DamagedError, FormatError, SqueezeError
from squeeze.packing import container, folder
from squeeze.packing.base import Base
from squeeze.packing.container import Record
from squeeze.packing.pack import Progress, RunningHash, Totals
from squeeze.system import files
from squeeze.system.in_order import in_order
from squeeze.system.work import scratch_folder

_PIECE = 1 << 22


def unpack(
    source: Path | str,
    target: Path | str,
    *,
    base: Path | str | None = None,
    threads: int = 1,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Totals:
    """Restore a packed file or folder to `target`, byte for byte.

    Raises FormatError or its children for what is not packed or is damaged, and SqueezeError where the
    base is missing or another. progress(n) is told of n more raw bytes restored.
    """
    source, target = Path(source), Path(target)
    folder.check_target(source, target, overwrite)
    with scratch_folder(target) as work:
        made = work / folder.CONTENT
        totals = _restore(source, made, base, threads, progress)
        folder.move_into_place(made, target, overwrite)
    return totals


def verify(
    source: Path | str, *, base: Path | str | None = None, threads: int = 1, progress: Progress | None = None
) -> Totals:
    """Decode a packed file or folder and compare every checksum; nothing is written. Raises as `unpack` does."""
    return _restore(Path(source), None, base, threads, progress)


def _restore(
    source: Path, made: Path | None, base: Path | str | None, threads: int, progress: Progress | None
) -> Totals:
    known = Base.open(base) if base is not None else None
    report = progress or (lambda count: None)
    if not source.is_dir():
        return _restore_file(source, made, known, threads, report)[0]
    manifest = folder.read_manifest(source)
    totals = Totals(0, (source / folder.MANIFEST).stat().st_size)
    for name, expected in manifest.hashes.items():
        before, after = source / name, made / name if made else None
        if not before.is_file():
            raise DamagedError(f"{before} is missing from the packed folder")
        if after:
            after.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(folder.SUFFIX):
            part, digest = _restore_file(before, after, known, threads, report)
        else:
            part, digest = _restore_other(before, after, manifest.kept.get(name))
            report(part.raw)
        if digest != expected:
            raise DamagedError(f"{before}: the SHA-256 of what was restored differs: the folder is damaged")
        totals = Totals(totals.raw + part.raw, totals.coded + part.coded)
    return totals


def _restore_other(source: Path, target: Path | None, kept: bytes | None) -> tuple[Totals, str]:
    """Restore a file that was copied, or that was changed and `kept`."""
    if kept is not None:
        if target:
            target.write_bytes(kept)
            files.copy_status(source, target)
        return Totals(len(kept), source.stat().st_size), hashlib.sha256(kept).hexdigest()
    size = source.stat().st_size
    if target:
        shutil.copyfile(source, target)
        files.copy_status(source, target)
    return Totals(size, size), folder.sha256_of(target or source)


def _restore_file(
    source: Path, target: Path | None, base: Base | None, threads: int, progress: Progress
) -> tuple[Totals, str]:
    """Restore one packed file; its sizes and the SHA-256 of what it was, which was checked."""
    try:
        packed = container.read(source)
        _check_base(packed.description.base, base)
        with source.open("rb") as reading:
            if target is None:
                _decode(packed, reading, None, base, threads, progress)
            else:
                with target.open("xb") as writing:
                    _decode(packed, reading, writing, base, threads, progress)
                    writing.flush()
                    os.fsync(writing.fileno())
                files.copy_status(source, target)
    except FormatError as error:
        raise type(error)(f"{source}: {error}") from None
    return Totals(packed.description.size, packed.file.size), packed.description.sha256


def _check_base(hashes: tuple[str, ...], base: Base | None) -> None:
    if hashes and base is None:
        raise SqueezeError("this checkpoint is stored as a difference: name its base with --base")
    if base is not None:
        if not hashes:
            raise SqueezeError("this checkpoint needs no base")
        base.check(hashes)


def _decode(
    packed: container.PackedFile,
    source: BinaryIO,
    sink: BinaryIO | None,
    base: Base | None,
    threads: int,
    progress: Progress,
) -> None:
    """Decode all tensors in order. Raises DamagedError where a checksum or the SHA-256 of the whole differs."""
    description = packed.description
    if sink:
        sink.write(description.header)
    progress(len(description.header))

    def decoded(tensor: Tensor, record: Record, payload: Bytes, threads: int) -> Bytes:
        other = base.for_record(tensor.name, record) if base and record.coding.startswith(container.DELTA) else None
        try:
            data = container.decode_tensor(payload, record, other, threads)
        except DamagedError as error:
            raise DamagedError(f"tensor {tensor.name!r}: {error}") from None
        container.check_tensor(data, record, tensor.name)
        return data

    pairs = list(zip(packed.file.tensors, description.records, strict=True))
    tasks = ((r.size, partial(decoded, t, r, tensorfile.read_tensor(source, t))) for t, r in pairs)
    with RunningHash(description.header) as state:
        for (_, record), data in zip(pairs, in_order(tasks, threads), strict=True):
            state.update(data)
            if sink:
                sink.write(data.data)
            progress(record.size)
        digest = state.finish()
    if digest != description.sha256:
        raise DamagedError("the SHA-256 of what was restored differs: the file is damaged")
