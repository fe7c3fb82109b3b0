"""LZ4 frames, as the files of lz4, and the buffers of Arrow IPC and Feather.

A frame has a header, blocks behind their sizes, and an end, with checksums of what is in it if the header says so
(lz4_Frame_format.md of lz4/lz4). The wrapper begins behind the header.
"""

import re
import struct
from dataclasses import dataclass

import numpy as np
import xxhash

from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.quick import choices, layout, lz4
from squeeze.codecs.parse.quick.blocks import choices_of
from squeeze.codecs.parse.quick.layout import Tokens
from squeeze.codecs.parse.room import STEP, Room
from squeeze.errors import DamagedError

__all__ = ["Lz4Frame"]

_HEADER = 4 + 2 + 1  # bytes: the mark, flags and sizes, and their checksum
_DICTIONARY, _SUM, _SIZE, _BLOCK_SUMS, _UNLINKED = 1, 4, 8, 16, 32  # flags
_STORED = 1 << 31  # in the size of a block
_PART_BITS = 8  # log2 of the bytes of a part for number 0; each number has four times as many
_PROOF = 4  # times as long as reading a frame: to code it again


@dataclass(frozen=True)
class _Form:
    """The header of a frame: its flags, and the number of the largest bytes of a block, 4 to 7."""

    flags: int
    part: int

    @property
    def part_size(self) -> int:
        """The most bytes of content of a block."""
        return 1 << _PART_BITS + 2 * self.part

    @property
    def is_linked(self) -> bool:
        """True if matches may begin in earlier blocks."""
        return not self.flags & _UNLINKED

    @property
    def block_sums(self) -> bool:
        """True if each block has a checksum."""
        return bool(self.flags & _BLOCK_SUMS)

    @property
    def settings(self) -> np.ndarray:
        """The settings of its encoder."""
        return layout.settings(layout.LZ4, layout.BY_SIZE, self.part_size, self.is_linked, True)


class Lz4Frame(Wrapper):
    """The blocks of an LZ4 frame of the same content each, but for the last one, and the end."""

    name = "LZ4"
    kind = 25
    mark = re.compile(rb"\x04\x22\x4d\x18[\x40-\x7f][\x40\x50\x60\x70]", re.DOTALL)
    is_certain = True

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        form = _Form(data[start + 4], data[start + 5] >> 4)
        begin = start + _HEADER + (8 if form.flags & _SIZE else 0)
        blocks = None if form.flags & (_DICTIONARY | 2) else _blocks(data, begin, form, room)
        size = _content_size(blocks, form, room.content) if blocks else 0
        if not size:
            room.spend(sum(block.size for block, _ in blocks or ()))
            return None
        tokens = layout.empty(np.zeros(size, np.uint8), form.part_size)
        if len(blocks or ()) != tokens.ends.size or not _read(blocks or [], tokens, form):
            room.spend(size)
            return None
        coded = sum(block.size for block, _ in blocks or ())
        found = choices_of(tokens, [form.settings], coded, room)
        if found is None:
            return None
        extra = bytes([form.flags, form.part]) + found[1]
        closed = self.close(tokens.content, np.empty(0, np.uint8), extra)
        if not data.startswith(closed.tobytes(), begin):
            room.spend(_PROOF * size)
            return None
        return Found(self.kind, begin, closed.size, tokens.content, None, extra)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if len(extra) < 2 or not 4 <= extra[1] <= 7 or not content.size:
            raise DamagedError("what closes an LZ4 frame is impossible: the file is damaged")
        form = _Form(extra[0], extra[1])
        return _written(choices.restore(content, form.settings, extra[2:]), form)


def _blocks(data: bytes, place: int, form: _Form, room: Room) -> list[tuple[np.ndarray, bool]]:
    """Return the blocks from a place on, uint8, and whether each is stored; nothing if the end is missing.

    Each counts as an attempt, since a frame of tiny ones may have no end.
    """
    found, units = list[tuple[np.ndarray, bool]](), np.frombuffer(data, np.uint8)
    while place + 4 <= len(data) and room.attempts > 0:
        room.attempts -= STEP
        (size,) = struct.unpack_from("<I", data, place)
        if size == 0:
            return found
        place, stored, size = place + 4, bool(size & _STORED), size & ~_STORED
        if not 0 < size <= form.part_size or place + size > len(data):
            break
        found.append((units[place : place + size], stored))
        place += size + (4 if form.block_sums else 0)
    return []


def _content_size(blocks: list[tuple[np.ndarray, bool]], form: _Form, most: int) -> int:
    """Return the bytes of content of blocks, or 0 if one is invalid, or all have more than `most`."""
    total = 0
    for block, stored in blocks:
        size = block.size if stored else lz4.content_size(block, min(form.part_size, most - total))
        total += size
        if size <= 0 or total > most:
            return 0
    return total


def _read(blocks: list[tuple[np.ndarray, bool]], tokens: Tokens, form: _Form) -> bool:
    """Read blocks into tokens. Return whether they are valid, and each but the last one is a whole part."""
    place, size = 0, tokens.content.size
    for row, (block, stored) in enumerate(blocks):
        end = min(place + form.part_size, size)
        if stored and block.size == end - place:
            tokens.content[place:end] = block
            tokens.stored[row], tokens.ends[row] = 1, tokens.ends[row - 1] if row else 0
        elif stored or lz4.read_part(block, tokens, row, place, form.is_linked) != end:
            return False
        place = end
    return True


def _written(tokens: Tokens, form: _Form) -> np.ndarray:
    """Return the blocks and the end of a frame, uint8."""
    parts, begin, content = list[bytes](), 0, tokens.content
    for row, stored in enumerate(tokens.stored.tolist()):
        end = min(begin + form.part_size, content.size)
        block = (content[begin:end] if stored else lz4.write_part(tokens, row, begin, end)).tobytes()
        parts += [struct.pack("<I", len(block) | (_STORED if stored else 0)), block]
        parts += [_sum(block)] if form.block_sums else []
        begin = end
    parts += [bytes(4), _sum(content.data) if form.flags & _SUM else b""]
    return np.frombuffer(b"".join(parts), np.uint8)


def _sum(data: bytes | memoryview) -> bytes:
    """Return the checksum of some bytes: xxHash of 32 bits, low byte first."""
    return struct.pack("<I", xxhash.xxh32_intdigest(data))
