"""The main path of packing: a checkpoint's files, tensor by tensor, into packed ones. Read this first.

`pack` takes a file of tensors or a folder of a model. Each tensor is read, coded, verified and written before the next
one is read. Large tensors are read, written and verified in parts, so that memory does not grow with them except at
level archive. Everything is written to a work folder next to the target, with a journal of finished tensors, and moved
into place at the end; a stopped run continues from there. The header of a packed file is container.py's, decoding
unpack.py's.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from squeeze.checkpoint.safetensors import Tensor
from squeeze.errors import FormatError, SqueezeError, VerifyError, printable
from squeeze.packing import codings, container, folder, manifest, repeats
from squeeze.packing.base import Base, is_packed
from squeeze.packing.bundles import shares
from squeeze.packing.chain import packed_files
from squeeze.packing.container import Coded
from squeeze.packing.repeats import Sharing
from squeeze.packing.run import Journal, Run
from squeeze.packing.running_hash import RunningHash
from squeeze.packing.sources import Source, note_of_copy, source_of
from squeeze.system import files, storage
from squeeze.system.binary import Positional
from squeeze.system.hub import copy_if_offline
from squeeze.system.limits import Limits
from squeeze.system.moving import synced
from squeeze.system.upload import staged
from squeeze.system.work import work_folder
from squeeze.version import __version__

Progress = Callable[[int], None]
_PIECE = 1 << 22


@dataclass(frozen=True)
class Totals:
    """The bytes of a checkpoint's files before and after, other files of a folder included.

    left_out: what of a folder was not packed, and notes: what else a user should know, as messages.
    """

    raw: int
    coded: int
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def pack(  # noqa: PLR0913
    source: Path | str,
    target: Path | str,
    *,
    level: str = "runtime",
    base: Path | str | None = None,
    max_chain: int = 16,
    threads: int = 1,
    verify: bool = True,
    strict: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    on_tensor: Callable[[int, int], None] | None = None,
) -> Totals:
    """Pack a file of tensors, or a folder with its other files, to `target`; `unpack` restores it byte for byte.

    A file of tensors is one of safetensors, of torch.save (.pt, .pth, .bin, .ckpt) or of torch.distributed.checkpoint
    (.distcp). No code in it is run. Any other file is packed as plain bytes if it is named itself, and copied in a
    folder. A target at a URL is made in the folder for temporary files and uploaded after verification. A stopped run
    continues where it was when it is started again, unless it stopped because of an error in the input.

    Args:
        source: the file or folder, or a URL of fsspec.
        target: the packed file or folder, or a URL.
        level: "fast" (for checkpoints written often), "runtime" (decodes fast, on GPUs too) or "archive" (smallest, CPU
            only).
        base: a checkpoint, packed or not, from whose tensors of the same names differences are stored. A file in which
            no tensor is smaller as a difference needs no base.
        max_chain: pack without the base if it ends a chain of this many differences.
        threads: threads that code tensors.
        verify: decode every tensor after coding and compare it.
        strict: refuse a folder of which something would be left out, such as empty folders and pipes.
        overwrite: replace an existing target.
        progress: called with the number of raw bytes done since the last call.
        on_tensor: called with the raw and the coded bytes of each tensor.

    Returns:
        The bytes before and after, with messages.

    Raises FormatError for a source that is not a file of tensors or is damaged, SqueezeError if a file is in the way,
    and VerifyError if a coded tensor does not decode to itself.
    """
    source, target = copy_if_offline(storage.path_of(source)), storage.path_of(target)
    if place := storage.remote(target):
        options: dict[str, Any] = {"base": base, "max_chain": max_chain, "threads": threads, "verify": verify}
        folder.check_apart(source, target)
        with staged(place, overwrite) as local:  # a packed file's header is written last
            return pack(source, local, level=level, strict=strict, progress=progress, on_tensor=on_tensor, **options)
    check_level(level)
    folder.check_target(source, target, overwrite)
    contents = folder.contents_of(source, strict)
    base_weights, notes = base_of_chain(contents.root, base, max_chain)
    task = described(contents.root, contents.files, level, base_weights)
    with work_folder(target, "packing", task) as work:
        callbacks = progress or (lambda count: None), on_tensor or (lambda *sizes: None)
        job = _Job(work, level, base_weights, threads, verify, *callbacks)
        totals = job.pack(contents, notes)
        folder.move_into_place(job.content, target, overwrite)
    return totals


def check_level(level: str) -> None:
    """Raise SqueezeError if the level does not exist."""
    if level not in codings.LEVELS:
        raise SqueezeError(f"level must be one of {', '.join(codings.LEVELS)}, got {level!r}")


def base_of_chain(source: Path, base: Path | str | None, max_chain: int) -> tuple[Base | None, list[str]]:
    """Return the base to store differences from, or None if its chain is too long, and notes as messages.

    Args:
        source: the checkpoint that is packed, for messages.
        base: the base that was asked for, if any.
        max_chain: the longest chain of differences that is allowed.
    """
    opened = Base.open(base) if base is not None else None
    if opened is None or opened.length < max_chain:
        return opened, []
    note = (
        f"{printable(source)}: packed without the base, which ends a chain of {opened.length} differences "
        f"({max_chain} are allowed)"
    )
    return None, [note]


def unhelpful(source: Path, packed: Path, base: Base | None) -> list[str]:
    """Return a message if nothing in a packed file or folder is a difference from the base."""
    if base is None or any(file.description.base for file in packed_files(packed, Limits())):
        return []
    return [
        f"{printable(source)}: packed without the base, since no tensor is smaller as the difference from "
        f"{printable(base.path)}"
    ]


def described(source: Path, paths: Mapping[str, Path], level: str, base: Base | None) -> dict[str, Any]:
    """Return the settings of a run as JSON: only a run with the same settings continues its work.

    Args:
        source: the checkpoint.
        paths: its files by name.
        level: the level of packing.
        base: the base of differences, if any.
    """
    return {
        "version": __version__,
        "level": level,
        "base": sorted(base.identities) if base else [],
        "source": str(source.resolve()),
        "files": [[name, *_stamp(path)] for name, path in paths.items()],
    }


def _stamp(path: Path) -> list[int]:
    """Return numbers that change when a file changes, or when an object gets another version."""
    status = path.stat()
    return [status.st_size, status.st_ino if storage.remote(path) else status.st_mtime_ns]


@contextmanager
def _unchanged(path: Path) -> Iterator[None]:
    """Raise VerifyError at the end if a file has changed meanwhile."""
    try:
        stamp = _stamp(path)
        yield
        if _stamp(path) == stamp:
            return
    except FileNotFoundError:
        if path.exists():
            raise
    raise VerifyError(f"{path} changed while it was read: pack it again when nothing writes to it")


def shared_in(files: Mapping[str, Path]) -> dict[str, dict[str, Sharing]]:
    """Return what tensors share with earlier ones of a checkpoint, by name of the file and of the tensor.

    files: the files of the checkpoint by name. One that cannot be read is skipped, since packing it raises the error.
    """
    found = {}
    for name, path in files.items():
        try:
            source = None if storage.remote(path) else source_of(path, is_single=not name)
        except (OSError, SqueezeError):
            continue
        if source:
            found[name] = source.file
    return repeats.find(found)


def _move(file: BinaryIO, begin: int, to: int, size: int) -> None:
    """Move `size` bytes of a file from `begin` on to a place that is not after it, and truncate the file after them."""
    for done in range(0, size if to < begin else 0, _PIECE):
        file.seek(begin + done)
        piece = file.read(min(_PIECE, size - done))
        file.seek(to + done)
        file.write(piece)
    file.truncate(to + size)


@dataclass(frozen=True)
class _FileResult:
    """A file that was packed or copied: its bytes before and after, and the SHA-256 of the original."""

    raw: int
    coded: int
    sha256: str
    is_state: bool = False  # whether it is a packed file of torch
    note: str = ""


@dataclass(frozen=True)
class _Job:
    """The settings and the work folder with which all files of a checkpoint are packed."""

    work: Path
    level: str
    base: Base | None
    threads: int
    verify: bool
    progress: Progress
    on_tensor: Callable[[int, int], None]

    @property
    def content(self) -> Path:
        """The folder or file that becomes the target."""
        return self.work / folder.CONTENT

    def pack(self, contents: folder.Contents, notes: list[str]) -> Totals:
        """Pack all files of a checkpoint; notes: messages so far."""
        shared = shared_in(contents.files)
        results = {name: self.pack_or_copy(path, name, shared.get(name, {})) for name, path in contents.files.items()}
        coded = sum(file.coded for file in results.values())
        if contents.root.is_dir():
            hashes = {name: file.sha256 for name, file in results.items()}
            states = [name for name, file in results.items() if file.is_state]
            coded += manifest.write(contents.root, self.content, hashes, states)
        notes = [*contents.notes, *notes, *(file.note for file in results.values() if file.note)]
        notes += unhelpful(contents.root, self.content, self.base)
        return Totals(sum(file.raw for file in results.values()), coded, contents.left_out, tuple(notes))

    def pack_or_copy(self, source: Path, name: str, shared: Mapping[str, Sharing]) -> _FileResult:
        """Pack or copy one file.

        Args:
            source: the file.
            name: its name in the folder.
            shared: what its tensors share with others.
        """
        target = self.content / name
        with _unchanged(source):
            try:
                found = source_of(source, is_single=not name)
                read = found.file if found and not found.is_torch else None  # as safetensors
                if container.is_packed(read) if read else is_packed(source, Limits()):
                    raise FormatError("is packed already; unpack it first")
                if found is None:
                    raw, digest = self._copy(source, target)
                else:
                    raw, digest = self._pack_file(found, target, name if found.is_torch else "", shared)
            except FormatError as error:
                raise type(error)(f"{source}: {error}") from None
        note = found.note if found else note_of_copy(source)
        return _FileResult(raw, target.stat().st_size, digest, found is not None and found.is_torch, note)

    def _copy(self, source: Path, target: Path) -> tuple[int, str]:
        """Copy a file; return its size and SHA-256."""
        if storage.remote(source) and target.is_file():  # written by a run that was stopped
            self.progress(size := target.stat().st_size)
            return size, folder.sha256_of(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        state, size, unfinished = hashlib.sha256(), 0, target.with_name(target.name + ".partial")
        for leftover in (target, unfinished):
            leftover.unlink(missing_ok=True)  # a run that was stopped may have left it read-only
        with source.open("rb") as reading, unfinished.open("xb") as writing, synced(writing):
            while piece := reading.read(_PIECE):
                state.update(piece)
                writing.write(piece)
                size += len(piece)
                self.progress(len(piece))
        files.copy_status(source, unfinished)
        unfinished.replace(target)
        return size, state.hexdigest()

    def _pack_file(self, found: Source, target: Path, scope: str, shared: Mapping[str, Sharing]) -> tuple[int, str]:
        """Pack a file; return its raw size and SHA-256.

        Args:
            found: the file.
            target: where the packed file goes.
            scope: the scope of its tensors in the base.
            shared: what its tensors share with others.
        """
        file, source = found.file, found.file.path
        if target.is_file():
            self.progress(file.size)
            return file.size, container.read(target).description.sha256
        target.parent.mkdir(parents=True, exist_ok=True)
        base = self.base.identity(found.is_torch) if self.base else ()
        journal, unfinished = Journal(self.work / "journal"), target.with_name(target.name + ".partial")
        if unfinished.is_file():
            unfinished.chmod(0o600)  # a run that was stopped at the end may have left it read-only
        with (
            source.open("rb") as reading,
            unfinished.open("r+b" if unfinished.is_file() else "w+b") as writing,
            synced(writing),
            RunningHash() as state,
        ):
            other, start = self.base if base else None, container.reserve(found, self.level, base, shared)
            options = (self.level, other, scope, self.verify, self.threads, shared)
            run = Run(file, Positional(reading), writing, state, *options)
            coded = self._code(run, journal, start)
            digest = state.finish(file.gaps[-1])
            header = container.header_of(found, self.level, base, coded, digest, start)
            _move(writing, start, len(header), sum(size for _, size in coded))
            writing.seek(0)
            writing.write(header)
        files.copy_status(source, unfinished)
        unfinished.replace(target)
        journal.clear()
        self.progress(len(file.header))
        return file.size, digest

    def _code(self, run: Run, journal: Journal, start: int) -> list[Coded]:
        """Write the payloads from `start` on that no earlier run has written; return records and size of all."""
        coded = journal.resume(run, start)
        for tensors, size in run.resume(start, coded):
            self._tell(tensors, size)
        for tensors, records, payload in run.code(sum(len(records) for records, _ in coded)):
            journal.note(tensors, records, payload)
            size = payload if isinstance(payload, int) else payload.size
            coded.append((records, size))
            self._tell(tensors, size)
        return coded

    def _tell(self, tensors: Sequence[Tensor], size: int) -> None:
        sizes = [tensor.size for tensor in tensors]
        for raw, coded in zip(sizes, shares(sizes, size), strict=True):
            self.on_tensor(raw, coded)
        self.progress(sum(sizes))
