"""Wrappers of bytes as digits to the base 85: Ascii85 of PDF and PostScript, and that of Git and Python (RFC 1924).

Four bytes are five digits, high ones first. Ascii85 may have a z for four zeros, and ends with ~>. Lines of Git's
binary patches begin with a letter that says their bytes.
"""

import io
import re
from collections.abc import Iterator

import numpy as np

from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.codecs.parse.texts import in_runs, table_of
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["Ascii85", "Base85"]

_BASE, _GROUP, _BYTES = 85, 5, 4
_LEAST = 96  # digits of the shortest wrapper
_POWERS = _BASE ** np.arange(_GROUP - 1, -1, -1, dtype=np.int64)
_NEWLINES = b"", b"\n", b"\r\n", b"\r"
_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z, _ENDED = 4, 8  # flags: groups of zeros are a z; the last line has a newline
_MOST_LINE = 1 << 10  # digits of a line, if there are several
_FEW, _OTHERS = 6, b"!#$%&()*;<>?@^_`{|}~"  # digits that base64 has not, of which the first _LEAST have some
_ASCII = bytes(range(33, 118))
_SIZES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # letters of 1 to 52 bytes
_GIT_LINE = 52  # bytes of a line


def _values(digits: bytes) -> np.ndarray:
    """Return int64 [256]: the value of each digit, and of other bytes one that is too large."""
    values = np.full(256, 1 << 40, np.int64)
    values[list(digits)] = np.arange(_BASE)
    return values


def _decoded(digits: bytes, values: np.ndarray) -> np.ndarray | None:
    """Return the bytes of digits, uint8, or None if they are invalid; a last group may be short."""
    short = -len(digits) % _GROUP
    if short == _GROUP - 1:
        return None
    units = np.frombuffer(digits, np.uint8)
    groups = np.append(values[units], np.full(short, _BASE - 1)).reshape(-1, _GROUP) @ _POWERS
    if groups.size and groups.max() >> 32:
        return None
    decoded: np.ndarray = groups.astype(">u4").view(np.uint8)[: groups.size * _BYTES - short]
    return decoded


def _encoded(content: np.ndarray, digits: bytes, whole: bool) -> np.ndarray:
    """Return the digits of a content, uint8; those of a last group that is short are cut, or `whole`."""
    short = -content.size % _BYTES
    groups = np.append(content, np.zeros(short, np.uint8)).view(">u4").astype(np.int64)
    written = np.frombuffer(digits, np.uint8)[groups[:, None] // _POWERS % _BASE].ravel()
    found: np.ndarray = written if whole or not short else written[:-short]
    return found


class Ascii85(Wrapper):
    """Digits from ! to u in lines of one length, with z for four zeros, before ~>."""

    kind = 14
    name = "Ascii85"
    mark = re.compile(rb"~>")
    _VALUES = _values(_ASCII)
    _LINE = re.compile(rb"[!-uz]+")

    def find(self, data: bytes) -> Iterator[int]:
        done = 0
        for match in self.mark.finditer(data):
            start = _start_of_lines(data, done, match.start())
            if start >= 0:
                yield start
            done = match.end()

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        end = data.find(b"~>", start, start + 2 * room.content)
        text = data[start:end] if end > start else b""
        if len(text) < _LEAST:
            return None
        first = self._LINE.match(text)
        length = len(first[0]) if first else 0
        newline = next((mark for mark in (b"\r\n", b"\n", b"\r") if text.startswith(mark, length)), b"")
        if length == len(text):
            newline = b""
        joined = text.replace(newline, b"") if newline else text
        content = _decoded(joined.replace(b"z", b"!!!!!"), self._VALUES)
        if content is None or not content.size or content.size > room.content:
            room.spend(len(text))
            return None
        second = self._LINE.match(text, length + len(newline))
        flags = _NEWLINES.index(newline) | _Z * (b"z" in joined) | _ENDED * (bool(newline) and text.endswith(newline))
        extra = bytes([flags]) + varint(length) + varint(len(second[0]) if second else length)
        return self.proven(Found(self.kind, start, len(text), content, None, extra), data, room, len(text))

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        file = io.BytesIO(extra)
        flags, first, length = read_exactly(file, 1)[0], read_varint(file)[0], read_varint(file)[0]
        newline = _NEWLINES[flags & 3]
        if flags >= 2 * _ENDED or file.read(1) or (newline and not length):
            raise _impossible()
        digits = _encoded(content, _ASCII, False)
        if flags & _Z:
            digits = _with_z(digits)
        written = digits.tobytes()
        if newline:
            lines = [written[:first], *(written[at : at + length] for at in range(first, len(written), length))]
            written = newline.join(lines) + (newline if flags & _ENDED else b"")
        return np.frombuffer(written, np.uint8)


def _with_z(digits: np.ndarray) -> np.ndarray:
    """Return digits with a z for each whole group of zeros."""
    whole = digits.size // _GROUP * _GROUP
    groups = digits[:whole].reshape(-1, _GROUP)
    is_zero = (groups == _ASCII[0]).all(1)
    kept = np.ones(groups.shape, bool)
    kept[is_zero, 1:] = False
    written = groups.copy()
    written[is_zero, 0] = ord("z")
    return np.concatenate([written[kept], digits[whole:]])


def _start_of_lines(data: bytes, least: int, end: int) -> int:
    """Return where the lines of digits of one length begin that are before `end`, or -1."""
    start = data.rfind(b"<~", least, end)
    if start >= 0 and Ascii85._LINE.match(data, start + 2, end):
        return start + 2
    place = _line_before(data, least, end)
    if place == end:  # the last line is empty
        place = _line_before(data, least, max(end - 1, least))
    length, found = 0, place
    while found > least + 1:
        stop = found - 1 - (data[found - 2 : found] == b"\r\n")
        before = _line_before(data, max(least, stop - _MOST_LINE), stop)
        line = data[before:found].rstrip(b"\r\n")
        length = length or len(line)
        if len(line) != length or not line or not Ascii85._LINE.fullmatch(line):
            break
        found = before
    return found if Ascii85._LINE.match(data, found, end) else -1


def _line_before(data: bytes, least: int, end: int) -> int:
    """Return where the line begins that ends at `end`."""
    return max(data.rfind(b"\n", least, end) + 1, data.rfind(b"\r", least, end) + 1, least)


class Base85(Wrapper):
    """Digits of Git and Python, in one line, or in the lines of a binary patch."""

    kind = 15
    name = "base85"
    _ALPHABET = rb"0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-"
    _LINE = re.compile(rb"[%b]+" % _ALPHABET)
    mark = re.compile(rb"[%b]{%d,}+" % (_ALPHABET, _LEAST))
    _PATCHES = re.compile(rb"\nliteral [0-9]+\n"), re.compile(rb"\ndelta [0-9]+\n")
    _VALUES, _TABLE, _OTHER = _values(_DIGITS), table_of(_DIGITS), table_of(_OTHERS)

    def find(self, data: bytes) -> Iterator[int]:
        for patch in self._PATCHES:
            yield from (match.end() for match in patch.finditer(data))
        units = np.frombuffer(data, np.uint8)
        for start in in_runs(self.mark, data, self._TABLE[units], _LEAST):
            first = np.unique(units[start : start + _LEAST])
            if np.count_nonzero(self._OTHER[first]) >= _FEW:
                yield start

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        if data[start - 1 : start] == b"\n" and (found := self._open_patch(data, start, room)):
            return found
        match = self._LINE.match(data, start, start + 2 * room.content)
        digits = match[0] if match else b""
        content = _decoded(digits, self._VALUES) if len(digits) >= _LEAST else None
        if content is None or content.size > room.content:
            room.spend(len(digits))
            return None
        return self.proven(Found(self.kind, start, len(digits), content), data, room, len(digits))

    def _open_patch(self, data: bytes, start: int, room: Room) -> Found | None:
        """Open the lines of a binary patch that begin at a place."""
        parts, end, size = list[np.ndarray](), start, 0
        while match := self._LINE.match(data, end, end + 80):
            line = match[0]
            content = _decoded(line[1:], self._VALUES)
            count = _SIZES.find(line[:1]) + 1
            if not count or content is None or data[match.end() : match.end() + 1] != b"\n":
                break
            if content.size != (count + 3) // 4 * 4:
                break
            parts.append(content[:count])
            size, end = size + count, match.end() + 1
            if count < _GIT_LINE or size > room.content:
                break
        if end - start < _LEAST or size > room.content:
            return None
        found = Found(self.kind, start, end - start, np.concatenate(parts), None, b"\1")
        return self.proven(found, data, room, found.size)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if extra not in (b"", b"\1"):
            raise _impossible()
        if not extra:
            return _encoded(content, _DIGITS, False)
        lines = (content[at : at + _GIT_LINE] for at in range(0, content.size, _GIT_LINE))
        written = (
            _SIZES[line.size - 1 : line.size] + _encoded(line, _DIGITS, True).tobytes() + b"\n" for line in lines
        )
        return np.frombuffer(b"".join(written), np.uint8)


def _impossible() -> DamagedError:
    return DamagedError("what closes digits to the base 85 is impossible: the file is damaged")
