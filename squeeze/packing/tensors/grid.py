"""Lossless coding of tensors whose values are on a grid: a code for each value, and a scale for each tile of them.

Such tensors are weights of a few bits that were converted to bf16, fp16 or float32, or values with few distinct ones.
Codes, scales and offsets are coded separately by floats.py or archive.py. grid_plan.py finds the grid, and
grid_levels.py has the arithmetic that restores the same bits.
"""

import struct
from collections.abc import Callable

import numpy as np

from squeeze.packing.tensors import floats
from squeeze.packing.tensors.content import Content, InMemory, InSegments, Section, whole
from squeeze.packing.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.packing.tensors.float_writer import Behind, Writer, copy
from squeeze.packing.tensors.grid_codes import rebuild, widen
from squeeze.packing.tensors.grid_levels import AFFINE, E4M3, E5M2, FORMS, INT, KINDS, PALETTE, levels_of
from squeeze.packing.tensors.grid_plan import IN_MEMORY
from squeeze.packing.tensors.grid_tiles import Codes, Grid, Tiles
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import thread_buffer

__all__ = ["DecodedGrid", "write"]

FORMAT = 1
_HEAD = struct.Struct("<BBBBIQQQQQQQ")  # see docs/format.md
_BLOCK = 1 << 16  # values that are decoded at a time
_TYPES = ("BF16", "F16", "F32")  # of scales and offsets, from the narrowest on
Coder = Callable[[Content, str, Writer, int, int], int]  # `write` of the coder of codes and scales
Reader = Callable[[Content, str, int], Content]  # the content of one of its payloads


def write(content: Content, dtype: str, grid: Grid, writer: Writer, coder: Coder, threads: int) -> int:
    """Write the payload of a tensor on a grid, a multiple of 8 bytes; return its bytes, or 0 if it is no shorter.

    Args:
        content: the tensor's bytes.
        dtype: its type.
        grid: the grid.
        writer: where the payload goes.
        coder: encodes codes, scales and offsets.
        threads: threads that code.
    """
    grid, codes = _shortest(content, dtype, grid, threads)
    kinds, sections = [0, 0], list[tuple[Content, str, int]]()
    for number, values in enumerate((grid.scales, grid.offsets) if grid.words is None else ()):
        narrowed, raw = _narrowed(values)
        kinds[number] = FORMS[narrowed]
        sections.append((InMemory(raw), narrowed, grid.tiles.across))
    if grid.words is not None:
        sections += [(InMemory(grid.words.view(np.uint8)), "", 0), (InMemory(np.empty(0, np.uint8)), "", 0)]
    sections.append((InMemory(grid.firsts.view(np.uint8)), "I16", 0))
    sections.append((codes, _type_of_codes(grid.kind), grid.tiles.columns))
    bounds = sum(floats.max_size(data.size, kind or "U8") + data.size for data, kind, _ in sections)
    writer.reserve(_HEAD.size + bounds + 64)
    end, lengths = _HEAD.size, []
    for data, kind, columns in sections:
        inner = Behind(writer, end)
        size = coder(data, kind, inner, threads, columns) if kind and data.size else 0
        size = size if 0 < size < data.size else copy(data, inner, 0, threads)
        lengths.append(size)
        writer.put(end + size, np.zeros(-size % 8, np.uint8))
        end += size + -size % 8
    _, columns, rows, width = grid.tiles
    packed = grid.firsts.size > 1, kinds[0] | kinds[1] << 4
    head = _HEAD.pack(
        FORMAT, grid.kind, *packed, len(grid.words) if grid.words is not None else 0, columns, rows, width, *lengths
    )
    writer.put(0, np.frombuffer(head, np.uint8))
    return end if end < content.size else 0


def _shortest(content: Content, dtype: str, grid: Grid, threads: int) -> tuple[Grid, Content]:
    """Return the grid with the firsts that give the shortest code, and the codes."""
    choices = [grid]
    if grid.kind == INT and grid.lows is not None and grid.firsts.size == 1:
        choices.append(grid.with_lows())
    found = [(one, Codes(content, dtype, one)) for one in choices]
    if len(found) > 1:
        found.sort(
            key=lambda pair: floats.estimate(pair[1], "U8") + 4 * pair[0].firsts.size * (pair[0].firsts.size > 1)
        )
    grid, codes = found[0]
    return grid, codes.in_memory(threads) if codes.size <= IN_MEMORY else codes


def _type_of_codes(kind: int) -> str:
    return {E4M3: "F8_E4M3", E5M2: "F8_E5M2"}.get(kind, "U8")


def _narrowed(values: Array) -> tuple[str, Array]:
    """Return the narrowest type that holds all of some float32 exactly, and the bytes in it."""
    bits = values.view(np.uint32)
    if not (bits & 0xFFFF).any():
        return "BF16", np.ascontiguousarray((bits >> 16).astype(np.uint16)).view(np.uint8)
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if (half.astype(np.float32).view(np.uint32) == bits).all():
        return "F16", half.view(np.uint8)
    return "F32", values.view(np.uint8)


class DecodedGrid(InSegments):
    """A content that decodes a payload as it is read. reader: decodes codes, scales and offsets.

    Raises DamagedError if the payload contradicts itself.
    """

    room = "decoded grid"

    def __init__(self, payload: Content, dtype: str, size: int, reader: Reader):
        self._width, self.size, self._form = DTYPES[dtype][0] // 8, size, FORMS[dtype]
        self.step, self._reader = _BLOCK * self._width, reader
        if payload.size < _HEAD.size:
            raise damaged("its grid is cut off")
        head = np.empty(_HEAD.size, np.uint8)
        payload.fill(0, head)
        form, kind, own, kinds, words, columns, rows, width, *lengths = _HEAD.unpack(head.tobytes())
        count = size // self._width
        is_possible = form == FORMAT and kind < KINDS and own <= (kind == INT) and kinds & 15 < 3 and kinds >> 4 < 3
        if not is_possible or not 1 <= columns <= count or not 1 <= rows <= count or not 1 <= width <= columns:
            raise damaged("its grid is unknown")
        if sum(length + -length % 8 for length in lengths) + _HEAD.size != payload.size:
            raise damaged("its length is not that of its parts")
        if words > 256 or (words > 0) != (kind == PALETTE):
            raise damaged("its palette is invalid")
        sections, end = list[Content](), _HEAD.size
        for length in lengths:
            sections.append(Section.of(payload, end, length))
            end += length + -length % 8
        tiles = Tiles(count, columns, rows, width)
        self._palette = self._words_of(sections[0], words) if kind == PALETTE else None
        if self._palette is None:
            scales = self._values(sections[0], kinds & 15, tiles.number)
            offsets = self._values(sections[1], kinds >> 4, tiles.number if kind == AFFINE else 1)
        else:
            scales = offsets = np.zeros(1, np.float32)
        first = self._read(sections[2], "I16", 2 * (tiles.number if own else 1))
        firsts = whole(first).view(np.int16)
        self._codes = self._read(sections[3], _type_of_codes(kind), count)
        self._arguments = self._form, kind, columns, rows, width, scales, offsets, firsts, levels_of(kind)

    def _read(self, section: Content, kind: str, size: int) -> Content:
        return section if section.size == size else self._reader(section, kind, size)

    def _values(self, section: Content, form: int, number: int) -> Array:
        """Return scales or offsets, float32. Raises DamagedError if any is not finite."""
        kind = _TYPES[form]
        bits = DTYPES[kind][0]
        found, out = whole(self._read(section, kind, number * bits // 8)), np.empty(number, np.float32)
        widen(np.ascontiguousarray(found).view(WORDS[bits]), form, out)
        if not np.isfinite(out).all():
            raise damaged("its scales are not finite")
        return out

    def _words_of(self, section: Content, words: int) -> Array:
        """Return the palette, with zeros after its last value."""
        if section.size != words * self._width:
            raise damaged("its palette is invalid")
        out = np.zeros(256, WORDS[8 * self._width])
        section.fill(0, out[:words].view(np.uint8))
        return out

    def _decode(self, first: int, last: int, out: Array) -> None:
        begin, values = first * _BLOCK, out.view(WORDS[8 * self._width])
        if isinstance(self._codes, InMemory) and self._codes.data.flags.carray:
            codes = self._codes.data[begin : begin + values.size]
        else:
            codes = thread_buffer("codes of a grid", values.size)
            self._codes.fill(begin, codes)
        if self._palette is not None:
            np.take(self._palette, codes, out=values)
        else:
            rebuild(codes, begin, *self._arguments, values)
