"""Wrappers of text and bytes as other text: UTF-16, base64 and hexadecimal digits."""

import base64
import binascii
import re
from collections.abc import Iterator

import numpy as np

from squeeze.codecs.parse.protocol import Found
from squeeze.errors import DamagedError

__all__ = ["Base64", "Hexadecimal", "Utf16"]

_NEWLINES = (b"", b"\n", b"\r\n", b"\\n")
_LEAST_DIGITS = 128  # base64 or hexadecimal digits of the shortest wrapper
_GAP = 16  # most characters beyond ASCII in a row, in UTF-16 without a byte order mark


class Utf16:
    """Text in UTF-16, whose content is UTF-8: a whole file with a byte order mark, or a part that is mostly ASCII."""

    kind = 4
    name = "UTF-16"
    _ORDERS = ("utf-16-le", "utf-16-be")
    _ASCII = re.compile(rb"(?:[\t\n\r -~]\0){16,}|(?:\0[\t\n\r -~]){16,}")

    def find(self, data: bytes) -> Iterator[int]:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            yield 0
        for match in self._ASCII.finditer(data):
            yield match.start()

    def open(self, data: np.ndarray, start: int, most: int) -> Found | None:
        marked = start == 0 and data[:2].tobytes() in (b"\xff\xfe", b"\xfe\xff")
        order = int(data[start] == 0 or data[start] == 0xFE)
        units = data[start : start + (data.size - start) // 2 * 2].view("><"[1 - order] + "u2")
        count = units.size if marked else _text_units(units)
        try:
            text = data[start : start + 2 * count].tobytes().decode(self._ORDERS[order])
        except UnicodeDecodeError:
            return None
        content = np.frombuffer(text.encode(), np.uint8)
        return Found(self.kind, start, 2 * count, content, None, bytes([order])) if content.size <= most else None

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if len(extra) != 1 or extra[0] > 1:
            raise _impossible()
        try:
            return np.frombuffer(content.tobytes().decode().encode(self._ORDERS[extra[0]]), np.uint8)
        except UnicodeError:
            raise _impossible() from None


def _text_units(units: np.ndarray) -> int:
    """Return how many UTF-16 units from the start are text, with few characters in a row beyond ASCII."""
    is_ascii = ((units >= 32) & (units < 127)) | (units == 9) | (units == 10) | (units == 13)
    is_text = is_ascii | ((units >= 0xA0) & (units < 0xD800))
    ends = np.flatnonzero(~is_text)
    end = int(ends[0]) if ends.size else units.size
    places = np.flatnonzero(is_ascii[:end])
    gaps = np.flatnonzero(np.diff(places) > _GAP)
    return int(places[gaps[0]] if gaps.size else places[-1]) + 1 if places.size else 0


class Base64:
    """Base64 in one line or in lines of one length (RFC 4648), also with newlines as JSON escapes them."""

    kind = 5
    name = "base64"
    _LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2}")
    _START = re.compile(rb"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{60,}")

    def find(self, data: bytes) -> Iterator[int]:
        for match in self._START.finditer(data):
            yield match.start()

    def open(self, data: np.ndarray, start: int, most: int) -> Found | None:
        raw = data[start : start + 2 * most].tobytes()
        first = self._LINE.match(raw)
        if first is None:
            return None
        length, newline = len(first[0]) // 4 * 4, b""
        end = length
        if length == len(first[0]) and not first[0].endswith(b"="):
            newline = next((mark for mark in _NEWLINES[1:] if raw.startswith(mark, length)), b"")
        while newline and raw.startswith(newline, end):
            line = self._LINE.match(raw, end + len(newline))
            if line is None or len(line[0]) > length or len(line[0]) % 4:
                break
            end = line.end()
            if len(line[0]) < length or line[0].endswith(b"="):
                break
        if end < _LEAST_DIGITS:
            return None
        try:
            content = np.frombuffer(
                base64.b64decode(raw[:end].replace(newline, b"") if newline else raw[:end]), np.uint8
            )
        except binascii.Error:
            return None
        extra = bytes([_NEWLINES.index(newline if end > length else b"")]) + (length // 4).to_bytes(4, "little")
        same = end <= 2 * most and self.close(content, content, extra).tobytes() == raw[:end]
        return Found(self.kind, start, end, content, None, extra) if same else None

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if len(extra) != 5 or extra[0] >= len(_NEWLINES):
            raise _impossible()
        digits, length = base64.b64encode(content.data), 4 * int.from_bytes(extra[1:], "little")
        if extra[0]:
            if length == 0:
                raise _impossible()
            lines = (digits[at : at + length] for at in range(0, len(digits), length))
            digits = _NEWLINES[extra[0]].join(lines)
        return np.frombuffer(digits, np.uint8)


class Hexadecimal:
    """Bytes as hexadecimal digits in one case."""

    kind = 6
    name = "hexadecimal"
    _START = re.compile(rb"(?<![0-9A-Fa-f])(?:[0-9a-f]{%d,}|[0-9A-F]{%d,})" % (_LEAST_DIGITS, _LEAST_DIGITS))

    def find(self, data: bytes) -> Iterator[int]:
        for match in self._START.finditer(data):
            yield match.start()

    def open(self, data: np.ndarray, start: int, most: int) -> Found | None:
        match = self._START.match(data[start : start + 2 * most].tobytes())
        if match is None:
            return None
        digits = match[0][: len(match[0]) // 2 * 2]
        is_upper = digits != digits.lower()
        content = np.frombuffer(bytes.fromhex(digits.decode()), np.uint8)
        return Found(self.kind, start, len(digits), content, None, bytes([is_upper]))

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if len(extra) != 1 or extra[0] > 1:
            raise _impossible()
        digits = binascii.hexlify(content.data)
        return np.frombuffer(digits.upper() if extra[0] else digits, np.uint8)


def _impossible() -> DamagedError:
    return DamagedError("what closes a text is impossible: the file is damaged")
