"""What of a file that is being packed is done, so that a run that was stopped goes on from there."""

import json
from pathlib import Path

import xxhash

from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.errors import FormatError
from squeeze.packing.codings import CODINGS
from squeeze.packing.record import Record
from squeeze.packing.run import Run
from squeeze.system.json_object import MAX_LINE, check, parse

__all__ = ["Journal"]


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
            file.write(json.dumps([tensor.name, record.coding.name, record.checksum, size, hashed]) + "\n")

    def resume(self, run: Run, start: int) -> list[tuple[Record, int]]:
        """Record and payload size of the first tensors that are whole in what is written from `start` on."""
        done: list[tuple[Record, int]] = []
        lines = self._path.read_text(errors="replace").split("\n") if self._path.is_file() else []
        for line, tensor in zip(lines, run.file.tensors, strict=False):
            try:
                name, coding, checksum, size, hashed = _noted(line)
            except (FormatError, ValueError):
                break
            record = Record.of(tensor, CODINGS[coding], checksum)
            if name != tensor.name or not run.is_whole(start, size, tensor, record, hashed):
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
