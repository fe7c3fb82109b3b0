"""bzip2 streams as wrappers: those of libbzip2 come back from their content and its level."""

import bz2
import io
import re
from collections.abc import Callable
from functools import partial

import numpy as np

from squeeze.codecs.parse.bzip2 import writing
from squeeze.codecs.parse.bzip2.writing import Bits
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from squeeze.system.binary import read_varint, varint

__all__ = ["Bzip2"]

_PART = 1 << 16  # coded bytes that are decoded at once
_PROOF = 8  # times as long as decoding: to code a stream again
_ORIGIN = 81  # bits of a block before the place of its rotation
_GROWS, _AROUND = 2, 1 << 16  # bytes of a stream for each of its content, and for all, at most
_MASK = 0xFFFFFFFF


class Bzip2(Wrapper):
    """A bzip2 stream as libbzip2 writes it, at a level from 1 to 9."""

    kind = 10
    name = "bzip2"
    mark = re.compile(rb"BZh[1-9]1AY&SY")

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        content, size = _decoded(data, start, room.content)
        if not size:
            room.spend(content.size)
            return None
        level, coded, origins = data[start + 3] - ord("0"), data[start : start + size], list[int]()
        written = _written(content, level, partial(_noted, coded, origins), coded)
        if written is None:
            room.spend(_PROOF * content.size)
            return None
        extra = bytes([level]) + b"".join(map(varint, origins if any(origins) else ()))
        return Found(self.kind, start, size, content, None, extra)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if not extra or not 1 <= extra[0] <= 9 or not content.size:
            raise _impossible()
        file = io.BytesIO(extra[1:])
        has_origins = len(extra) > 1

        def place_of(bits: Bits, first: int) -> int:
            moved = read_varint(file)[0] if has_origins else 0
            if first + moved >= 1 << 24:
                raise _impossible()
            return first + moved

        written = _written(content, extra[0], place_of)
        if written is None or file.read(1):
            raise _impossible()
        return written


def _decoded(data: bytes, start: int, most: int) -> tuple[np.ndarray, int]:
    """Return the content of a stream, uint8, and its coded bytes; 0 if it is damaged, cut off or too long."""
    decoder, parts, size, place = bz2.BZ2Decompressor(), list[bytes](), 0, start
    try:
        while not decoder.eof and size <= most and (place < len(data) or not decoder.needs_input):
            part = data[place : place + _PART] if decoder.needs_input else b""
            place += len(part)
            parts.append(decoder.decompress(part, most + 1 - size))
            size += len(parts[-1])
    except OSError:
        return np.empty(size, np.uint8), 0
    coded = place - start - len(decoder.unused_data) if decoder.eof and 0 < size <= most else 0
    return np.frombuffer(b"".join(parts), np.uint8), coded


def _written(
    content: np.ndarray, level: int, place_of: Callable[[Bits, int], int], coded: bytes | None = None
) -> np.ndarray | None:
    """Return the stream of a content, uint8, or None as soon as it differs from `coded`.

    Args:
        content: uint8.
        level: from 1 to 9.
        place_of: is called before each block, with the first place of the rotations equal to it.
        coded: what the stream must be, if it is known.
    """
    known = None if coded is None else np.frombuffer(coded, np.uint8)
    bits = Bits(np.zeros(_GROWS * content.size + _AROUND, np.uint8), np.zeros(1, np.int64))
    checksum = done = 0
    writing.put_all(bits, (int.from_bytes(b"BZh", "big"), 24), (ord("0") + level, 8))
    for block in writing.blocks(content, level):
        writing.write_block(bits, block, partial(place_of, bits))
        end = bits.size // 8
        if known is not None and not np.array_equal(bits.data[done:end], known[done:end]):
            return None
        checksum, done = (checksum << 1 & _MASK | checksum >> 31) ^ block.checksum, end
    writing.put_all(bits, (writing.END_MARK, 48), (checksum, 32))
    written = bits.data[: -(-bits.size // 8)]
    return written if known is None or np.array_equal(written, known) else None


def _noted(coded: bytes, origins: list[int], bits: Bits, first: int) -> int:
    """Return the place of a block's rotation that a stream has, and note how far it is from the first equal one."""
    place = bits.size + _ORIGIN
    found = int.from_bytes(coded[place >> 3 : (place >> 3) + 4], "big") >> 8 - (place & 7) & 0xFFFFFF
    origins.append(max(found - first, 0))
    return first + origins[-1]


def _impossible() -> DamagedError:
    return DamagedError("what closes a bzip2 stream is impossible: the file is damaged")
