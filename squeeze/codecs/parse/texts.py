"""Wrappers of text and bytes as other text: UTF-16, base64, hexadecimal digits, and lines of Windows."""

import base64
import binascii
import re
from collections.abc import Iterator

import numpy as np

from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError

__all__ = ["Base64", "Hexadecimal", "Lines", "Unicode", "Utf16", "impossible", "in_runs", "table_of"]

_NEWLINES = (b"", b"\n", b"\r\n", b"\\n")
_LEAST_LINES, _LEAST_TEXT = 16, 1 << 10  # lines and bytes of the shortest text whose lines end in CR LF
_LEAST_UNITS = 64  # characters of the shortest text in UTF-16 without a byte order mark
_LEAST_ASCII = 0.75  # share of lines in no Unicode encoding
_LEAST_DIGITS = 128  # base64 or hexadecimal digits of the shortest wrapper
_LEAST_LINE = 60  # base64 digits of the shortest first line
_FIRST_PART, _PART = 1 << 6, 1 << 12  # UTF-16 units that are looked at together, the first ones and later ones
_GAP = 16  # most characters beyond ASCII in a row, in UTF-16 without a byte order mark


def table_of(members: bytes) -> np.ndarray:
    """Return bool [256]: whether a byte is one of some."""
    found = np.zeros(256, bool)
    found[list(members)] = True
    return found


def in_runs(mark: re.Pattern[bytes], data: bytes, can_be: np.ndarray, least: int) -> Iterator[int]:
    """Yield the places where a mark begins in data, in runs of at least `least` bytes that can be of it."""
    if not can_be.size:
        return
    changes = np.flatnonzero(can_be[1:] != can_be[:-1]) + 1
    changes = np.concatenate([[0] if can_be[0] else [], changes, [can_be.size] if can_be[-1] else []]).astype(np.int64)
    begins, ends = changes[::2], changes[1::2]
    for run in np.flatnonzero(ends - begins >= least):
        for match in mark.finditer(data, int(begins[run]), int(ends[run]) + 1):
            yield match.start()


class Unicode(Wrapper):
    """Text in an encoding of Unicode with two orders of bytes, whose content is UTF-8. The extra is the order."""

    orders: tuple[str, str]  # Python's names of the encodings, little-endian first

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if len(extra) != 1 or extra[0] > 1:
            raise impossible()
        try:
            return np.frombuffer(content.tobytes().decode().encode(self.orders[extra[0]]), np.uint8)
        except UnicodeError:
            raise impossible() from None


class Utf16(Unicode):
    """Text in UTF-16, whose content is UTF-8: a whole file with a byte order mark, or a part that is mostly ASCII."""

    kind = 4
    name = "UTF-16"
    orders = ("utf-16-le", "utf-16-be")
    mark = re.compile(rb"(?:[\t\n\r -~]\0){%d,}|(?:\0[\t\n\r -~]){%d,}" % (_LEAST_UNITS, _LEAST_UNITS))

    def find(self, data: bytes) -> Iterator[int]:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            yield 0
        zeros = np.frombuffer(data, np.uint8) == 0
        yield from in_runs(self.mark, data, zeros[1:] != zeros[:-1], 2 * _LEAST_UNITS - 1)

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        marked = start == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff")
        order = int(data[start] in (0, 0xFE))
        count = (len(data) - start) // 2
        units = np.frombuffer(data, "><"[1 - order] + "u2", count, start)
        try:
            text = data[start : start + 2 * (count if marked else _text_units(units))].decode(self.orders[order])
        except UnicodeDecodeError:
            return None
        content, extra = np.frombuffer(text.encode(), np.uint8), bytes([order])
        closed = self.close(content, content, extra)
        if content.size > room.content or closed.tobytes() != data[start : start + closed.size]:
            room.spend(closed.size)
            return None
        return Found(self.kind, start, closed.size, content, None, extra)


def _text_units(units: np.ndarray) -> int:
    """Return how many UTF-16 units from the start are text, with few characters in a row beyond ASCII."""
    end = last = 0  # the end of what was looked at, and of the last character of ASCII
    while end < units.size:
        part = units[end : end + (_PART if end else _FIRST_PART)]
        is_ascii = ((part >= 32) & (part < 127)) | (part == 9) | (part == 10) | (part == 13)
        is_text = is_ascii | ((part >= 0xA0) & (part < 0xD800))
        stop = part.size if is_text.all() else int(is_text.argmin())
        places = end + np.flatnonzero(is_ascii[:stop])
        gaps = np.flatnonzero(np.diff(places, prepend=last - 1) > _GAP)
        if gaps.size:
            return int(places[gaps[0] - 1]) + 1 if gaps[0] else last
        last = int(places[-1]) + 1 if places.size else last
        if stop < part.size or end + stop - last > _GAP:
            break
        end += stop
    return last


class Base64(Wrapper):
    """Base64 in one line or in lines of one length (RFC 4648), also with newlines as JSON escapes them."""

    kind = 5
    name = "base64"
    _LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2}")
    mark = re.compile(rb"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{%d,}" % _LEAST_LINE)
    _DIGITS = table_of(b"+/0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")

    def find(self, data: bytes) -> Iterator[int]:
        return in_runs(self.mark, data, self._DIGITS[np.frombuffer(data, np.uint8)], _LEAST_LINE)

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        first, most = self._LINE.match(data, start), 2 * room.content
        if first is None or len(first[0]) > most:
            return None
        length, newline = len(first[0]) // 4 * 4, b""
        end = start + length
        if length == len(first[0]) and not first[0].endswith(b"="):
            newline = next((mark for mark in _NEWLINES[1:] if data.startswith(mark, end)), b"")
        while newline and data.startswith(newline, end) and end - start <= most:
            line = self._LINE.match(data, end + len(newline))
            if line is None or len(line[0]) > length or len(line[0]) % 4:
                break
            if len(line[0]) < length or line[0].endswith(b"="):
                end = line.end() if _is_canonical(line[0]) else end
                break
            end = line.end()
        digits = data[start:end] if _is_canonical(data[start:end]) else data[start : end - 4]
        if len(digits) < _LEAST_DIGITS or len(digits) > most:
            room.spend(len(digits))
            return None
        content = np.frombuffer(base64.b64decode(digits.replace(newline, b"") if newline else digits), np.uint8)
        number = _NEWLINES.index(newline if len(digits) > length else b"")
        extra = bytes([number]) + (length // 4).to_bytes(4, "little")
        return self.proven(Found(self.kind, start, len(digits), content, None, extra), data, room, len(digits))

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if len(extra) != 5 or extra[0] >= len(_NEWLINES):
            raise impossible()
        digits = np.frombuffer(base64.b64encode(content.data), np.uint8)
        if not extra[0]:
            return digits
        length, newline = 4 * int.from_bytes(extra[1:], "little"), np.frombuffer(_NEWLINES[extra[0]], np.uint8)
        if length == 0:
            raise impossible()
        ended = max(digits.size - 1, 0) // length  # lines with a newline after them
        text = np.empty(digits.size + ended * newline.size, np.uint8)
        lines = text[: ended * (length + newline.size)].reshape(ended, length + newline.size)
        lines[:, :length] = digits[: ended * length].reshape(ended, length)
        lines[:, length:] = newline
        text[lines.size :] = digits[ended * length :]
        return text


def _is_canonical(digits: bytes) -> bool:
    """Return whether the bits after the last byte of base64 digits are zeros, as encoders write them."""
    return base64.b64encode(base64.b64decode(digits[-4:])) == digits[-4:]


class Hexadecimal(Wrapper):
    """Bytes as hexadecimal digits in one case."""

    kind = 6
    name = "hexadecimal"
    mark = re.compile(rb"(?<![0-9A-Fa-f])(?:[0-9a-f]{%d,}|[0-9A-F]{%d,})" % (_LEAST_DIGITS, _LEAST_DIGITS))
    _DIGITS = table_of(b"0123456789ABCDEFabcdef")

    def find(self, data: bytes) -> Iterator[int]:
        return in_runs(self.mark, data, self._DIGITS[np.frombuffer(data, np.uint8)], _LEAST_DIGITS)

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        match = self.mark.match(data, start)
        if match is None or len(match[0]) > 2 * room.content:
            return None
        digits = match[0][: len(match[0]) // 2 * 2]
        is_upper = digits != digits.lower()
        content = np.frombuffer(bytes.fromhex(digits.decode()), np.uint8)
        return Found(self.kind, start, len(digits), content, None, bytes([is_upper]))

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if len(extra) != 1 or extra[0] > 1:
            raise impossible()
        digits = binascii.hexlify(content.data)
        return np.frombuffer(digits.upper() if extra[0] else digits, np.uint8)


class Lines(Wrapper):
    """Lines of text that all end in CR LF, or all in CR, which becomes LF; the last one may have no end."""

    kind = 8
    name = "CR LF"
    _LINE = rb"[^\x00-\x08\x0b\x0e-\x1f\r\n]*+"
    _ENDS = (b"\r\n", b"\r")
    _FIRST = tuple(  # where lines with such an end begin
        re.compile(rb"(?<![^%b])(?:%b%b){%d}" % (before, line, end, _LEAST_LINES))
        for before, line, end in ((b"\n", _LINE, rb"\r\n"), (b"\r", _LINE, rb"\r(?!\n)"))
    )
    _STOPS = (  # the first byte behind them
        re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\r\n](?<!\r\n)(?!(?<=\r)\n)"),
        re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\r\n](?:(?<!\r)|(?=\n))"),
    )

    def find(self, data: bytes) -> Iterator[int]:
        windows, all_ends = data.count(b"\r\n"), data.count(b"\r")
        if windows >= _LEAST_LINES:
            yield from self._find(data, 0)
        if all_ends - windows >= _LEAST_LINES and data.count(b"\n") <= windows:
            yield from self._find(data, 1)

    def _find(self, data: bytes, number: int) -> Iterator[int]:
        first = self._FIRST[number].search(data)
        while first:
            yield first.start()
            first = self._FIRST[number].search(data, self._stop(data, first.end(), number))

    def _stop(self, data: bytes, start: int, number: int) -> int:
        stop = self._STOPS[number].search(data, start)
        return stop.start() if stop else len(data)

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        number = int(not self._FIRST[0].match(data, start))
        first = self._FIRST[number].match(data, start)
        if first is None:
            return None
        size = self._stop(data, first.end(), number) - start
        if size > room.content or size < _LEAST_TEXT:
            return None
        content = data[start : start + size].replace(self._ENDS[number], b"\n")
        if not _is_readable(content):
            return None
        extra = bytes([number]) if number else b""
        return Found(self.kind, start, size, np.frombuffer(content, np.uint8), None, extra)

    def kind_name(self, extra: bytes) -> str:
        return "CR" if extra else self.name

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if extra not in (b"", b"\1"):
            raise impossible()
        return np.frombuffer(content.tobytes().replace(b"\n", self._ENDS[len(extra)]), np.uint8)


def _is_readable(content: bytes) -> bool:
    """Return whether bytes are UTF-8, or nearly all of them ASCII, as those of samples of sound are not."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return bool(np.count_nonzero(np.frombuffer(content, np.uint8) < 128) >= _LEAST_ASCII * len(content))
    return True


def impossible() -> DamagedError:
    """Return the error for an extra or a content that no text has."""
    return DamagedError("what closes a text is impossible: the file is damaged")
