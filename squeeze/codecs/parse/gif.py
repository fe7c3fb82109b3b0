"""The data of images in GIF files: their content is the pixels (CompuServe, "Graphics Interchange Format", 1990)."""

import io
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.parse import lzw
from squeeze.codecs.parse.palette import FARTHEST, Palette, ranked
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["Gif", "RankedGif"]

_IMAGE, _EXTENSION = 0x2C, 0x21
_DESCRIPTOR = 10  # bytes of an image descriptor
_INTERLACED = 64
_PASSES = ((0, 8), (4, 8), (2, 4), (1, 2))  # first row, and rows from one to the next
_PROOF = 8  # times as long as reading pixels: to find an encoder's codes, and to close them
_MOST_DIFFERENT = 16  # bytes of the data for each code that differs from an encoder's


class _Form(NamedTuple):
    """The numbers that close the pixels again.

    Attributes:
        bits: Bits of a symbol.
        width: Pixels of a row if the rows are interlaced, else 0.
        block: Bytes of a block but for the last one.
        clears_at: Codes of the table when it is cleared.
        differences: From an encoder's codes.
        last: What the last byte of the codes has beyond them.
        rest: Bytes after it.
    """

    bits: int
    width: int
    block: int
    clears_at: int
    differences: lzw.Differences
    last: int
    rest: bytes

    def to_bytes(self) -> bytes:
        """Return what `read` reads."""
        numbers = [self.bits, self.width, self.block, self.clears_at, self.differences.gaps.size]
        for gap, other in zip(*self.differences, strict=True):
            numbers += [int(gap), int(other) + 1]
        return b"".join(map(varint, numbers)) + bytes([self.last]) + self.rest

    @classmethod
    def read(cls, extra: bytes) -> "_Form":
        """Read what closes pixels.

        Raises:
            DamagedError: if it is impossible.
        """
        file = io.BytesIO(extra)
        bits, width, block, clears_at, count = (read_varint(file)[0] for _ in range(5))
        if not (1 <= bits <= 8 and 1 <= block <= 255 and 2 * count <= len(extra)):
            raise _impossible()
        numbers = np.array([min(read_varint(file)[0], 1 << 40) for _ in range(2 * count)], np.int64)
        differences = lzw.Differences(numbers[::2], numbers[1::2] - 1)
        if (differences.others >= lzw.MOST_CODES).any():
            raise _impossible()
        return cls(bits, width, block, clears_at, differences, read_exactly(file, 1)[0], file.read())


class Gif(Wrapper):
    """The pixels of an image, coded by LZW in blocks of up to 255 bytes."""

    kind = 7
    name = "GIF image"
    mark = re.compile(rb"GIF8[79]a")

    def find(self, data: bytes) -> Iterator[int]:
        end = 0
        for start in super().find(data):
            if start >= end:
                place = start + 13 + _colours(data[start + 10 : start + 11])
                while place < len(data):
                    begin = _blocks_of(data, place)
                    if data[place] == _IMAGE and begin + 1 < len(data):
                        yield place
                    end = max(place, end)
                    place = _after(data, begin + (data[place] == _IMAGE)) if begin > place else len(data)

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        begin = _blocks_of(data, start)
        end = _after(data, begin + 1)
        blocks = data[begin + 1 : end]
        if end > len(data) or len(blocks) < 2 or not 1 <= data[begin] <= 8:
            return None
        joined = np.frombuffer(_join(blocks), np.uint8)
        bits = data[begin]
        codes = lzw.decode(joined, bits, room.content)
        differences = lzw.compare(codes, bits, joined.size // _MOST_DIFFERENT) if codes else None
        if codes is None or differences is None or not codes.symbols.size:
            room.spend(joined.size + (_PROOF * codes.symbols.size if codes else 0))
            return None
        width = int.from_bytes(data[start + 5 : start + 7], "little")
        is_interlaced = data[start + 9] & _INTERLACED and width and codes.symbols.size % width == 0
        content = _in_order(codes.symbols, width) if is_interlaced else codes.symbols
        stream = lzw.to_bytes(codes.codes, bits)
        form = _Form(
            *(bits, width if is_interlaced else 0, blocks[0], codes.clears_at, differences),
            *(int(stream[-1] ^ joined[stream.size - 1]), joined[stream.size :].tobytes()),
        )
        extra = form.to_bytes()
        layout = Layout(width, 8, 1, indexed=1)
        kind = Content("image", 0, tuple(layout)) if layout.is_possible(content.size) else None
        wrapper = Found(Gif.kind, begin, end - begin, content, None, extra, kind)
        found = self.proven(wrapper, data, room, _PROOF * content.size)
        place, end_of_palette = _palette_of(data, start)
        if not found or not kind or place == end_of_palette:
            return found
        palette = Palette(begin - end_of_palette, (end_of_palette - place) // 3)
        return ranked(found, RankedGif.kind, palette, data[place:end_of_palette], width)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        form = _Form.read(extra)
        if form.width:
            if content.size % form.width:
                raise _impossible()
            content = _interlaced(content, form.width)
        codes = lzw.to_bytes(lzw.choose(content, form.bits, form.clears_at, form.differences), form.bits)
        if not codes.size:
            raise _impossible()
        codes[-1] ^= form.last
        joined = codes.tobytes() + form.rest
        blocks = [joined[at : at + form.block] for at in range(0, len(joined), form.block)]
        written = b"".join(part for block in blocks for part in (bytes([len(block)]), block))
        return np.frombuffer(bytes([form.bits]) + written + b"\0", np.uint8)


class RankedGif(Gif):
    """The same with ranks of colours, as the class that it is below finds it."""

    kind = 22
    has_palette = True

    def find(self, data: bytes) -> Iterator[int]:
        return iter(())


def _palette_of(data: bytes, start: int) -> tuple[int, int]:
    """Return where the colours of the image whose descriptor is at `start` begin and end.

    Both are 0 if the image has no colours, or they are far away or in its data.
    """
    place = start + _DESCRIPTOR
    size = _colours(data[start + 9 : start + 10])
    if not size and (header := data.rfind(b"GIF8", max(start - FARTHEST, 0), start)) >= 0:
        place, size = header + 13, _colours(data[header + 10 : header + 11])
    begin = _blocks_of(data, start)
    return (place, place + size) if place + size <= begin else (0, 0)


def _colours(flags: bytes) -> int:
    """Return the bytes of the table of colours that flags name."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 128 else 0


def _blocks_of(data: bytes, place: int) -> int:
    """Return where the blocks of an extension begin or, after its table of colours, the data of an image; else 0."""
    if data[place] == _EXTENSION:
        return place + 2
    if data[place] == _IMAGE:
        return place + _DESCRIPTOR + _colours(data[place + 9 : place + 10])
    return 0


def _after(data: bytes, place: int) -> int:
    """Return the place after blocks and the empty one that ends them, or one beyond the data."""
    while place < len(data):
        if not data[place]:
            return place + 1
        place += 1 + data[place]
    return len(data) + 1


def _join(blocks: bytes) -> bytes:
    """Return the content of blocks."""
    parts, place = [], 0
    while blocks[place]:
        parts.append(blocks[place + 1 : place + 1 + blocks[place]])
        place += 1 + blocks[place]
    return b"".join(parts)


def _rows(height: int) -> np.ndarray:
    """Return the rows of an interlaced image in the order in which it has them, int64 [height]."""
    return np.concatenate([np.arange(first, height, step) for first, step in _PASSES])


def _in_order(pixels: np.ndarray, width: int) -> np.ndarray:
    """Return the pixels of an interlaced image row by row."""
    rows = pixels.reshape(-1, width)
    found = np.empty_like(rows)
    found[_rows(len(rows))] = rows
    return found.ravel()


def _interlaced(pixels: np.ndarray, width: int) -> np.ndarray:
    """Undo `_in_order`."""
    rows = pixels.reshape(-1, width)
    interlaced: np.ndarray = rows[_rows(len(rows))].ravel()
    return interlaced


def _impossible() -> DamagedError:
    return DamagedError("what closes an image is impossible: the file is damaged")
