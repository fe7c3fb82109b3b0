"""The plan of a program: its segments, and the parts of its image that are transformed or derived from others."""

import io
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = [
    "ARM64",
    "BEGINS",
    "BY_OTHERS",
    "COMMONS",
    "FORMATS",
    "FRAMES",
    "FRAME_INDEX",
    "HASH",
    "HEADERS",
    "MACHINES",
    "MOST",
    "MOST_DERIVED",
    "MOST_SEGMENTS",
    "PLACES",
    "RELOCATIONS",
    "RISCV",
    "ROWS",
    "SYMBOLS",
    "WORDS",
    "X86",
    "X86_64",
    "Part",
    "Plan",
    "Segment",
    "impossible",
]

FORMATS = ("ELF", "PE", "Mach-O")
MACHINES = ("other", "x86", "x86-64", "AArch64", "RISC-V", "SPARC", "PowerPC", "MIPS", "ARM", "z/Architecture")
# Kinds of parts, and how many numbers the plan has for each.
X86, X86_64, ARM64, FRAMES, RELOCATIONS, ROWS, FRAME_INDEX, HASH, RISCV = range(9)
SYMBOLS, HEADERS, PLACES, BEGINS, WORDS, COMMONS = range(9, 15)
_NUMBERS = {X86: 0, X86_64: 0, ARM64: 0, FRAMES: 0, RELOCATIONS: 0, ROWS: 1, FRAME_INDEX: 2, HASH: 5, RISCV: 0}
_NUMBERS |= {SYMBOLS: 3, HEADERS: 1, PLACES: 3, BEGINS: 3, WORDS: 1, COMMONS: 0}
_ROWS: dict[int, Collection[int]] = {  # bytes of a row
    **{ROWS: range(4, 257), SYMBOLS: (16, 24), HEADERS: (40, 64), PLACES: (24,), BEGINS: (24,)},
}
BY_OTHERS = (SYMBOLS, PLACES, BEGINS)  # kinds of parts by others, whose size is the last number
_OF_OTHERS = (HASH, *BY_OTHERS)  # kinds whose numbers from the second on are starts and sizes
KEPT = {FRAME_INDEX: 4, HASH: 16}  # first bytes of a part whose other bytes are derived
MOST = 1 << 12  # parts
MOST_SEGMENTS, MOST_DERIVED = 1 << 7, 8  # segments, and parts that are derived, each from much of the image
_LARGEST = 1 << 40  # places in an image


class Segment(NamedTuple):
    """Bytes of an image that have consecutive addresses.

    Attributes:
        address: That of its first byte, modulo 2^64.
        start: Its first byte in the image.
        size: Its bytes.
    """

    address: int
    start: int
    size: int


class Part(NamedTuple):
    """Bytes of an image that are transformed.

    Attributes:
        kind: How, one of the numbers above.
        start: Its first byte in the image.
        size: Its bytes.
        numbers: What its kind needs: of ROWS, SYMBOLS, HEADERS, PLACES and BEGINS the bytes of a row, twice, plus 1
            if the highest byte comes first, and start and size of the strings of SYMBOLS, the code of PLACES and the
            frames of BEGINS; of WORDS their form (fixed.py); start and size of the frames of FRAME_INDEX; of
            HASH whether the image has 64 bits, and starts and sizes of symbols and strings.
    """

    kind: int
    start: int
    size: int
    numbers: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def removed(self) -> int:
        """Bytes that are derived from others, at the end of the part."""
        return self.size - KEPT[self.kind] if self.kind in KEPT else 0


@dataclass(frozen=True)
class Plan:
    """Restores the image of a program: its segments, and the parts that are transformed.

    Attributes:
        format: Number in FORMATS.
        machine: Number in MACHINES.
        sections: Their number, for people.
        segments: By their addresses.
        parts: By their places.
    """

    format: int
    machine: int
    sections: int
    segments: tuple[Segment, ...] = ()
    parts: tuple[Part, ...] = ()

    def __str__(self) -> str:
        machine = f" {MACHINES[self.machine]}" if self.machine else ""
        return f"{FORMATS[self.format]}{machine}"

    @property
    def removed(self) -> int:
        """Bytes of the image that the content is without."""
        return sum(part.removed for part in self.parts)

    def address(self, place: int) -> int:
        """Return the address of a byte of the image, modulo 2^64; outside of all segments, its place."""
        for address, start, size in self.segments:
            if start <= place < start + size:
                return address + place - start
        return place

    def to_bytes(self) -> bytes:
        """Return the plan as files have it."""
        out = bytes([self.format << 4 | self.machine]) + varint(self.sections) + varint(len(self.segments))
        for address, start, size in self.segments:
            out += varint(address) + varint(start) + varint(size)
        done = 0
        for part in self.parts:
            out += bytes([part.kind]) + varint(part.start - done) + varint(part.size)
            out += b"".join(map(varint, part.numbers))
            done = part.end
        return out

    @classmethod
    def read(cls, written: bytes, size: int) -> "Plan":
        """Return the plan of a content of `size` bytes that `to_bytes` wrote.

        Raises:
            DamagedError: if it is impossible.
        """
        file = io.BytesIO(written)
        head = cls._read_head(file)
        count = read_varint(file)[0]
        if count > MOST_SEGMENTS:
            raise impossible()
        segments = tuple(Segment(*(read_varint(file)[0] for _ in range(3))) for _ in range(count))
        parts, done = list[Part](), 0
        while file.tell() < len(written):
            kind = read_exactly(file, 1)[0]
            if kind not in _NUMBERS or len(parts) == MOST:
                raise impossible()
            start, length, *numbers = (read_varint(file)[0] for _ in range(2 + _NUMBERS[kind]))
            parts.append(Part(kind, done + start, length, tuple(numbers)))
            done = parts[-1].end
        plan = replace(head, segments=segments, parts=tuple(parts))
        plan.check(size)
        return plan

    @classmethod
    def read_head(cls, written: bytes) -> "Plan":
        """Return the plan that `to_bytes` wrote without its segments and parts.

        Raises:
            DamagedError: if it is impossible.
        """
        return cls._read_head(io.BytesIO(written))

    @classmethod
    def _read_head(cls, file: io.BytesIO) -> "Plan":
        first, sections = read_exactly(file, 1)[0], read_varint(file)[0]
        if first >> 4 >= len(FORMATS) or first & 15 >= len(MACHINES):
            raise impossible()
        return cls(first >> 4, first & 15, sections)

    def check(self, size: int) -> None:
        """Check the places in a plan for a content of `size` bytes.

        Raises:
            DamagedError: if they are impossible.
        """
        whole, addresses = size + self.removed, [segment.address for segment in self.segments]
        spans = [(segment.start, segment.size) for segment in self.segments]
        for part in self.parts:
            if part.size < KEPT.get(part.kind, 0) or part.end > whole:
                raise impossible()
            if part.kind in _ROWS and part.numbers[0] >> 1 not in _ROWS[part.kind]:
                raise impossible()
            numbers = part.numbers if part.kind == FRAME_INDEX else part.numbers[1:] if part.kind in _OF_OTHERS else ()
            spans += zip(numbers[::2], numbers[1::2], strict=True)
        if sum(part.numbers[-1] for part in self.parts if part.kind in BY_OTHERS) > whole:
            raise impossible()
        if sum(part.kind in KEPT for part in self.parts) > MOST_DERIVED:
            raise impossible()
        if self.removed > size or addresses != sorted(addresses) or addresses[-1:] >= [1 << 63]:
            raise impossible()
        if any(start + length > whole for start, length in spans):
            raise impossible()

    def table(self) -> np.ndarray:
        """Return the segments as int64 [s, 3], with at least one row."""
        return np.array(self.segments or [(0, 0, 0)], np.int64).reshape(-1, 3)


def impossible() -> DamagedError:
    return DamagedError("the plan of a program is impossible: the file is damaged")
