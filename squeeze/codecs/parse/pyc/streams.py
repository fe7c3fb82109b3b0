"""The streams of a file of byte code: objects, places in the source, instructions and texts, apart and put together.

Numbers have as many bytes as they need. Texts without a newline end with one in place of their length. The caches
behind instructions, which Python fills while it runs, are left out.
"""

import io
from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.pyc.objects import CODE, HEADER, KINDS, LINES, PLACES, STRINGS, walk
from squeeze.codecs.parse.pyc.places import ROW, read_rows, to_rows, to_table
from squeeze.codecs.parse.room import FIELD, MOST_OPENED, Room
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["Streams", "join", "split"]

_FLAG = 128  # of a type: others refer to the object
_BYTE_LENGTHS = 2  # types in STRINGS with a length of one byte
_MOST_CACHES = 15  # words behind an instruction


class Streams(NamedTuple):
    """The streams of a file of byte code.

    Attributes:
        objects: Types, numbers and the file's header.
        lines: Tables of lines and exceptions.
        places: Rows of the places in the source of instructions (places.py).
        code: Instructions, without caches.
        texts: Names, strings and bytes.
        caches: The words behind each instruction that has some, by its opcode.
    """

    objects: bytes
    lines: bytes
    places: bytes
    code: bytes
    texts: bytes
    caches: dict[int, int]


def split(raw: bytes, start: int, room: Room) -> tuple[Streams, int]:
    """Return the streams of the file of byte code at a place of data, and its end.

    Raises:
        DamagedError: if there is not a file that this walk knows, which is counted.
    """
    port = _Splitting(raw, start)
    try:
        walk(port, int.from_bytes(raw[start : start + 2], "little"))
    except DamagedError:
        room.spend(port.at - start + FIELD * port.fields)
        raise
    code, caches = _without_caches(b"".join(port.code))
    parts = bytes(port.objects), bytes(port.lines), bytes(port.places), code, bytes(port.texts)
    return Streams(*parts, caches), port.at


def join(streams: Streams) -> bytes:
    """Return the file of byte code that streams are of.

    Raises:
        DamagedError: if they do not belong together.
    """
    port = _Joining(streams)
    walk(port, int.from_bytes(streams.objects[:2], "little"))
    if any(stream.read(1) for stream in (port.objects, port.lines, port.places, port.code, port.texts)):
        raise _impossible()
    return bytes(port.out)


def _without_caches(code: bytes) -> tuple[bytes, dict[int, int]]:
    """Return instructions without the words of zeros that each is followed by at least, and these by opcode."""
    if len(code) % 2:
        return code, {}
    words = np.frombuffer(code, "<u2")
    places = np.flatnonzero(words)
    opcodes, behind = words[places] & 255, np.diff(places, append=words.size) - 1
    least = np.full(256, _MOST_CACHES)
    np.minimum.at(least, opcodes, behind)
    least[np.bincount(opcodes, minlength=256) == 0] = 0
    least[0] = 0
    kept = np.ones(words.size, bool)
    for count in range(1, int(least.max(initial=0)) + 1):
        kept[places[least[opcodes] >= count] + count] = False
    return words[kept].tobytes(), {int(opcode): int(least[opcode]) for opcode in np.flatnonzero(least)}


def _with_caches(code: bytes, caches: dict[int, int]) -> bytes:
    """Undo `_without_caches`."""
    if not caches:
        return code
    if len(code) % 2 or max(caches.values()) > _MOST_CACHES:
        raise _impossible()
    words, behind = np.frombuffer(code, "<u2"), np.zeros(256, np.uint8)
    behind[list(caches)] = list(caches.values())
    counts = behind[words & 255]
    size = words.size + int(counts.sum(dtype=np.int64))
    if words.itemsize * size > MOST_OPENED:
        raise _impossible()
    out = np.zeros(size, "<u2")
    out[np.cumsum(counts + np.int64(1)) - counts - 1] = words
    return out.tobytes()


def _folded(number: int) -> int:
    return 2 * number if number >= 0 else -2 * number - 1


class _Splitting:
    """Moves objects from data to streams."""

    def __init__(self, raw: bytes, start: int):
        self._raw, self.at, self.fields, self._line = raw, start, 0, 0
        self.objects, self.lines, self.places, self.texts = bytearray(), bytearray(), bytearray(), bytearray()
        self.code = list[bytes]()
        self.raw(HEADER)

    def _take(self, count: int) -> bytes:
        self.fields += 1
        if self.at + count > len(self._raw):
            raise _impossible()
        self.at += count
        return self._raw[self.at - count : self.at]

    def _int(self) -> int:
        return int.from_bytes(self._take(4), "little", signed=True)

    def kind(self) -> int:
        written = self._take(1)[0]
        kind = written & ~_FLAG
        number = STRINGS.find(kind)
        if number < 0:
            self.objects.append(written)
            return kind
        text = self._take(self._take(1)[0] if number < _BYTE_LENGTHS else self._length())
        if b"\n" in text:
            self.objects.append(written)
            self.objects += varint(len(text))
            self.texts += text
        else:
            self.objects.append(written & _FLAG | number + 1)
            self.texts += text + b"\n"
        return kind

    def _length(self) -> int:
        if (length := self._int()) < 0:
            raise _impossible()
        return length

    def byte(self) -> int:
        self.objects += self._take(1)
        return self.objects[-1]

    def number(self) -> int:
        number = self._int()
        self.objects += varint(_folded(number))
        return number

    def line(self) -> None:
        line = self._int()
        self.objects += varint(_folded(line - self._line))
        self._line = line

    def raw(self, count: int) -> None:
        self.objects += self._take(count)

    def bytes(self, what: int) -> None:
        taken = self._take(self._length())
        made = None
        if what == PLACES:
            self.fields += len(taken)
            made = to_rows(taken)
        if made:
            self.objects += varint(2 * (len(made[0]) // ROW) + 1)
            self.places += made[0]
            self.lines += made[1]
            return
        self.objects += varint(2 * len(taken) if what == PLACES else len(taken))
        if what == CODE:
            self.code.append(taken)
        else:
            stream = self.lines if what in (LINES, PLACES) else self.objects if what == KINDS else self.texts
            stream += taken


class _Joining:
    """Moves objects from streams to data."""

    def __init__(self, streams: Streams):
        self.objects, self.lines, self.places = map(io.BytesIO, streams[:3])
        self.code, self.texts = io.BytesIO(_with_caches(streams.code, streams.caches)), io.BytesIO(streams.texts)
        self.out, self._line = bytearray(), 0
        self.raw(HEADER)

    def kind(self) -> int:
        written = read_exactly(self.objects, 1)[0]
        number = (written & ~_FLAG) - 1
        if 0 <= number < len(STRINGS):
            text = self.texts.readline()
            if text[-1:] != b"\n":
                raise _impossible()
            self._text(written & _FLAG, number, text[:-1])
            return STRINGS[number]
        if (number := STRINGS.find(written & ~_FLAG)) >= 0:
            self._text(written & _FLAG, number, self._read(self.texts, read_varint(self.objects)[0]))
        else:
            self.out.append(written)
        return written & ~_FLAG

    def _text(self, flag: int, number: int, text: bytes) -> None:
        self.out.append(flag | STRINGS[number])
        if number >= _BYTE_LENGTHS:
            self.out += len(text).to_bytes(4, "little")
        elif len(text) < 256:
            self.out.append(len(text))
        else:
            raise _impossible()
        self.out += text

    def _read(self, stream: io.BytesIO, count: int) -> bytes:
        if count > len(stream.getbuffer()):
            raise _impossible()
        return read_exactly(stream, count)

    def byte(self) -> int:
        self.out += read_exactly(self.objects, 1)
        return self.out[-1]

    def _number(self) -> int:
        folded = read_varint(self.objects)[0]
        return -(folded + 1) // 2 if folded & 1 else folded // 2

    def _put(self, number: int) -> int:
        if not -(1 << 31) <= number < 1 << 31:
            raise _impossible()
        self.out += number.to_bytes(4, "little", signed=True)
        return number

    def number(self) -> int:
        return self._put(self._number())

    def line(self) -> None:
        self._line = self._put(self._line + self._number())

    def raw(self, count: int) -> None:
        self.out += self._read(self.objects, count)

    def bytes(self, what: int) -> None:
        length = read_varint(self.objects)[0]
        if what == PLACES and length & 1:
            table = to_table(read_rows(self.places, length >> 1), self.lines)
            self._put(len(table))
            self.out += table
            return
        length = self._put(length >> 1 if what == PLACES else length)
        stream = {PLACES: self.lines, CODE: self.code, LINES: self.lines, KINDS: self.objects}.get(what, self.texts)
        self.out += self._read(stream, length)


def _impossible() -> DamagedError:
    return DamagedError("the streams of a file of byte code are impossible: the file is damaged")
