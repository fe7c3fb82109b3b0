"""Wrappers of text with escapes: %XX in addresses and forms, quoted-printable in mails, and \\uXXXX in JSON.

Found is a part of printable ASCII from the first escape to the last one, with few bytes in between.
"""

import io
import re
from abc import abstractmethod
from collections.abc import Iterator

import numpy as np

from squeeze.codecs.parse import escaping
from squeeze.codecs.parse.escaping import Differences, Rule
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.codecs.parse.texts import table_of
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["JsonEscapes", "Percent", "QuotedPrintable"]

_LEAST = 16  # escapes in a wrapper
_MOST_DIFFERENT = 32  # bytes of text for each action that differs from the rule
_FREE = 4  # actions that may differ in any text
_MOST_WIDTH = 1000  # bytes of a line with a soft break
_GAP = 1 << 10  # most bytes between two escapes
_FIRST_LOOK, _LOOK = 1 << 11, 1 << 15  # bytes that are looked at first; _LEAST escapes are in fewer than the second
_LONGEST = 6  # bytes of an escape
_SAMPLE = 1 << 12  # escapes whose digits tell the case of all
_SLOWER = 4  # times as long as reading text: to find its rule, and to write it
_UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.!~*'()"
_UPPER, _PLUS, _TWO, _LAST = 1, 2, 4, 8  # flags; the last one is a number up to 2


_TEXT = table_of(b"\t\n\r" + bytes(range(32, 127)))
_HEXADECIMAL = table_of(b"0123456789ABCDEFabcdef")
_QUOTED = table_of(b"0123456789ABCDEF")


class _Escapes(Wrapper):
    """Text with escapes of one form."""

    form: int
    usual: np.ndarray  # bool [256]: whether a byte is escaped as a rule

    def find(self, data: bytes) -> Iterator[int]:
        if data.count(self.mark.pattern[-1:]) < _LEAST:
            return
        units = np.frombuffer(data, np.uint8)
        for start, _ in self._runs(units):
            yield start

    @abstractmethod
    def places(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where escapes begin in uint8 `units`, and their bytes; all int64."""

    def _runs(self, units: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each part with enough escapes near each other, and text between them."""
        places, sizes = self.places(units)
        if places.size < _LEAST:
            return
        ends = places + sizes
        is_apart = places[1:] - ends[:-1] > _GAP
        begin, end = int(places[0]), int(ends[-1])
        is_other = ~_TEXT[units[begin:end]]
        if self.form == escaping.QUOTED:  # an equals sign is an escape, or not of this text
            is_other |= units[begin:end] == 61
            is_other[places - begin] = False
        others = np.add.reduceat(is_other, places - begin, dtype=np.int64)[:-1]
        cuts = np.flatnonzero(is_apart | (others > 0)) + 1
        for first, last in zip(np.append(0, cuts), np.append(cuts, places.size), strict=True):
            if last - first >= _LEAST:
                yield int(places[first]), int(ends[last - 1])

    def _end(self, units: np.ndarray) -> int:
        """Return the end of the part that begins at the start of uint8 `units`, or 0 without one."""
        size = _FIRST_LOOK
        while True:
            end = next((end for start, end in self._runs(units[:size]) if start == 0), 0)
            if size >= units.size or (end + _GAP + _LONGEST < size if end else size >= _LOOK):
                return end
            size *= 4

    @abstractmethod
    def rules(self, text: np.ndarray) -> Iterator[Rule]:
        """Yield the rules that text, uint8, may follow; all have the same actions."""

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        units = np.frombuffer(data, np.uint8)[start:]
        end = self._end(units)
        if not 0 < end <= 2 * room.content:
            return None
        rules = list(self.rules(units[:end]))
        content, actions, used = escaping.read(units[:end], rules[0])
        escaped, most = self._escaped(content, actions), _FREE + used // _MOST_DIFFERENT
        found = [(rule, escaping.compare(content, actions, rule, escaped, most)) for rule in rules]
        possible = [(rule, differences) for rule, differences in found if differences]
        if not possible or content.size > room.content:
            room.spend(_SLOWER * used)
            return None
        extra = self._to_bytes(*min(possible, key=lambda found: found[1].gaps.size), escaped)
        return self.proven(Found(self.kind, start, used, content, None, extra), data, room, _SLOWER * used)

    def _escaped(self, content: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return bool [256]: which bytes are escaped more often than not, as usual if they do not occur."""
        counts = np.bincount(content, minlength=256)
        often = np.bincount(content[(actions & escaping.ESCAPED) > 0], minlength=256)
        escaped: np.ndarray = np.where(counts == 0, self.usual, 2 * often > counts)
        if self.form == escaping.JSON:
            escaped[128:] = True
        return escaped

    def _to_bytes(self, rule: Rule, differences: Differences, escaped: np.ndarray) -> bytes:
        """Return what `_read` reads."""
        others = np.flatnonzero(escaped != self.usual).tolist()
        flags = rule.upper * _UPPER | rule.plus * _PLUS | rule.two * _TWO | rule.last * _LAST
        numbers = (gap << 2 | action for gap, action in zip(*(part.tolist() for part in differences), strict=True))
        written = bytes([flags]) + varint(rule.width) + varint(len(others)) + bytes(others)
        return written + b"".join(map(varint, numbers))

    def _read(self, extra: bytes) -> tuple[Rule, np.ndarray, Differences]:
        """Read a rule, which bytes it escapes, and the differences from it.

        Raises:
            DamagedError: if they are impossible.
        """
        file = io.BytesIO(extra)
        flags, width, count = read_exactly(file, 1)[0], read_varint(file)[0], read_varint(file)[0]
        last = flags // _LAST
        if last > escaping.ALL_END or width > _MOST_WIDTH or count > 256:
            raise _impossible()
        escaped = self.usual.copy()
        escaped[list(read_exactly(file, count))] ^= True
        numbers = list[int]()
        while file.tell() < len(extra):
            numbers.append(min(read_varint(file)[0], 1 << 40))
        found = np.array(numbers, np.int64)
        rule = Rule(self.form, flags & 1, flags >> 1 & 1, flags >> 2 & 1, width, last)
        return rule, escaped, Differences(found >> 2, found & 3)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        text = escaping.write(content, *self._read(extra))
        if text is None:
            raise _impossible()
        return text

    def _is_upper(self, text: np.ndarray, first: int, last: int) -> int:
        """Return whether the digits at `first` to `last` of most escapes are upper case."""
        places = self.places(text)[0][:_SAMPLE]
        digits = text[places[:, None] + np.arange(first, last + 1)]
        return int(np.count_nonzero((digits > 64) & (digits < 71)) >= np.count_nonzero(digits > 96))


class Percent(_Escapes):
    """Bytes as %XX (RFC 3986), also with + for a space as in forms."""

    kind = 11
    name = "percent-encoding"
    mark = re.compile(rb"%")
    form = escaping.PERCENT
    usual = ~table_of(_UNRESERVED)

    def places(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places = np.flatnonzero(units[:-2] == 37)
        found = places[_HEXADECIMAL[units[places + 1]] & _HEXADECIMAL[units[places + 2]]]
        return found, np.full(found.size, 3)

    def rules(self, text: np.ndarray) -> Iterator[Rule]:
        plus = int((text == 43).any() and not (text == 32).any())
        yield Rule(self.form, self._is_upper(text, 1, 2), plus)


class QuotedPrintable(_Escapes):
    """Text of mails with escapes as =XX, and lines that are cut by soft breaks."""

    kind = 12
    name = "quoted-printable"
    mark = re.compile(rb"=")
    form = escaping.QUOTED
    usual = ~table_of(bytes(set(range(32, 127)) - {61}) + b"\t\n\r")

    def places(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places = np.flatnonzero(units[:-2] == 61)
        first, second = units[places + 1], units[places + 2]
        is_byte = _QUOTED[first] & _QUOTED[second]
        is_long = (first == 13) & (second == 10)
        is_any = is_byte | is_long | (first == 10)
        return places[is_any], np.where(first == 10, 2, 3)[is_any]

    def rules(self, text: np.ndarray) -> Iterator[Rule]:
        places, _ = self.places(text)
        breaks = places[text[places + 1] < 32]
        two = int(breaks.size > 0 and text[breaks[0] + 1] == 13)
        if not breaks.size:
            yield Rule(self.form, 1)
            return
        starts = np.flatnonzero(text == 10) + 1
        before = np.searchsorted(starts, breaks, "right") - 1
        widths = (breaks - np.where(before < 0, 0, starts[before]) + 1)[1:]
        widths = widths[widths <= _MOST_WIDTH]
        tried = {int(widths.max(initial=1)), int(np.bincount(widths, minlength=2).argmax())}
        for width in sorted(tried, reverse=True):
            for last in range(escaping.ALL_END + 1):
                yield Rule(self.form, 1, 0, two, width, last)


class JsonEscapes(_Escapes):
    """Characters as \\uXXXX, as JSON and properties files of Java have them; the content has them in UTF-8."""

    kind = 13
    name = "\\u escapes"
    mark = re.compile(rb"\\")
    form = escaping.JSON
    usual = np.arange(256) >= 128

    def places(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places = np.flatnonzero((units[:-5] == 92) & (units[1:-4] == 117))
        for k in range(2, 6):
            places = places[_HEXADECIMAL[units[places + k]]]
        return places, np.full(places.size, 6)

    def rules(self, text: np.ndarray) -> Iterator[Rule]:
        yield Rule(self.form, self._is_upper(text, 2, 5))

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        try:
            content.tobytes().decode()
        except UnicodeDecodeError:
            raise _impossible() from None
        return super().close(content, stream, extra)


def _impossible() -> DamagedError:
    return DamagedError("what closes a text with escapes is impossible: the file is damaged")
