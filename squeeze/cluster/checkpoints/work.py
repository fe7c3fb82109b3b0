"""Workers' operations on the files of a checkpoint: whole ones, and parts of large ones that are joined at the end.

Every operation can be repeated with the same result, as in files.py.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

from squeeze.cluster.files import check_unchanged, open_unchanged, remove_parts
from squeeze.cluster.operations import HASH, PACK, VERIFY, File, FileResult, Part, Task, result_or_error
from squeeze.errors import DamagedError, FormatError
from squeeze.packing import parts
from squeeze.packing.base import is_packed
from squeeze.packing.container import PackedFile
from squeeze.packing.parts import Packing, Span
from squeeze.packing.sources import Source, note_of_copy, source_of
from squeeze.packing.unpack import Restoring, other_hash
from squeeze.system import files, storage
from squeeze.system.limits import Limits
from squeeze.system.moving import NAME_LIMIT
from squeeze.system.part_file import FORMAT
from squeeze.version import __version__

__all__ = ["join", "name_in", "part", "source_at", "whole"]

_PIECE = 1 << 22


def whole(batch: Sequence[File], task: Task) -> list[FileResult]:
    """Pack, restore or check files one after another."""
    action = {PACK: _pack, VERIFY: _verify}.get(task.operation, _unpack)
    return [result_or_error(file, lambda file=file: action(file, task)) for file in batch]  # type: ignore[misc]


def part(piece: Part, task: Task) -> FileResult:
    """Pack or restore some tensors of a file."""
    return result_or_error(piece.file, lambda: _part(piece, task))


def join(file: File, count: int, task: Task) -> FileResult:
    """Join the parts of a file to its output, and delete them."""
    return result_or_error(file, lambda: _join(file, count, task))


def source_at(path: Path, is_single: bool) -> Source | None:
    """Return what is packed of a file, or None if it is copied. Raise FormatError if it is invalid."""
    if is_packed(path, Limits()):
        raise FormatError("is packed already; unpack it first")
    return source_of(path, is_single)


def name_in(root: Path, path: Path) -> str:
    """Return the name of a file in its checkpoint, or "" if the file is the checkpoint."""
    return "" if path == root else path.relative_to(root).as_posix()


def _pack(file: File, task: Task) -> FileResult:
    with open_unchanged(file) as source:
        found = source_at(file.source, not name_in(task.options["root"], file.source))
        with _output(file, task) as sink:
            if found is None:
                sha256 = _copied(source, sink)
            else:
                sha256 = parts.pack_whole(found, _packing(found, file, task), sink)
    return _result_of(file, sha256, found)


def _unpack(file: File, task: Task) -> FileResult:
    with open_unchanged(file) as source:
        if not _has_tensors(file, task):
            with _output(file, task) as sink:
                if _copied(source, sink) != file.checksum:
                    raise other_hash()
            return FileResult(file, file.size, file.size, file.checksum)
        job, packed = _restoring(file, task)
        with _output(file, task) as sink:
            job.decode(packed, source, sink, name_in(task.options["root"], file.source))
    return FileResult(file, packed.description.size, file.size, packed.description.sha256)


def _verify(file: File, task: Task) -> FileResult:
    with open_unchanged(file) as source:
        if not _has_tensors(file, task):
            if parts.sha256_of(source) != file.checksum:
                raise other_hash()
            return FileResult(file, file.size, file.size, file.checksum)
        job, packed = _restoring(file, task)
        job.decode(packed, source, None, name_in(task.options["root"], file.source))
    return FileResult(file, packed.description.size, file.size, packed.description.sha256)


def _part(piece: Part, task: Task) -> FileResult:
    file, span = piece.file, Span(piece.begin, piece.length)
    target = _folder(file, task) / f"{piece.number:08d}"
    result = FileResult(file, piece.length)
    if task.operation == PACK and _is_there(target, span):
        return result
    with open_unchanged(file) as source:
        if task.operation == PACK:
            found = source_at(file.source, not name_in(task.options["root"], file.source))
            assert found
            with _part_output(target, file) as sink:
                if span.first == HASH:
                    sink.write(parts.sha256_of(source).encode())
                else:
                    parts.pack_part(found, span, _packing(found, file, task), sink)
            return result
        job, packed = _restoring(file, task)
        if _size_of(target) != parts.size_restored(packed, span):
            with _part_output(target, file) as sink:
                name = name_in(task.options["root"], file.source)
                parts.restore_part(job, packed, span, source, sink, name)
    return result


def _join(file: File, count: int, task: Task) -> FileResult:
    folder = _folder(file, task)
    paths = [folder / f"{number:08d}" for number in range(count)]
    with open_unchanged(file):
        if task.operation == PACK:
            found = source_at(file.source, not name_in(task.options["root"], file.source))
            assert found
            sha256 = paths.pop().read_bytes().decode()
            with _output(file, task, file.size) as sink:
                parts.join_packed(found, paths, _packing(found, file, task), sha256, sink)
            result = _result_of(file, sha256, found)
        else:
            _, packed = _restoring(file, task)
            with _output(file, task, packed.description.size) as sink:
                parts.join_restored(packed, paths, sink)
            result = FileResult(file, packed.description.size, file.size, packed.description.sha256)
    remove_parts(folder)
    return result


def _packing(source: Source, file: File, task: Task) -> Packing:
    name = name_in(task.options["root"], file.source)
    chosen = {name: task.options[name] for name in ("level", "base", "verify", "threads")}
    shared = task.options["shared"].get(name, {})
    return Packing(scope=name if source.is_torch else "", is_torch=source.is_torch, shared=shared, **chosen)


def _restoring(file: File, task: Task) -> tuple[Restoring, PackedFile]:
    """Return how a file is restored. Raise the errors of `unpack`."""
    options = task.options
    job = Restoring(options["base"], options["threads"], options["limits"], lambda count: None)
    packed = job.described(file.source)
    if file.checksum and packed.description.sha256 != file.checksum:
        raise DamagedError("it is not the file that its folder lists: the folder is damaged")
    return job, packed


def _has_tensors(file: File, task: Task) -> bool:
    return name_in(task.options["root"], file.source) in task.options["packed"]


def _result_of(file: File, sha256: str, source: Source | None) -> FileResult:
    assert file.target
    return FileResult(
        file, file.size, file.target.stat().st_size, sha256, note=source.note if source else note_of_copy(file.source)
    )


@contextmanager
def _output(file: File, task: Task, composed: int = 0) -> Iterator[BinaryIO]:
    """Open the output of a file, which appears when the block succeeds and the source has not changed.

    Args:
        file: The file.
        task: The task.
        composed: The approximate bytes of parts that are joined, otherwise 0.
    """
    assert file.target
    if not storage.remote(file.target):
        file.target.parent.mkdir(parents=True, exist_ok=True)
    like = file.source.stat()
    with files.replacing(file.target, like, mark=task.mark, composed=composed) as sink:
        yield sink
        check_unchanged(file)


@contextmanager
def _part_output(target: Path, file: File) -> Iterator[BinaryIO]:
    if not storage.remote(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(target) as sink:
        yield sink
        check_unchanged(file)


def _copied(source: BinaryIO, sink: BinaryIO) -> str:
    state = hashlib.sha256()
    while piece := source.read(_PIECE):
        state.update(piece)
        sink.write(piece)
    return state.hexdigest()


def _is_there(target: Path, span: Span) -> bool:
    with suppress(FileNotFoundError), target.open("rb") as made:
        return bool(made.read(1)) if span.first == HASH else parts.is_whole(made, span)
    return False


def _size_of(target: Path) -> int:
    try:
        return target.stat().st_size
    except FileNotFoundError:
        return -1


def _folder(file: File, task: Task) -> Path:
    """Return the folder for the parts of a file's output. It depends on the state of the source."""
    assert file.target
    base = task.options["base"]
    of_base = sorted(base.identities) if base else ()
    what = (task.operation, file.stamp, __version__, FORMAT, task.options.get("level"), of_base)
    digest = xxhash.xxh3_64_hexdigest(repr(what).encode())
    return file.target.with_name(f".{file.target.name[:NAME_LIMIT]}.{digest[:12]}.parts")
