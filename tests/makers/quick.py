"""Blocks and files of Snappy and LZ4, and Parquet files with such pages: all tokens are those that are predicted."""

import struct

import numpy as np
import xxhash

from squeeze.codecs.parse.quick.blocks import close_block
from squeeze.codecs.parse.quick.lz4_frames import Lz4Frame
from squeeze.codecs.parse.quick.snappy_frames import SnappyFrame
from tests.makers import inputs

LZ4, LINKED_LZ4 = 5, 6  # encoders of blocks; those of Snappy are 0 to 4
_NOTHING = np.empty(0, np.uint8)
_ALL_RIGHT = b""  # choices that are all as predicted


def block(content: bytes, encoder: int) -> bytes:
    """Return a block of a content by an encoder."""
    return close_block(np.frombuffer(content, np.uint8), bytes([encoder]) + _ALL_RIGHT).tobytes()


def lz4_file(content: bytes, flags: int = 0x60, part: int = 4) -> bytes:
    """Return a frame with blocks of 64 KiB for `part` 4, and of four times as much for each more, all compressed."""
    size = struct.pack("<Q", len(content)) if flags & 8 else b""
    header = bytes([flags, part << 4]) + size
    blocks = Lz4Frame().close(np.frombuffer(content, np.uint8), _NOTHING, bytes([flags, part]) + _ALL_RIGHT)
    return b"\x04\x22\x4d\x18" + header + bytes([xxhash.xxh32_intdigest(header) >> 8 & 255]) + blocks.tobytes()


def lz4_file_with_stored(content: bytes) -> bytes:
    """Return a frame of blocks that know nothing of each other, of which those that do not shrink are stored."""
    header, parts = b"\x60\x40", [content[at : at + 65_536] for at in range(0, len(content), 65_536)]
    written = b"\x04\x22\x4d\x18" + header + bytes([xxhash.xxh32_intdigest(header) >> 8 & 255])
    for part in parts:
        coded = block(part, LZ4)
        shrinks = len(coded) < len(part)
        written += struct.pack("<I", len(coded) if shrinks else len(part) | 1 << 31) + (coded if shrinks else part)
    return written + bytes(4)


def snappy_file(content: bytes, encoder: int = 0) -> bytes:
    """Return a file in Snappy's framing format."""
    chunks = SnappyFrame().close(np.frombuffer(content, np.uint8), _NOTHING, bytes([encoder]) + _ALL_RIGHT)
    return b"\xff\x06\0\0sNaPpY" + chunks.tobytes()


def _number(value: int) -> bytes:
    """Return a number of Thrift's compact protocol."""
    value, out = value << 1, bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def page(content: bytes, coded: bytes, levels: bytes = b"", kind: int = 0) -> bytes:
    """Return a page with its header: of data (0), a dictionary (2), or data of the second version (3) with levels."""
    sizes = b"\x15" + _number(kind) + b"\x15" + _number(len(content + levels))
    sizes += b"\x15" + _number(len(levels + coded))
    statistics = b"\x1c\x18\x04\x09\0\0\0\x18\x04\x01\0\0\0\x11\x12\0"  # with texts, numbers and flags
    if kind == 3:
        inner = b"".join(b"\x15" + _number(value) for value in (9, 0, 9, 0, len(levels), 0)) + b"\x11\0"
        return sizes + b"\x5c" + inner + b"\0" + levels + coded
    inner = b"".join(b"\x15" + _number(value) for value in (9, 0, 3, 3)) + statistics + b"\0"
    return sizes + (b"\x4c\x15" + _number(9) + b"\x15\0\0" if kind == 2 else b"\x2c" + inner) + b"\0" + coded


def hadoop(content: bytes) -> bytes:
    """Return an LZ4 block behind its sizes, as Hadoop writes it."""
    coded = block(content, LZ4)
    return struct.pack(">II", len(content), len(coded)) + coded


CONTENTS = inputs.words(3_000), inputs.records(200), bytes(500) + inputs.words(900), inputs.random_bytes(400)


def parquet(encoder: int = 2) -> bytes:
    """Return pages as a Parquet file has them, of the content in CONTENTS."""
    first, second, third, fourth = CONTENTS
    pages = [page(first, block(first, encoder), kind=2), page(second, block(second, encoder))]
    pages += [page(third, block(third, encoder), b"\2\0\0\0\3\1", 3), page(fourth, block(fourth, encoder))]
    return b"PAR1" + b"".join(pages) + b"PAR1"
