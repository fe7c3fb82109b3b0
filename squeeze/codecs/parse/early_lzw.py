"""LZW of PDF and TIFF files: high bits first, and codes that grow one code early (ISO 32000-1, 7.4.4)."""

import io
import re
from collections.abc import Iterator

import numpy as np

from squeeze.codecs.parse import lzw
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.codecs.tiff import find_strips
from squeeze.errors import DamagedError
from squeeze.system.binary import read_varint, varint

__all__ = ["EarlyLzw"]

_BITS, _END = 8, 257  # bits of a symbol, and the code after the last one
_PROOF = 8  # times as long as reading symbols: to find an encoder's codes, and to close them
_PARTS = (1 << 14, 1 << 18, 1 << 22, 1 << 26)  # bytes that are read, until they have the end of the codes
_MOST_DIFFERENT = 16  # bytes of the data for each code that differs from an encoder's


class EarlyLzw(Wrapper):
    """Bytes coded by LZW, up to the code of their end, in PDF files behind a dictionary that names the filter."""

    kind = 17
    name = "LZW"
    mark = re.compile(rb"/LZWDecode[^\x80-\xff]{0,400}?stream\r?\n")

    def find(self, data: bytes) -> Iterator[int]:
        yield from (match.end() for match in self.mark.finditer(data))
        yield from (place for place, _, _ in find_strips(data))

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        if data[start : start + 1] != b"\x80" or data[start + 1 : start + 2] >= b"\x80":
            return None
        codes, stream = _read(data, start, room)
        if codes is None or not codes.symbols.size:
            room.spend(stream.size)
            return None
        differences = lzw.compare(codes, _BITS, codes.used // _MOST_DIFFERENT)
        if differences is None:
            room.spend(_PROOF * codes.symbols.size)
            return None
        closed = lzw.to_bytes(codes.codes, _BITS, True)
        numbers = [codes.clears_at, int(closed[-1] ^ stream[closed.size - 1])]
        for gap, other in zip(*differences, strict=True):
            numbers += [int(gap), int(other) + 1]
        extra = b"".join(map(varint, numbers))
        found = Found(self.kind, start, closed.size, codes.symbols, None, extra)
        return self.proven(found, data, room, _PROOF * codes.symbols.size)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        file = io.BytesIO(extra)
        clears_at, last = read_varint(file)[0], read_varint(file)[0]
        numbers = list[int]()
        while file.tell() < len(extra):
            numbers.append(min(read_varint(file)[0], 1 << 40))
        if last > 255 or len(numbers) % 2:
            raise _impossible()
        found = np.array(numbers, np.int64)
        differences = lzw.Differences(found[::2], found[1::2] - 1)
        if (differences.others >= lzw.MOST_CODES).any():
            raise _impossible()
        codes = lzw.to_bytes(lzw.choose(content, _BITS, clears_at, differences), _BITS, True)
        if not codes.size:
            raise _impossible()
        codes[-1] ^= last
        return codes


def _read(data: bytes, start: int, room: Room) -> tuple[lzw.Codes | None, np.ndarray]:
    """Return the codes at a place up to their end, or to that of a stream of PDF, and the bytes that were read."""
    for size in _PARTS:
        end = data.find(b"endstream", start, start + size)
        stream = np.frombuffer(data, np.uint8)[start : end if end >= 0 else start + size]
        codes = lzw.decode(stream, _BITS, room.content, True)
        if codes is None or codes.codes[-1:] == _END or start + size >= len(data) or end >= 0:
            break
        room.spend(max(stream.size, codes.symbols.size))  # the symbols take the time
    return codes, stream


def _impossible() -> DamagedError:
    return DamagedError("what closes a stream of LZW is impossible: the file is damaged")
