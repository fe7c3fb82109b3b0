"""One file that is being packed, and what of it is done: so that a run that was stopped goes on from there."""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile, named
from squeeze.codecs.tensors.content import Content, InFile, whole
from squeeze.errors import DamagedError, FormatError, VerifyError
from squeeze.packing import decoding
from squeeze.packing.base import Base
from squeeze.packing.container import ARCHIVE, Record
from squeeze.packing.description import CODINGS
from squeeze.packing.running_hash import RunningHash, checksum_of
from squeeze.system.json_object import MAX_LINE, check, parse
from squeeze.system.positional import Positional

__all__ = ["Journal", "Run"]


@dataclass(frozen=True)
class Run:
    """One file that is packed. base: of this kind of file. scope: the name by which that has its tensors."""

    file: TensorFile
    reading: Positional
    writing: BinaryIO
    state: RunningHash
    base: Base | None
    scope: str

    def content(self, tensor: Tensor) -> Content:
        return InFile(self.reading, tensor.begin, tensor.size)

    def read(self, tensor: Tensor) -> Bytes:
        """Raises DamagedError where the file became shorter."""
        try:
            return whole(self.content(tensor))
        except DamagedError as error:
            raise DamagedError(f"{named(tensor.name)}: {error}") from None

    def is_whole(self, begin: int, size: int, tensor: Tensor, record: Record, hashed: int | None, threads: int) -> bool:
        """Whether a payload that was written is as its hash says, or decodes to its checksum."""
        payload = InFile(Positional(self.writing), begin, size)
        try:
            if hashed is not None:
                return checksum_of(payload, threads) == hashed
            with ExitStack() as opened:
                decoding.prove(payload, record, self._other(tensor, opened), threads, lambda: record.checksum)
        except (DamagedError, VerifyError):
            return False
        return True

    def again(self, tensor: Tensor, record: Record, begin: int, size: int, opened: ExitStack) -> Content:
        """The bytes of a tensor whose payload is written from `begin` on: decoded of that where they lie at a URL, but
        for level archive, which takes longer to decode than to fetch."""
        if self.reading.is_local or record.coding.endswith(ARCHIVE):
            return self.content(tensor)
        other = self._other(tensor, opened) if record.is_difference else None
        return decoding.content_of(InFile(Positional(self.writing), begin, size), record, other, 1)

    def _other(self, tensor: Tensor, opened: ExitStack) -> Content | None:
        """What the tensor may be a difference from."""
        return self.base.content(tensor, tensor.name, self.scope, opened) if self.base else None


class Journal:
    """A line for each finished tensor of the file at work."""

    def __init__(self, path: Path):
        self._path = path

    def note(self, tensor: Tensor, record: Record, payload: Bytes | int) -> None:
        """payload: the size of one that is large."""
        if isinstance(payload, int):
            size, hashed = payload, None
        else:
            size, hashed = payload.size, xxhash.xxh3_64_intdigest(payload.data)
        with self._path.open("a") as file:
            file.write(json.dumps([tensor.name, record.coding, record.checksum, size, hashed]) + "\n")

    def resume(self, run: Run, start: int, threads: int) -> list[tuple[Record, int]]:
        """Record and payload size of the first tensors that are whole in what is written from `start` on."""
        done: list[tuple[Record, int]] = []
        lines = self._path.read_text(errors="replace").split("\n") if self._path.is_file() else []
        for line, tensor in zip(lines, run.file.tensors, strict=False):
            try:
                name, coding, checksum, size, hashed = _noted(line)
            except (FormatError, ValueError):
                break
            record = Record.of(tensor, coding, checksum)
            if name != tensor.name or not run.is_whole(start, size, tensor, record, hashed, threads):
                break
            done.append((record, size))
            start += size
        self.clear()
        with self._path.open("w") as journal:
            journal.writelines(line + "\n" for line in lines[: len(done)])
        return done

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def _noted(line: str) -> tuple[str, str, int, int, int | None]:
    """Return the name, coding, checksum, size and hash of a line. Raises FormatError or ValueError for any other."""
    row = parse(line, most=MAX_LINE)
    check(row, [(str, int, None)])
    name, coding, checksum, size, hashed = row
    kinds = isinstance(name, str), coding in CODINGS, *(isinstance(one, int) for one in (checksum, size, hashed or 0))
    if not all(kinds) or min(checksum, size, hashed or 0) < 0:
        raise FormatError("is no line of a journal")
    return name, coding, checksum, size, hashed
