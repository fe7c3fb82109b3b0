"""The main path of packing: a checkpoint's files, tensor by tensor, into packed ones. Read this first.

`pack` takes a safetensors file or a folder of a model. Each tensor is read,
coded, proved to decode, and written before the next one is read, so memory is
bounded by the largest tensor. All is written into a work folder beside the
target, with a journal of the tensors that are done, and moved into place at the
end; a run that was stopped goes on from there. What a packed file says of
itself is container.py's, the way back unpack.py's.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile
from squeeze.errors import FormatError, SqueezeError, VerifyError
from squeeze.packing import container, folder
from squeeze.packing.base import Base
from squeeze.packing.container import Description, Record
from squeeze.system import files
from squeeze.system.in_order import in_order
from squeeze.system.work import work_folder
from squeeze.version import __version__

Progress = Callable[[int], None]
_PIECE = 1 << 22


@dataclass(frozen=True)
class Totals:
    """Bytes of the checkpoint's files before and after, other files of a folder included; what of a folder was left
    out, in words."""

    raw: int
    coded: int
    left_out: tuple[str, ...] = ()


def pack(
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
) -> Totals:
    """Pack a safetensors file, or a folder with its other files, to `target`; `unpack` restores it byte for byte.

    level: "fast" (for checkpoints written often), "runtime" (decodes fast, on GPUs too) or "archive" (smallest, CPU
    only). base: a checkpoint, packed or not;
    what is written is the difference from its tensors of the same names, unless it ends a chain of `max_chain`
    differences already. strict: refuse a folder of which something would be left out, such as empty folders and pipes.
    progress(n) is told of n more raw bytes done. Raises FormatError for what is no safetensors file, SqueezeError where
    a file is in the way, VerifyError if a coded tensor does not decode to itself. A run stopped by anything but an
    error in the input goes on where it was when it is started again.
    """
    source, target = Path(source), Path(target)
    if level not in container.LEVELS:
        raise SqueezeError(f"level {level!r} is unknown: choose from {', '.join(container.LEVELS)}")
    folder.check_target(source, target, overwrite)
    names = folder.files_to_take(source)
    omitted = folder.left_out(source, strict)
    known = Base.open(base) if base is not None else None
    if known and known.length >= max_chain:
        known = None
    task = {
        "version": __version__,
        "level": level,
        "base": known.hashes if known else [],
        "source": str(source.resolve()),
        "files": [[name, *_stamp(folder.place(source, name))] for name in names],
    }
    with work_folder(target, "packing", task) as work:
        job = _Job(level, known, threads, verify, progress or (lambda count: None))
        totals, hashes = Totals(0, 0), {}
        for name in names:
            before, after = folder.place(source, name), folder.place(work / folder.CONTENT, name)
            stamp = _stamp(before)
            raw, hashes[name] = job.take(before, after, work)
            if _stamp(before) != stamp:
                raise VerifyError(f"{before} changed while it was read: pack it again when nothing writes to it")
            totals = Totals(totals.raw + raw, totals.coded + after.stat().st_size)
        if source.is_dir():
            added = folder.write_manifest(source, work / folder.CONTENT, hashes)
            totals = Totals(totals.raw, totals.coded + added, omitted)
        folder.move_into_place(work / folder.CONTENT, target, overwrite)
    return totals


def _stamp(path: Path) -> list[int]:
    """What changes when a file does."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


@dataclass(frozen=True)
class _Job:
    level: str
    base: Base | None
    threads: int
    verify: bool
    progress: Progress

    def take(self, source: Path, target: Path, work: Path) -> tuple[int, str]:
        """Pack or copy one file; its raw size and SHA-256."""
        try:
            if source.suffix == folder.SUFFIX:
                return self._pack_file(source, target, work)
            return self._copy(source, target)
        except FormatError as error:
            raise type(error)(f"{source}: {error}") from None

    def _copy(self, source: Path, target: Path) -> tuple[int, str]:
        target.parent.mkdir(parents=True, exist_ok=True)
        state, size = hashlib.sha256(), 0
        with source.open("rb") as reading, target.open("wb") as writing:
            while piece := reading.read(_PIECE):
                state.update(piece)
                writing.write(piece)
                size += len(piece)
                self.progress(len(piece))
            os.fsync(writing.fileno())
        files.copy_status(source, target)
        return size, state.hexdigest()

    def _pack_file(self, source: Path, target: Path, work: Path) -> tuple[int, str]:
        file = tensorfile.read(source)
        if container.is_packed(file):
            raise FormatError("is packed already; unpack it first")
        if target.is_file():
            self.progress(file.size)
            return file.size, container.read(target).description.sha256
        target.parent.mkdir(parents=True, exist_ok=True)
        base = tuple(self.base.hashes) if self.base else ()
        journal = _Journal(work / "journal")
        unfinished = target.with_name(target.name + ".partial")
        start = container.reserve(file, self.level, base)
        with source.open("rb") as reading, unfinished.open("r+b" if unfinished.is_file() else "w+b") as writing:
            done = journal.resume(file, writing, start)
            writing.truncate(start + sum(size for _, size in done))
            writing.seek(0, os.SEEK_END)
            with RunningHash(file.header) as state:
                for tensor, (record, _) in zip(file.tensors, done, strict=False):
                    data = tensorfile.read_tensor(reading, tensor)
                    state.update(data)
                    if xxhash.xxh3_64_intdigest(data.data) != record.checksum:
                        raise VerifyError(f"{source} changed since packing was stopped: pack it again")
                    self.progress(tensor.size)
                remaining = file.tensors[len(done) :]
                for tensor, (record, payload) in zip(remaining, self._coded(remaining, reading, state), strict=True):
                    writing.write(payload.data)
                    writing.flush()
                    journal.note(tensor, record, payload)
                    done.append((record, payload.size))
                    self.progress(tensor.size)
                digest = state.finish()
            records = tuple(record for record, _ in done)
            description = Description(file.size, digest, file.header, self.level, records, base)
            names, sizes = [tensor.name for tensor in file.tensors], [size for _, size in done]
            writing.seek(0)
            writing.write(container.header_bytes(names, sizes, description, start))
            writing.flush()
            os.fsync(writing.fileno())
        files.copy_status(source, unfinished)
        unfinished.replace(target)
        journal.clear()
        self.progress(len(file.header))
        return file.size, digest

    def _coded(
        self, tensors: Sequence[Tensor], source: BinaryIO, state: "RunningHash"
    ) -> Iterator[tuple[Record, Bytes]]:
        """The record and payload of each tensor, in order."""

        def tasks() -> Iterator[tuple[int, Callable[[int], tuple[Record, Bytes]]]]:
            for tensor in tensors:
                data = tensorfile.read_tensor(source, tensor)
                state.update(data)
                yield tensor.size, partial(self._code, tensor, data)

        return in_order(tasks(), self.threads)

    def _code(self, tensor: Tensor, data: Bytes, threads: int) -> tuple[Record, Bytes]:
        base = self.base.tensor(tensor) if self.base else None
        coding, payload = container.encode_tensor(data, tensor, self.level, base, threads, self.verify)
        return Record(tensor.dtype, tensor.shape, coding, xxhash.xxh3_64_intdigest(data.data)), payload


class _Journal:
    """A line for each finished tensor of the file at work."""

    def __init__(self, path: Path):
        self._path = path

    def note(self, tensor: Tensor, record: Record, payload: Bytes) -> None:
        line = [
            tensor.name,
            record.coding,
            record.checksum,
            payload.size,
            xxhash.xxh3_64_intdigest(payload.data),
        ]
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def resume(self, file: TensorFile, written: BinaryIO, start: int) -> list[tuple[Record, int]]:
        """Record and payload size of the first tensors of `file` that are whole in `written` from `start` on."""
        done: list[tuple[Record, int]] = []
        lines = self._path.read_text().split("\n") if self._path.is_file() else []
        written.seek(start)
        for line, tensor in zip(lines, file.tensors, strict=False):
            try:
                name, coding, checksum, size, hashed = json.loads(line)
            except ValueError:
                break
            if name != tensor.name or xxhash.xxh3_64_intdigest(written.read(size)) != hashed:
                break
            done.append((Record(tensor.dtype, tensor.shape, coding, checksum), size))
        self.clear()
        with self._path.open("w") as journal:
            journal.writelines(line + "\n" for line in lines[: len(done)])
        return done

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


class RunningHash:
    """SHA-256 of what passes, counted on a thread beside the coding; at most one tensor waits."""

    def __init__(self, start: bytes):
        self._state = hashlib.sha256(start)
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def __enter__(self) -> "RunningHash":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True)

    def update(self, data: Bytes) -> None:
        self._wait()
        self._running = self._pool.submit(self._state.update, data.data)

    def finish(self) -> str:
        self._wait()
        return self._state.hexdigest()

    def _wait(self) -> None:
        if self._running:
            self._running.result()
