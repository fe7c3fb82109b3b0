"""Files of Snappy's framing format, .sz: chunks of at most 64 KiB of content, each with a checksum of it.

See framing_format.txt of google/snappy. The wrapper begins behind the chunk that identifies the format.
"""

import re
import struct
from collections.abc import Iterator

import numpy as np

from squeeze.codecs.parse.deflate.matcher import CRC
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.quick import choices, layout, snappy
from squeeze.codecs.parse.quick.blocks import SNAPPY_ENCODERS, choices_of
from squeeze.codecs.parse.quick.layout import SNAPPY_PART, Tokens
from squeeze.codecs.parse.room import STEP, Room
from squeeze.errors import DamagedError
from squeeze.numerics.jit import kernel

__all__ = ["SnappyFrame"]

_START = b"\xff\x06\0\0sNaPpY"
_COMPRESSED, _STORED = range(2)  # types of chunks
_HEADER, _SUM = 4, 4  # bytes of a chunk's type and size, and of its checksum
_MASK = 0xA282EAD8  # added to rotated checksums
_PROOF = 4  # times as long as reading a file: to code it again

Chunk = tuple[np.ndarray, bool]  # the bytes of a chunk behind its checksum, uint8, and whether they are stored


class SnappyFrame(Wrapper):
    """Chunks with 64 KiB of content each, but for the last one."""

    name = "Snappy"
    kind = 26
    mark = re.compile(re.escape(_START))
    is_certain = True

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        begin = start + len(_START)
        chunks = list(_chunks(data, begin, room))
        sizes = [part.size if stored else snappy.content_size(part)[0] for part, stored in chunks]
        size, coded = sum(sizes), sum(part.size for part, _ in chunks)
        if any(size != SNAPPY_PART for size in sizes[:-1]) or not 0 < size <= room.content:
            room.spend(coded)
            return None
        tokens = layout.empty(np.zeros(size, np.uint8), SNAPPY_PART)
        if len(chunks) != tokens.ends.size or not _read(chunks, tokens):
            room.spend(size)
            return None
        found = choices_of(tokens, [_settings(encoder) for encoder in SNAPPY_ENCODERS], coded, room)
        if found is None:
            return None
        extra = bytes([found[0]]) + found[1]
        closed = self.close(tokens.content, np.empty(0, np.uint8), extra)
        if not data.startswith(closed.tobytes(), begin):
            room.spend(_PROOF * size)
            return None
        return Found(self.kind, begin, closed.size, tokens.content, None, extra)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if not extra or extra[0] not in SNAPPY_ENCODERS or not content.size:
            raise DamagedError("what closes a Snappy file is impossible: the file is damaged")
        return _written(choices.restore(content, _settings(extra[0]), extra[1:]))


def _settings(encoder: int) -> np.ndarray:
    return layout.settings(layout.SNAPPY, encoder, SNAPPY_PART, framed=True)


def _chunks(data: bytes, place: int, room: Room) -> Iterator[Chunk]:
    """Yield the chunks with content from a place on, up to the end or to another chunk. Each counts as an attempt."""
    units = np.frombuffer(data, np.uint8)
    while place + _HEADER + _SUM < len(data) and data[place] <= _STORED and room.attempts > 0:
        room.attempts -= STEP
        size = int.from_bytes(data[place + 1 : place + _HEADER], "little")
        end = place + _HEADER + size
        if size <= _SUM or end > len(data):
            return
        yield units[place + _HEADER + _SUM : end], data[place] == _STORED
        place = end


def _read(chunks: list[Chunk], tokens: Tokens) -> bool:
    """Read chunks into tokens, and return whether they are valid."""
    for row, (part, stored) in enumerate(chunks):
        if stored:
            begin = row * SNAPPY_PART
            tokens.content[begin : begin + part.size] = part
            tokens.stored[row], tokens.ends[row] = 1, tokens.ends[row - 1] if row else 0
        elif not snappy.read(part, tokens, row):
            return False
    return True


def _written(tokens: Tokens) -> np.ndarray:
    """Return the chunks of tokens, uint8."""
    written = list[bytes]()
    for row, stored in enumerate(tokens.stored.tolist()):
        part = tokens.content[row * SNAPPY_PART : (row + 1) * SNAPPY_PART]
        body = (part if stored else snappy.write(tokens, row, 1)).tobytes()
        state = int(_checksum(part))
        masked = ((state >> 15 | state << 17) + _MASK) & 0xFFFFFFFF
        written += [bytes([stored]), (len(body) + _SUM).to_bytes(3, "little"), struct.pack("<I", masked), body]
    return np.frombuffer(b"".join(written), np.uint8)


@kernel
def _checksum(data):
    """Return the CRC-32C of some bytes."""
    state = np.int64(0xFFFFFFFF)
    for k in range(data.size):
        state = state >> 8 ^ CRC[(state ^ np.int64(data[k])) & 255]
    return state ^ 0xFFFFFFFF
