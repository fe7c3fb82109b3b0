"""Wrappers of deflate streams: zip members, gzip files, zlib streams, and the data of PNG images."""

import re
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.image.layout import Layout, from_header
from squeeze.codecs.parse import zip_header
from squeeze.codecs.parse.deflate import bare
from squeeze.codecs.parse.deflate.stream import IsSound, Opened, open_stream
from squeeze.codecs.parse.palette import FARTHEST, Palette, ranked
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError

__all__ = ["Deflate", "Gzip", "Png", "RankedPng", "ZipMember", "Zlib"]


class ZipMember(Wrapper):
    """A deflate stream behind the header of a zip member."""

    name = "zip member"
    kind = 0
    mark = re.compile(re.escape(zip_header.MARK))

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        header = zip_header.read(data, start, len(data))
        if header is None or header.method != 8:
            return None
        opened = _stream_at(data, header.end, room)
        return Found(self.kind, header.end, opened.size, opened.content, opened) if opened else None

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        return stream


_PAIRS = np.arange(1 << 16)
# Of method 8, with a window of at most 32 KiB, without a dictionary.
_IS_ZLIB = (_PAIRS >> 8 & 15 == 8) & (_PAIRS < 0x8000) & (_PAIRS % 31 == 0) & (_PAIRS & 32 == 0)


class Zlib(Wrapper):
    """A deflate stream behind a zlib header, and its Adler-32 (RFC 1950)."""

    name = "zlib"
    kind = 1
    mark = re.compile(b"[\x08\x18\x28\x38\x48\x58\x68\x78]")  # and a byte that makes both a multiple of 31

    def find(self, data: bytes) -> Iterator[int]:
        units = np.frombuffer(data, np.uint8).astype(np.uint16)
        return iter(np.flatnonzero(_IS_ZLIB[units[:-1] << 8 | units[1:]]).tolist())

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        begin = start + 2

        def is_sound(content: np.ndarray, size: int) -> bool:
            return data[begin + size : begin + size + 4] == _adler(content)

        opened = _stream_at(data, begin, room, 8 + (data[start] >> 4), is_sound)
        if opened is None:
            return None
        return Found(self.kind, start + 2, opened.size + 4, opened.content, opened)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        return np.concatenate([stream, np.frombuffer(_adler(content), np.uint8)])


class Gzip(Wrapper):
    """A deflate stream behind a gzip header, with its CRC-32 and length (RFC 1952)."""

    name = "gzip"
    kind = 2
    mark = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        flags, begin = data[start + 3], start + 10
        if flags & 4:
            begin += 2 + int.from_bytes(data[start + 10 : start + 12], "little")
        for flag in (8, 16):  # a name and a comment
            if flags & flag:
                begin = data.find(b"\0", begin, start + _MOST_HEADER) + 1
                if not begin:
                    room.spend(_MOST_HEADER)
                    return None
        opened = _stream_at(data, begin + (flags & 2), room)
        if opened is None:
            return None
        begin += flags & 2
        end = begin + opened.size
        if data[end : end + 8] != _crc_and_size(opened.content):
            return Found(ZipMember.kind, begin, opened.size, opened.content, opened)
        return Found(self.kind, begin, opened.size + 8, opened.content, opened)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        return np.concatenate([stream, np.frombuffer(_crc_and_size(content), np.uint8)])


class Deflate(Wrapper):
    """A deflate stream without a header, whose first block has codes of its own."""

    name = "deflate"
    kind = 16
    mark = re.compile(rb"[\x04\x05\x0c\x0d]")  # as the first bits, and more that `find` tries

    def find(self, data: bytes) -> Iterator[int]:
        units, places = np.frombuffer(data, np.uint8), np.zeros(1, np.int64)
        start = 0
        while places.size:
            places = bare.find(units, start)
            yield from places.tolist()
            start = int(places[-1]) + 1 if places.size else 0

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        opened = _stream_at(data, start, room)
        if opened is None or opened.content.size < _LEAST_BARE:
            return None
        return Found(self.kind, start, opened.size, opened.content, opened)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        return stream


_LEAST_BARE = 128  # bytes of content of a stream without a header
_MOST_HEADER = 1 << 16  # bytes of a gzip header
_CHUNK_COST = 64  # bytes that finding a chunk counts as
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_LEAST_CHUNK = 32  # bytes of the shortest IDAT chunks, apart from the last one


class Png(Wrapper):
    """The data of a PNG image: a zlib stream cut into IDAT chunks of one length, and a last one."""

    name = "PNG"
    kind = 3
    mark = re.compile(re.escape(_SIGNATURE))

    def find(self, data: bytes) -> Iterator[int]:
        """Yield where the first IDAT chunks may begin, so that wrappers in the chunks before are found before."""
        places = [match.start() for match in self.mark.finditer(data)]
        for place, after in pairwise([*places, len(data)]):
            if (chunk := data.find(b"IDAT", place, after)) >= 0:
                yield chunk - 4

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        start = data.rfind(_SIGNATURE, 0, start + len(_SIGNATURE))
        found = self._open(data, start, *_idat_chunks(data, start + 8, room), room)
        if found is None:
            room.spend(0)
        return found

    def _open(self, data: bytes, start: int, chunks: list[bytes], begin: int, room: Room) -> Found | None:
        joined = b"".join(chunks)
        room.attempts -= len(joined)
        if len(joined) < 6 or joined[0] & 143 != 8 or joined[1] & 32:
            return None
        if len(chunks[0]) < min(_LEAST_CHUNK, len(joined)):
            return None
        opened = _stream_at(joined, 2, room, 8 + (joined[0] >> 4), lambda _, size: 2 + size + 4 == len(joined))
        if opened is None:
            return None
        extra = joined[:2] + struct.pack("<I", len(chunks[0]))
        stream = np.frombuffer(joined, np.uint8, opened.size, 2)
        closed, size = self.close(opened.content, stream, extra).tobytes(), len(joined) + 12 * len(chunks)
        if closed != data[begin : begin + size]:
            return None
        form = from_header(data[start + 16 : start + 29], opened.content.size)
        content = Content("image", 0, form) if form and data[start + 12 : start + 16] == b"IHDR" else None
        found = Found(Png.kind, begin, size, opened.content, opened, extra, content)
        return _ranked(data, start, found, form) if content and form else found

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        header, length = extra[:2], int.from_bytes(extra[2:], "little")
        joined = header + stream.tobytes() + _adler(content)
        if len(extra) != 6 or not min(_LEAST_CHUNK, len(joined)) <= length <= len(joined):
            raise DamagedError("the chunks of an image are impossible: the file is damaged")
        chunks = (_chunk(joined[at : at + length]) for at in range(0, len(joined), length))
        return np.frombuffer(b"".join(chunks), np.uint8)


class RankedPng(Png):
    """The same with ranks of colours, as the class that it is below finds it."""

    kind = 23
    has_palette = True

    def find(self, data: bytes) -> Iterator[int]:
        return iter(())


def _ranked(data: bytes, start: int, found: Found, form: Layout) -> Found:
    """Return the data of an image that starts at `start` with ranks of colours, if that pays; no row has a filter."""
    row = form.stride + 1
    if not form.indexed or form.bits != 8 or form.height or found.content[::row].any():
        return found
    place = data.find(b"PLTE", start, found.start) + 4
    size = int.from_bytes(data[place - 8 : place - 4], "big")
    if place < 8 or size % 3 or not 3 <= size <= 768 or not 0 <= found.start - place - size <= FARTHEST:
        return found
    palette = Palette(found.start - place - size, size // 3, row)
    return ranked(found, RankedPng.kind, palette, data[place : place + size], row)


def _stream_at(data: bytes, begin: int, room: Room, window: int = 15, is_sound: IsSound | None = None) -> Opened | None:
    return open_stream(np.frombuffer(data, np.uint8)[begin:], room, window, is_sound)


def _idat_chunks(data: bytes, place: int, room: Room) -> tuple[list[bytes], int]:
    """Return the data of the first IDAT chunks in a row, and where they begin."""
    chunks, begin = list[bytes](), place
    while place + 12 <= len(data):
        room.attempts -= _CHUNK_COST
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        if place + 12 + length > len(data) or (chunks and kind != b"IDAT") or kind == b"IEND":
            break
        if kind == b"IDAT":
            begin = begin if chunks else place
            chunks.append(data[place + 8 : place + 8 + length])
        place += 12 + length
    return chunks, begin


def _chunk(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + b"IDAT" + content + struct.pack(">I", zlib.crc32(b"IDAT" + content))


def _adler(content: np.ndarray) -> bytes:
    return struct.pack(">I", zlib.adler32(content.data))


def _crc_and_size(content: np.ndarray) -> bytes:
    return struct.pack("<II", zlib.crc32(content.data), content.size & 0xFFFFFFFF)
