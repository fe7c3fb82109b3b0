"""Pickles of Python without the numbers of what is remembered: they count up, and references become distances.

The opcodes are those of Python's module pickletools, of protocols 2 to 5.
"""

import io
import re
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import FIELD, MOST_OPENED, Room
from squeeze.errors import DamagedError, SqueezeError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["Pickle"]

_ALONE = b"(.012}])NdelotubasRQ\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98"
_FIXED = {b"K": 1, b"\x80": 1, b"\x82": 1, b"M": 2, b"\x83": 2, b"J": 4, b"\x84": 4, b"G": 8, b"\x95": 8}
_COUNTED = {b"U": 1, b"C": 1, b"\x8a": 1, b"\x8c": 1, b"T": 4, b"B": 4, b"X": 4, b"\x8b": 4, b"\x8d": 8}
_COUNTED |= {b"\x8e": 8, b"\x96": 8}
_LINES = {b"I": 1, b"L": 1, b"F": 1, b"S": 1, b"V": 1, b"P": 1, b"c": 2, b"i": 2}
_REMEMBER, _GET, _STOP = {b"q": 1, b"r": 4}, {b"h": 1, b"j": 4}, b"."
_MEMOIZE = b"\x94"
_SHARE = 32  # a pickle has a number or reference for at least so many bytes
_PROOF = 2  # times as many fields as reading a pickle: to close it


class Pickle(Wrapper):
    """A pickle of protocol 2 or later."""

    kind = 30
    name = "pickle"
    mark = re.compile(rb"\x80[\x02-\x05][\](}c\x8c\x95]")
    is_certain = True
    least = 1 << 8
    least_copied = 0.1
    keeps_header = True

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        file = io.BytesIO(data)
        file.seek(start)
        content, counts = bytearray(), _Counts()
        try:
            _without_numbers(file, content, counts)
        except SqueezeError:
            room.spend(file.tell() - start + FIELD * counts.fields)
            return None
        size = file.tell() - start
        if size < self.least or _SHARE * counts.numbers < size or len(content) > room.content:
            room.spend(size + FIELD * counts.fields)
            return None
        found = Found(self.kind, start, size, np.frombuffer(bytes(content), np.uint8))
        return self.proven(found, data, room, size + _PROOF * FIELD * counts.fields)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        file = io.BytesIO(content.tobytes())
        made = _with_numbers(file)
        if extra or file.read(1):
            raise _impossible()
        return np.frombuffer(made, np.uint8)


@dataclass
class _Counts:
    """The opcodes that were read, and how many of them are numbers and references."""

    fields: int = 0
    numbers: int = 0


def _without_numbers(file: io.BytesIO, out: bytearray, counts: _Counts) -> None:
    """Append the pickle that a file goes on with to `out`, without numbers, and count its opcodes.

    Raises:
        DamagedError: if it is not one.
    """
    count, code = 0, b""
    while code != _STOP:
        code = read_exactly(file, 1)
        counts.fields += 1
        if size := _REMEMBER.get(code, 0):
            if int.from_bytes(read_exactly(file, size), "little") != count:
                raise _impossible()
            out += b"q"
            count += 1
            counts.numbers += 1
        elif size := _GET.get(code, 0):
            distance = count - int.from_bytes(read_exactly(file, size), "little")
            if distance <= 0:
                raise _impossible()
            out += b"h" + varint(distance)
            counts.numbers += 1
        else:
            out += code + _rest(file, code)
            count += code == _MEMOIZE


def _with_numbers(file: io.BytesIO) -> bytes:
    """Undo `_without_numbers`."""
    out, count, code = bytearray(), 0, b""
    while code != _STOP:
        code = read_exactly(file, 1)
        if code == b"q":
            out += _numbered(b"qr", count)
            count += 1
        elif code == b"h":
            out += _numbered(b"hj", count - read_varint(file)[0])
        elif code in _REMEMBER or code in _GET:
            raise _impossible()
        else:
            out += code + _rest(file, code)
            count += code == _MEMOIZE
        if len(out) > MOST_OPENED:
            raise _impossible()
    return bytes(out)


def _numbered(codes: bytes, number: int) -> bytes:
    """Return the shorter of two opcodes that a number fits, and the number."""
    if not 0 <= number < 1 << 32:
        raise _impossible()
    return codes[:1] + bytes([number]) if number < 256 else codes[1:] + number.to_bytes(4, "little")


def _rest(file: io.BytesIO, code: bytes) -> bytes:
    """Return the argument of an opcode."""
    if code in _ALONE:
        return b""
    if size := _FIXED.get(code, 0):
        return read_exactly(file, size)
    if size := _COUNTED.get(code, 0):
        length = read_exactly(file, size)
        return length + read_exactly(file, int.from_bytes(length, "little"))
    if count := _LINES.get(code, 0):
        lines = [file.readline() for _ in range(count)]
        if all(line[-1:] == b"\n" for line in lines):
            return b"".join(lines)
    raise _impossible()


def _impossible() -> DamagedError:
    return DamagedError("the opcodes of a pickle are impossible: the file is damaged")
