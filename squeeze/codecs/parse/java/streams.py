"""The streams of a class file: constants, code, line tables, texts and the rest, apart and put together.

References to constants become distances, since compilers write a constant near those that it refers to. Line numbers
become differences. Texts without a newline end with one in place of their length.
"""

import io
from typing import NamedTuple

from squeeze.codecs.parse.java.parts import CODE, TEXT, impossible, walk
from squeeze.codecs.parse.room import FIELD, Room
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly

__all__ = ["Streams", "join", "split"]

_LONG_TEXT = 2  # tag of a text with a newline, which no constant has
_MOST = 1 << 16  # numbers of two bytes


class Streams(NamedTuple):
    """The streams of a class file.

    Attributes:
        rest: Numbers, tables and attributes.
        constants: Tags, references and numbers.
        lines: Rows of two differences: places in the code, and lines.
        code: Instructions.
        texts: Names and strings.
    """

    rest: bytes
    constants: bytes
    lines: bytes
    code: bytes
    texts: bytes


def split(raw: bytes, start: int, room: Room) -> tuple[Streams, int]:
    """Return the streams of the class file at a place of data, and its end.

    Raises:
        DamagedError: if there is not one, which is counted.
    """
    port = _Splitting(raw, start)
    try:
        walk(port)
    except DamagedError:
        room.spend(port.at - start + FIELD * port.fields)
        raise
    return Streams(*map(bytes, (port.rest, port.constants, port.table, port.code, port.texts))), port.at


def join(streams: Streams) -> bytes:
    """Return the class file that streams are of.

    Raises:
        DamagedError: if they do not belong together.
    """
    port = _Joining(streams)
    walk(port)
    if any(stream.read(1) for stream in (port.rest, port.constants, port.table, port.code, port.texts)):
        raise impossible()
    return bytes(port.out)


class _Splitting:
    """Moves parts from data to streams."""

    def __init__(self, raw: bytes, start: int):
        self._raw, self.at, self.fields, self._line = raw, start, 0, 0
        self.rest, self.constants, self.table = bytearray(), bytearray(), bytearray()
        self.code, self.texts = bytearray(), bytearray()

    def _take(self, size: int) -> bytes:
        self.fields += 1
        if self.at + size > len(self._raw):
            raise impossible()
        self.at += size
        return self._raw[self.at - size : self.at]

    def tag(self) -> int:
        tag = self._take(1)[0]
        if tag != TEXT:
            self.constants.append(tag)
        return tag

    def text(self) -> bytes:
        length = self._take(2)
        text = self._take(int.from_bytes(length))
        if b"\n" in text:
            self.constants += bytes([_LONG_TEXT]) + length
            self.texts += text
        else:
            self.constants.append(TEXT)
            self.texts += text + b"\n"
        return text

    def reference(self, number: int) -> None:
        self.constants += ((int.from_bytes(self._take(2)) - number) % _MOST).to_bytes(2)

    def constant(self, size: int) -> None:
        self.constants += self._take(size)

    def number(self, size: int) -> int:
        taken = self._take(size)
        self.rest += taken
        return int.from_bytes(taken)

    def take(self, size: int, what: int) -> None:
        if what == CODE:
            self.code += self._take(size)
        else:
            self.rest += self._take(size)

    def lines(self, count: int) -> None:
        place = 0
        for _ in range(count):
            row = self._take(4)
            before, place = place, int.from_bytes(row[:2])
            last, self._line = self._line, int.from_bytes(row[2:])
            self.table += ((place - before) % _MOST).to_bytes(2) + ((self._line - last) % _MOST).to_bytes(2)

    def end_at(self, size: int) -> int:
        return self.at + size

    def check(self, end: int) -> None:
        if self.at != end:
            raise impossible()


class _Joining:
    """Moves parts from streams to data."""

    def __init__(self, streams: Streams):
        self.rest, self.constants, self.table, self.code, self.texts = map(io.BytesIO, streams)
        self.out, self._line, self._is_long = bytearray(), 0, False

    def _move(self, stream: io.BytesIO, size: int) -> bytes:
        if size > len(stream.getbuffer()):
            raise impossible()
        taken = read_exactly(stream, size)
        self.out += taken
        return taken

    def tag(self) -> int:
        tag = read_exactly(self.constants, 1)[0]
        self._is_long = tag == _LONG_TEXT
        tag = TEXT if self._is_long else tag
        self.out.append(tag)
        return tag

    def text(self) -> bytes:
        if self._is_long:
            return self._move(self.texts, int.from_bytes(self._move(self.constants, 2)))
        text = self.texts.readline()
        if text[-1:] != b"\n" or len(text) > _MOST:
            raise impossible()
        self.out += (len(text) - 1).to_bytes(2) + text[:-1]
        return text[:-1]

    def reference(self, number: int) -> None:
        self.out += ((int.from_bytes(read_exactly(self.constants, 2)) + number) % _MOST).to_bytes(2)

    def constant(self, size: int) -> None:
        self._move(self.constants, size)

    def number(self, size: int) -> int:
        return int.from_bytes(self._move(self.rest, size))

    def take(self, size: int, what: int) -> None:
        self._move(self.code if what == CODE else self.rest, size)

    def lines(self, count: int) -> None:
        place = 0
        for _ in range(count):
            row = read_exactly(self.table, 4)
            place = (place + int.from_bytes(row[:2])) % _MOST
            self._line = (self._line + int.from_bytes(row[2:])) % _MOST
            self.out += place.to_bytes(2) + self._line.to_bytes(2)

    def end_at(self, size: int) -> int:
        return -1

    def check(self, end: int) -> None:
        """Leave it to the comparison of checksums: what was split is whole."""
