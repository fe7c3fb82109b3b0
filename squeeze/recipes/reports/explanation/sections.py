"""The parts of a file that its own header names: sections of programs (ELF), tensors of safetensors files."""

import io
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from squeeze.checkpoint import safetensors
from squeeze.errors import SqueezeError
from squeeze.recipes.reports.explanation.totals import Total

__all__ = ["Section", "of_file", "sums"]

_OTHER = "header and gaps"
# Of 64-bit files and of 32-bit ones, where the ELF header says where the table of sections lies, and how large it is;
# and of its rows name, kind, flags, address, offset and size.
_HEADERS = {2: ("40xQ10xHHH", "IIQQQQ"), 1: ("32xI10xHHH", "IIIIII")}
_ORDERS = {1: "<", 2: ">"}
_NOTHING = (0, 8)  # kinds of sections of which the file holds no bytes


class Section(NamedTuple):
    """Bytes of the file, from `start` to `end`."""

    name: str
    start: int
    end: int


def of_file(data: bytes) -> tuple[Section, ...]:
    """In the order of their bytes, those that begin in another one left out; none of any other format, or damaged."""
    found = _elf(data) if data.startswith(b"\x7fELF") else _safetensors(data)
    kept: list[Section] = []
    for section in sorted(found, key=lambda section: (section.start, -section.end)):
        if section.start < section.end <= len(data) and (not kept or section.start >= kept[-1].end):
            kept.append(section)
    return tuple(kept)


def sums(sections: Iterable[Section], bits: np.ndarray, begin: int) -> dict[str, Total]:
    """Of float64 bits of the bytes from `begin` on: by section, and of all else. Sections of one name are one."""
    along = np.concatenate([[0.0], np.cumsum(bits)])
    found: dict[str, Total] = {}
    size, total = 0, 0.0
    for name, start, end in sections:
        first, last = (min(max(place - begin, 0), bits.size) for place in (start, end))
        if first < last:
            before, cost = found.get(name, Total(0, 0.0)), float(along[last] - along[first])
            found[name] = Total(before.size + last - first, before.bits + cost)
            size, total = size + last - first, total + cost
    if found and size < bits.size:
        found[_OTHER] = Total(bits.size - size, float(along[-1]) - total)
    return found


def _elf(data: bytes) -> list[Section]:
    """Of the table of section headers (System V ABI, chapter 4)."""
    try:
        header, row = (_ORDERS[data[5]] + form for form in _HEADERS[data[4]])
        place, width, count, names = struct.unpack_from(header, data)
        rows = [struct.unpack_from(row, data, place + i * width) for i in range(count)]
        strings = rows[names][4]
        return [
            Section(data[strings + name : data.index(0, strings + name)].decode(errors="replace"), start, start + size)
            for name, kind, _, _, start, size in rows
            if kind not in _NOTHING
        ]
    except (KeyError, IndexError, ValueError, struct.error):
        return []


def _safetensors(data: bytes) -> list[Section]:
    try:
        header = safetensors.read_header(io.BytesIO(data), len(data))
        tensors = safetensors.parse(Path(), len(data), header).tensors
    except SqueezeError:
        return []
    return [Section(tensor.name, tensor.begin, tensor.end) for tensor in tensors]
