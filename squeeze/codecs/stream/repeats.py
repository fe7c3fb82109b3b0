"""Blocks that repeat other bytes of their stream: a list of copies, and the rest, which is coded as a block of its own.

A source is never in a copy, so a block needs only what other blocks code themselves. docs/format.md specifies it (3.5);
matches.py finds repeats.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from squeeze.codecs.stream import container, integers
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.copies import Copies
from squeeze.errors import DamagedError
from squeeze.numerics.jit import kernel
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = [
    "LEAST",
    "MEMORY",
    "Repeated",
    "impossible",
    "pass_copies",
    "read",
    "read_ranges",
    "to_bytes",
]

LEAST = 32  # bytes of the shortest copy
MEMORY = 160  # bytes of memory for a copy while a list is read
_FIELDS = 3


@dataclass(frozen=True)
class Repeated:
    """A block that repeats other bytes, before it is decoded: its copies, and the rest with its raw bytes."""

    copies: Copies
    ranges: list[tuple[int, int]]  # of raw bytes before the block that sources are in, from its start
    rest: Coded
    rest_size: int


def to_bytes(copies: Copies, rest: np.ndarray, coded: Coded | None) -> bytes:
    """Return the payload of a block.

    Args:
        copies: of the block.
        rest: uint8, its other bytes.
        coded: them as a block, or None if they are stored.
    """
    ranges = copies.ranges
    parts, end = [varint(len(ranges))], 0
    for start, stop in reversed(ranges):  # the nearest first
        parts += [varint(end - stop), varint(stop - start)]
        end = start
    listed = integers.encode(_fields(copies))
    parts += [varint(copies.places.size), varint(len(listed)), listed]
    if coded is None:
        parts += [bytes([container.STORED]), varint(rest.size), rest.tobytes()]
    else:
        parts += [bytes([coded.kind]), varint(rest.size), varint(len(coded.payload)), coded.payload]
    return b"".join(parts)


def _fields(copies: Copies) -> np.ndarray:
    """Return the numbers that are written for copies, int64 [3, copies]: gaps, lengths, and distances of sources from
    where they would continue the source before."""
    gaps = copies.places - np.concatenate([[0], copies.places + copies.lengths])[:-1]
    sources = _joined(copies.sources, copies.ranges)
    expected = np.concatenate([[0], sources + copies.lengths])[:-1] + gaps
    return np.stack([gaps, copies.lengths, sources - expected])


def _joined(sources: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    """Return sources as places in the ranges one after the other, and in the block after them."""
    starts = np.array([*(start for start, _ in ranges), 0], np.int64)
    sizes = np.array([end - start for start, end in ranges], np.int64)
    places = np.concatenate([[0], np.cumsum(sizes)])
    found = np.searchsorted(starts, sources, "right") - 1
    return places[found] + sources - starts[found]


def read(payload: bytes, size: int, need: Callable[[int], None] = lambda memory: None) -> Repeated:
    """Read a block, without decoding it.

    Args:
        payload: of the block.
        size: its raw bytes.
        need: is called with the bytes of memory for the list of copies.

    Raises:
        DamagedError: if the payload is invalid.
    """
    file = io.BytesIO(payload)
    ranges = read_ranges(file, len(payload))
    count = _bounded(file, size // LEAST)
    need(MEMORY * count)
    listed = read_exactly(file, _bounded(file, len(payload)))
    copies = _copies(integers.decode(listed, (_FIELDS, count)), ranges, size)
    kind, (rest_size, _) = read_exactly(file, 1)[0], read_varint(file)
    length = rest_size if kind == container.STORED else _bounded(file, rest_size)
    if kind not in container.CODECS or kind == container.REPEATS or not count:
        raise impossible()
    if rest_size != size - copies.removed or length > len(payload):
        raise impossible()
    rest = read_exactly(file, length)
    if file.read(1) or (kind != container.STORED and not rest):
        raise impossible()
    return Repeated(copies, ranges, Coded(kind, rest), rest_size)


def read_ranges(file: BinaryIO, size: int) -> list[tuple[int, int]]:
    """Read the ranges (start, end) before a block that its sources are in, in order, counted from its start.

    Args:
        file: at a payload.
        size: its bytes.

    Raises:
        DamagedError: if they are impossible.
    """
    ranges, start = list[tuple[int, int]](), 0
    for _ in range(_bounded(file, size // 2)):
        end = start - _bounded(file, 1 << container.MOST_WINDOW)
        start = end - _bounded(file, 1 << container.MOST_WINDOW)
        if start < -(1 << container.MOST_WINDOW) or start == end:
            raise impossible()
        ranges.append((start, end))
    return ranges[::-1]


def pass_copies(file: BinaryIO) -> int:
    """Pass over the list of copies after the ranges, and return the kind of the block in the block, after its sizes."""
    read_varint(file)
    file.seek(read_varint(file)[0], io.SEEK_CUR)
    kind = read_exactly(file, 1)[0]
    for _ in range(1 if kind == container.STORED else 2):
        read_varint(file)
    return kind


def _bounded(file: BinaryIO, most: int) -> int:
    number, _ = read_varint(file)
    if number > most:
        raise impossible()
    return number


def _copies(fields: np.ndarray, ranges: list[tuple[int, int]], size: int) -> Copies:
    starts = np.array([*(start for start, _ in ranges), 0], np.int64)
    ends = np.array([*(end for _, end in ranges), size], np.int64)  # sources in the block end before their copies
    if not _place(fields, starts, ends, size):
        raise impossible()
    return Copies(size, *fields)


@kernel
def _place(fields, starts, ends, size):
    """Turn the numbers of copies into places, lengths and sources; return whether they are possible.

    Args:
        fields: int64 [3, copies], see `_fields`.
        starts, ends: int64 [ranges + 1], of the ranges and of the block.
        size: raw bytes of the block.
    """
    place, expected, total, own = np.int64(0), np.int64(0), np.int64(0), starts.size - 1
    if own and ends[own - 1] == 0:
        own -= 1  # the last range ends where the block starts, so it is one with it
    for i in range(starts.size):
        total += ends[i] - starts[i]
        ends[i] = total  # where the range ends in all of them
    for i in range(fields.shape[1]):
        gap, length = fields[0, i], fields[1, i]
        if gap < 0 or length < LEAST or gap > size - place or length > size - place - gap:
            return False
        place += gap
        joined = expected + gap + fields[2, i]
        if joined < 0 or joined >= total:
            return False
        expected = joined + length
        low, high = 0, starts.size - 1
        while low < high:  # the first range that ends after the source begins
            middle = (low + high) // 2
            if ends[middle] > joined:
                high = middle
            else:
                low = middle + 1
        source = starts[low] + joined - (ends[low - 1] if low else 0)
        if expected > ends[low] and low < own:
            return False
        if low >= own and source + length > place:
            return False
        fields[0, i], fields[2, i] = place, source
        place += length
    return True


def impossible() -> DamagedError:
    return DamagedError("the repeats of a block are impossible: the file is damaged")
