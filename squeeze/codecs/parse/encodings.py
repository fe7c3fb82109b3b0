"""Text in other encodings than UTF-8, which becomes UTF-8: UTF-32, and code pages with a byte for each character."""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache

import numpy as np

from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.codecs.parse.texts import Unicode, impossible, in_runs

__all__ = ["PAGES", "CodePage", "Utf32", "table"]

_LEAST_UNITS = 32  # characters of the shortest text in UTF-32 without a byte order mark
_MARKS = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_END = 0x110000  # of the characters that there are

PAGES = ("cp1252", "cp1251", "cp1250", "iso8859-2", "koi8-r", "cp1253", "cp866", "cp437", "mac-roman")
_LEAST_TEXT = 1 << 8  # bytes of the shortest text in a code page
_SAMPLE, _LOOK = 1 << 16, 1 << 12  # bytes that choose the page, and that are looked at first
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x19\x1b-\x1f\x7f]")
_LEAST_SCORE = 0.25  # points for each byte beyond ASCII, of a text that is certain to be of a page
_OTHER, _TYPOGRAPHIC, _UNLIKELY, _LOWER, _UPPER = 0, 1, 2, 3, 4  # classes of bytes; letters of other scripts follow
_SCRIPTS = "LATIN", "CYRILLIC", "GREEK"
_PUNCTUATION = "\N{NO-BREAK SPACE}‘’“”„‚–—…•«»°§©®™€£·№"  # noqa: RUF001


class Utf32(Unicode):
    """Text in UTF-32: a whole file with a byte order mark, or a part that begins with ASCII."""

    kind = 18
    name = "UTF-32"
    orders = ("utf-32-le", "utf-32-be")
    mark = re.compile(rb"(?:[\t\n\r -~]\0\0\0){%d,}|(?:\0\0\0[\t\n\r -~]){%d,}" % (_LEAST_UNITS, _LEAST_UNITS))

    def find(self, data: bytes) -> Iterator[int]:
        if data[:4] in _MARKS:
            yield 0
        zeros = np.frombuffer(data, np.uint8) == 0
        triples = zeros[:-2] & zeros[1:-1] & zeros[2:]
        can_be = np.convolve(triples, np.ones(5, np.int8))[1:] > 0 if triples.size else triples  # near three zeros
        yield from in_runs(self.mark, data, can_be, 4 * _LEAST_UNITS)

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        order = int(data[start] == 0)
        units = np.frombuffer(data, "<>"[order] + "u4", (len(data) - start) // 4, start)
        is_text = (units < _END) & ((units < 0xD800) | (units >= 0xE000)) & (units >= 9)
        count = units.size if is_text.all() else int(is_text.argmin())
        if not (data[start : start + 4] in _MARKS and start == 0) and not _has_words(units[: 2 * _LEAST_UNITS]):
            room.spend(0)
            return None
        content = np.frombuffer(units[:count].tobytes().decode(self.orders[order]).encode(), np.uint8)
        if content.size > room.content or count < _LEAST_UNITS:
            room.spend(4 * count)
            return None
        return Found(self.kind, start, 4 * count, content, None, bytes([order]))


def _has_words(units: np.ndarray) -> bool:
    """Return whether units are mostly letters of ASCII, with spaces between them, as small numbers are not."""
    letters = (units | 32) - ord("a") < 26  # others wrap around
    return bool(np.count_nonzero(letters) >= units.size // 2 and (units == ord(" ")).any())


@cache
def table(page: str) -> str:
    """Return the characters of the bytes of a code page; bytes without one stand for the control of their number."""
    found = (bytes([byte]).decode(page, "replace") for byte in range(256))
    return "".join(chr(byte) if char == "\N{REPLACEMENT CHARACTER}" else char for byte, char in enumerate(found))


@cache
def _classes(page: str) -> np.ndarray:
    """Return the classes of the bytes of a page: case and script of letters, and what is likely in a text; [256]."""
    return np.array([_class_of(char) for char in table(page)], np.int64)


def _class_of(char: str) -> int:
    name = unicodedata.name(char, "")
    script = next((number for number, script in enumerate(_SCRIPTS) if name.startswith(script)), None)
    if script is not None and char.isalpha():
        return (_UPPER if char.isupper() else _LOWER) + 2 * script
    return _OTHER if char < "\x7f" else _TYPOGRAPHIC if char in _PUNCTUATION else _UNLIKELY


def _score(text: np.ndarray, page: str) -> int:
    """Return points for the bytes beyond ASCII in uint8 `text`: for letters in words, and against what is unlikely."""
    classes = _classes(page)[text]
    before, after = classes[:-1], classes[1:]
    near = (text[:-1] >= 128) | (text[1:] >= 128)
    both = near & (before >= _LOWER) & (after >= _LOWER)
    same = both & ((before - _LOWER) // 2 == (after - _LOWER) // 2)
    falls = same & ((before - _LOWER) % 2 == 0) & ((after - _LOWER) % 2 == 1)  # a small letter, and a capital
    is_high = text >= 128
    points = np.count_nonzero(same) - 4 * np.count_nonzero(falls) - 2 * np.count_nonzero(both & ~same)
    points += np.count_nonzero(is_high & (classes == _TYPOGRAPHIC)) - 3 * np.count_nonzero(
        is_high & (classes == _UNLIKELY)
    )
    return int(points)


class CodePage(Wrapper):
    """A whole text in a code page, whose content is UTF-8."""

    kind = 19
    name = "code page"
    mark = re.compile(rb"")

    def find(self, data: bytes) -> Iterator[int]:
        if len(data) < _LEAST_TEXT or _CONTROLS.search(data, 0, _LOOK) or data.isascii() or _CONTROLS.search(data):
            return
        try:
            data.decode()
        except UnicodeDecodeError:
            yield 0

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        units = np.frombuffer(data, np.uint8)
        high = np.flatnonzero(units >= 128)
        begin = max(min(int(high[high.size // 2]) - _SAMPLE // 2, units.size - _SAMPLE), 0)
        sample = units[begin : begin + _SAMPLE]
        scores = [_score(sample, page) for page in PAGES]
        number = int(np.argmax(scores))
        size = len(data) + 2 * high.size  # of the content, or more
        if scores[number] < _LEAST_SCORE * np.count_nonzero(sample >= 128) or size > room.content:
            room.spend(len(PAGES) * sample.size)
            return None
        text = data.decode("latin-1").translate(dict(enumerate(table(PAGES[number]))))
        return Found(self.kind, 0, len(data), np.frombuffer(text.encode(), np.uint8), None, bytes([number]))

    def kind_name(self, extra: bytes) -> str:
        return f"{PAGES[extra[0]]} text" if len(extra) == 1 and extra[0] < len(PAGES) else self.name

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if len(extra) != 1 or extra[0] >= len(PAGES):
            raise impossible()
        bytes_of = {ord(char): byte for byte, char in enumerate(table(PAGES[extra[0]]))}
        try:
            text = content.tobytes().decode()
            if not set(map(ord, set(text))) <= bytes_of.keys():
                raise impossible()
            return np.frombuffer(text.translate(bytes_of).encode("latin-1"), np.uint8)
        except UnicodeError:
            raise impossible() from None
