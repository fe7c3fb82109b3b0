"""Payloads of tensors that share bytes with other tensors of the same checkpoint, whole or in pieces of 64 KiB.

Such a payload is a table of the other tensors and of runs. The coded bytes of all other runs follow it.
docs/format.md, section 10.10, specifies it. repeats.py finds the runs, others.py reads the tensors.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from squeeze.checkpoint.safetensors import Bytes
from squeeze.errors import DamagedError, FormatError
from squeeze.packing.tensors.content import Content, Section
from squeeze.packing.tensors.float_writer import Behind, Writer
from squeeze.system.documents import check, parse

__all__ = ["LITERAL", "PIECE", "Joined", "Run", "Table", "merged", "read", "write"]

PIECE = 1 << 16  # bytes; runs begin at multiples of it
LITERAL = -1
_HEAD = 8  # bytes of the table's size
_MAX_RUN = 64  # most bytes of a run in a table, and fewest of a source
_SCHEMA = {"from": [[str]], "runs": [[int]]}


@dataclass(frozen=True)
class Run:
    """Consecutive bytes of a tensor: `size` bytes of a source, from byte `begin` on, or of none (LITERAL)."""

    source: int
    begin: int
    size: int


@dataclass(frozen=True)
class Table:
    """The bytes that a tensor shares. sources: file ("" for its own) and name of other tensors. runs: its bytes."""

    sources: tuple[tuple[str, str], ...]
    runs: tuple[Run, ...]

    @property
    def is_whole(self) -> bool:
        """True if the tensor is one run of one other tensor."""
        return len(self.runs) == 1 and self.runs[0].source != LITERAL

    @property
    def literals(self) -> int:
        """The bytes that are in no other tensor."""
        return sum(run.size for run in self.runs if run.source == LITERAL)

    def to_bytes(self) -> bytes:
        """Return the table with its size before it, a multiple of 8 bytes."""
        described = {
            "from": [list(source) for source in self.sources],
            "runs": [[run.source, run.begin, run.size] for run in self.runs],
        }
        text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
        text = text.ljust(-(-len(text) // 8) * 8)
        return len(text).to_bytes(_HEAD, "little") + text


def write(content: Content, table: Table, writer: Writer, most: int, coder: Callable[[Content, Writer], int]) -> int:
    """Write a payload; return its bytes, or 0 if `coder` does not take the rest.

    Args:
        content: the tensor's bytes.
        table: what it shares.
        writer: where the payload goes.
        most: the most bytes that `coder` writes.
        coder: writes the bytes that are in no other tensor, and returns their number, or 0.
    """
    head = np.frombuffer(table.to_bytes(), np.uint8)
    writer.reserve(head.size + most)
    literals = literals_of(content, table)
    size = coder(literals, Behind(writer, head.size)) if literals.size else 0
    if literals.size and not size:
        return 0
    writer.put(0, head)
    return head.size + size


def literals_of(content: Content, table: Table) -> Content:
    """Return the bytes of a tensor that are in no other one."""
    ends = list(accumulate(run.size for run in table.runs))
    return Joined(
        [
            Section(content, end - run.size, run.size)
            for run, end in zip(table.runs, ends, strict=True)
            if run.source == LITERAL
        ]
    )


def read(payload: Content, size: int) -> tuple[Table, Content]:
    """Return the table of a payload of a tensor of `size` bytes, and the coded bytes after it.

    Raises DamagedError if the table is invalid.
    """
    if payload.size < _HEAD:
        raise _damaged()
    head = np.empty(_HEAD, np.uint8)
    payload.fill(0, head)
    length = int.from_bytes(head.tobytes(), "little")
    if length > payload.size - _HEAD or length > _MAX_RUN * (size // PIECE + 16) + (1 << 20):
        raise _damaged()
    text = np.empty(length, np.uint8)
    payload.fill(_HEAD, text)
    try:
        described = parse(text.tobytes())
        check(described, _SCHEMA)
        sources = tuple((str(file), str(name)) for file, name in described["from"])
        table = Table(sources, tuple(Run(*map(int, run)) for run in described["runs"]))
    except (FormatError, ValueError, TypeError):
        raise _damaged() from None
    _check(table, size)
    return table, Section(payload, _HEAD + length, payload.size - _HEAD - length)


def _check(table: Table, size: int) -> None:
    """Raise DamagedError if the runs are not those of a tensor of `size` bytes."""
    known = range(LITERAL, len(table.sources))
    if any(run.source not in known or run.begin < 0 or run.size <= 0 for run in table.runs):
        raise _damaged()
    if any(run.size % PIECE for run in table.runs[:-1]) or sum(run.size for run in table.runs) != size:
        raise _damaged()
    if {run.source for run in table.runs} - {LITERAL} != set(range(len(table.sources))):
        raise _damaged()


def _damaged() -> DamagedError:
    return DamagedError("the table of bytes that it shares with other tensors is damaged")


def merged(table: Table, shared: Content, literals: Content) -> Content:
    """Return the bytes of a tensor.

    Args:
        table: its runs.
        shared: the bytes of all runs of other tensors, end to end.
        literals: the bytes of all other runs, end to end.
    """
    places, parts = {True: 0, False: 0}, []
    for run in table.runs:
        is_literal = run.source == LITERAL
        parts.append(Section(literals if is_literal else shared, places[is_literal], run.size))
        places[is_literal] += run.size
    if places[False] != shared.size:
        raise _damaged()
    return parts[0] if len(parts) == 1 else Joined(parts)


class Joined:
    """A content of several other ones, end to end."""

    def __init__(self, parts: Sequence[Content]):
        self._parts = parts
        self._starts = [0, *accumulate(part.size for part in parts)]
        self.size = self._starts.pop()

    def fill(self, begin: int, out: Bytes) -> None:
        done, number = 0, bisect_right(self._starts, begin) - 1
        while done < out.size:
            part, place = self._parts[number], begin + done - self._starts[number]
            count = min(part.size - place, out.size - done)
            if count:
                part.fill(place, out[done : done + count])
            done, number = done + count, number + 1
