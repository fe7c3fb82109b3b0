"""The main path of packing: a checkpoint's files, tensor by tensor, into packed ones. Read this first.

`pack` takes a file of tensors or a folder of a model. Each tensor is read,
coded, proved to decode, and written before the next one is read. A large one is
read, written and read back in parts, so that memory does not grow with it, but
at level archive. All is written into a work folder beside the
target, with a journal of the tensors that are done, and moved into place at the
end; a run that was stopped goes on from there. What a packed file says of
itself is container.py's, the way back unpack.py's.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squeeze.checkpoint.safetensors import Tensor
from squeeze.errors import FormatError, SqueezeError, VerifyError, printable
from squeeze.packing import codings, container, folder, manifest
from squeeze.packing.base import Base, is_packed
from squeeze.packing.chain import packed_files
from squeeze.packing.record import Record
from squeeze.packing.run import Journal, Run
from squeeze.packing.running_hash import RunningHash
from squeeze.packing.sources import Source, note_of_copy, source_of
from squeeze.system import files, storage
from squeeze.system.binary import Positional
from squeeze.system.limits import Limits
from squeeze.system.moving import synced
from squeeze.system.upload import staged
from squeeze.system.work import work_folder
from squeeze.version import __version__

Progress = Callable[[int], None]
_PIECE = 1 << 22


@dataclass(frozen=True)
class Totals:
    """Bytes of the checkpoint's files before and after, other files of a folder included; what of a folder was left
    out, and what else there is to say, in words."""

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
    told: Callable[[int, int], None] | None = None,
) -> Totals:
    """Pack a file of tensors, or a folder with its other files, to `target`; `unpack` restores it byte for byte.

    A file of tensors is one of safetensors, of torch.save (.pt, .pth, .bin, .ckpt) or of torch.distributed.checkpoint
    (.distcp). Nothing in it is run; one that is none of these is packed as plain bytes if it is named itself, and
    copied in a folder. source, target and base may be URLs of fsspec. What goes to a URL is made in the folder for
    temporary files, and uploaded when it is proved.

    level: "fast" (for checkpoints written often), "runtime" (decodes fast, on GPUs too) or "archive" (smallest, CPU
    only). base: a checkpoint, packed or not; what is written is the difference from its tensors of the same names,
    unless it ends a chain of `max_chain` differences already. A file of which no tensor is smaller as a difference
    needs no base. strict: refuse a folder of which something would be left
    out, such as empty folders and pipes.
    progress(n) is told of n more raw bytes done, told(raw, coded) of each tensor's bytes. Raises
    FormatError for what is no file of tensors, SqueezeError where a file is in the way, VerifyError if a coded tensor
    does not decode to itself. A run stopped by anything but an error in the input goes on where it was when it is
    started again.
    """
    source, target = storage.path_of(source), storage.path_of(target)
    if place := storage.remote(target):
        options: dict[str, Any] = {"base": base, "max_chain": max_chain, "threads": threads, "verify": verify}
        folder.check_apart(source, target)
        with staged(place, overwrite) as local:  # a packed file's header is written last
            return pack(source, local, level=level, strict=strict, progress=progress, told=told, **options)
    check_level(level)
    folder.check_target(source, target, overwrite)
    contents = folder.contents_of(source, strict)
    known, notes = base_of_chain(contents.root, base, max_chain)
    task = described(contents.root, contents.files, level, known)
    with work_folder(target, "packing", task) as work:
        job = _Job(work, level, known, threads, verify, progress or (lambda count: None), told or (lambda *sizes: None))
        taken = {name: job.take(path, name) for name, path in contents.files.items()}
        coded = sum(file.coded for file in taken.values())
        if contents.root.is_dir():
            hashes = {name: file.sha256 for name, file in taken.items()}
            states = [name for name, file in taken.items() if file.is_state]
            coded += manifest.write(contents.root, job.content, hashes, states)
        notes = [*contents.notes, *notes, *(file.note for file in taken.values() if file.note)]
        notes += unhelpful(contents.root, job.content, known)
        folder.move_into_place(job.content, target, overwrite)
    return Totals(sum(file.raw for file in taken.values()), coded, contents.left_out, tuple(notes))


def check_level(level: str) -> None:
    """Raises SqueezeError where there is none of this name."""
    if level not in codings.LEVELS:
        raise SqueezeError(f"level {level!r} is unknown: choose from {', '.join(codings.LEVELS)}")


def base_of_chain(source: Path, base: Path | str | None, max_chain: int) -> tuple[Base | None, list[str]]:
    """What is packed as the difference from, and what there is to say of that in words."""
    known = Base.open(base) if base is not None else None
    if known is None or known.length < max_chain:
        return known, []
    note = (
        f"{printable(source)}: packed whole, since its base ends a chain of {known.length} differences, "
        f"and {max_chain} are allowed"
    )
    return None, [note]


def unhelpful(source: Path, packed: Path, base: Base | None) -> list[str]:
    """What there is to say, in words, where nothing in a packed file or folder is a difference from the base."""
    if base is None or any(file.description.base for file in packed_files(packed, Limits())):
        return []
    return [
        f"{printable(source)}: packed whole, since no tensor is smaller as the difference from {printable(base.path)}: "
        "it needs no base"
    ]


def described(source: Path, paths: Mapping[str, Path], level: str, base: Base | None) -> dict[str, Any]:
    """What a run is, as JSON: another one does not go on with what it leaves. paths: of its files by name."""
    return {
        "version": __version__,
        "level": level,
        "base": sorted(base.identities) if base else [],
        "source": str(source.resolve()),
        "files": [[name, *_stamp(path)] for name, path in paths.items()],
    }


def _stamp(path: Path) -> list[int]:
    """What changes when a file does, or another version of an object comes."""
    status = path.stat()
    return [status.st_size, status.st_ino if storage.remote(path) else status.st_mtime_ns]


@contextmanager
def _unchanged(path: Path) -> Iterator[None]:
    """Raises VerifyError where a file is not as it was in the end."""
    try:
        stamp = _stamp(path)
        yield
        if _stamp(path) == stamp:
            return
    except FileNotFoundError:
        if path.exists():
            raise
    raise VerifyError(f"{path} changed while it was read: pack it again when nothing writes to it")


@dataclass(frozen=True)
class _Taken:
    """A file that was packed or copied: its bytes before and after, and the SHA-256 of those before."""

    raw: int
    coded: int
    sha256: str
    is_state: bool = False  # whether it is one of torch's, and packed
    note: str = ""


@dataclass(frozen=True)
class _Job:
    """What all files of a checkpoint are packed with, in the folder `work`."""

    work: Path
    level: str
    base: Base | None
    threads: int
    verify: bool
    progress: Progress
    told: Callable[[int, int], None]

    @property
    def content(self) -> Path:
        """What becomes the target."""
        return self.work / folder.CONTENT

    def take(self, source: Path, name: str) -> _Taken:
        """Pack or copy one file, which a folder has by this name."""
        target = self.content / name
        with _unchanged(source):
            try:
                if is_packed(source, Limits()):
                    raise FormatError("is packed already; unpack it first")
                found = source_of(source, alone=not name)
                if found is None:
                    raw, digest = self._copy(source, target)
                else:
                    raw, digest = self._pack_file(found, target, name if found.is_torch else "")
            except FormatError as error:
                raise type(error)(f"{source}: {error}") from None
        note = found.note if found else note_of_copy(source)
        return _Taken(raw, target.stat().st_size, digest, found is not None and found.is_torch, note)

    def _copy(self, source: Path, target: Path) -> tuple[int, str]:
        """The size and SHA-256."""
        if storage.remote(source) and target.is_file():  # by a run that was stopped
            self.progress(size := target.stat().st_size)
            return size, folder.sha256_of(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        state, size, unfinished = hashlib.sha256(), 0, target.with_name(target.name + ".partial")
        for left in (target, unfinished):
            left.unlink(missing_ok=True)  # a run that was stopped may have left it read-only
        with source.open("rb") as reading, unfinished.open("xb") as writing, synced(writing):
            while piece := reading.read(_PIECE):
                state.update(piece)
                writing.write(piece)
                size += len(piece)
                self.progress(len(piece))
        files.copy_status(source, unfinished)
        unfinished.replace(target)
        return size, state.hexdigest()

    def _pack_file(self, found: Source, target: Path, scope: str) -> tuple[int, str]:
        """The raw size and SHA-256. scope: the name by which a base has its tensors."""
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
            other, start = self.base if base else None, container.reserve(found, self.level, base)
            run = Run(file, Positional(reading), writing, state, self.level, other, scope, self.verify, self.threads)
            coded = self._code(run, journal, start)
            digest = state.finish(file.gaps[-1])
            writing.truncate(start + sum(size for _, size in coded))
            writing.seek(0)
            writing.write(container.header_of(found, self.level, base, coded, digest, start))
        files.copy_status(source, unfinished)
        unfinished.replace(target)
        journal.clear()
        self.progress(len(file.header))
        return file.size, digest

    def _code(self, run: Run, journal: Journal, start: int) -> list[tuple[Record, int]]:
        """Write the payloads from `start` on that no run before this one has written; the record and payload size of
        every tensor."""
        coded = journal.resume(run, start)
        for tensor, size in run.go_on(start, coded):
            self._tell(tensor, size)
        for tensor, record, payload in run.code(len(coded)):
            journal.note(tensor, record, payload)
            size = payload if isinstance(payload, int) else payload.size
            coded.append((record, size))
            self._tell(tensor, size)
        return coded

    def _tell(self, tensor: Tensor, size: int) -> None:
        self.told(tensor.size, size)
        self.progress(tensor.size)
