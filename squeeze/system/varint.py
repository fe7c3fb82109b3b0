"""The lowest layer of the file formats: integers of variable length, and reading an exact number of bytes."""

from collections.abc import Iterator
from typing import BinaryIO

from squeeze.errors import DamagedError, TruncatedError
from squeeze.system.pipes import read_some

CUT = "the file ends too early: it was cut off, and its end is missing"
PIECE = 1 << 20


def varint(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(file: BinaryIO) -> tuple[int, bytes]:
    """The value and the bytes it was read from."""
    value, encoded = 0, b""
    while len(encoded) < 9:
        byte = read_exactly(file, 1)
        value |= (byte[0] & 127) << (7 * len(encoded))
        encoded += byte
        if byte[0] < 128:
            return value, encoded
    raise DamagedError("a length in the file is impossible: the file is damaged")


def read_exactly(file: BinaryIO, count: int) -> bytes:
    """`count` bytes, which must already be known to be within a limit; pipes may give them in parts."""
    pieces = []
    while count:
        piece = read_some(file, min(count, PIECE))
        if not piece:
            raise TruncatedError(CUT)
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def copy_pieces(source: BinaryIO, count: int) -> Iterator[bytes]:
    """`count` bytes of `source` in pieces of at most a mebibyte."""
    while count:
        piece = read_exactly(source, min(count, PIECE))
        yield piece
        count -= len(piece)
