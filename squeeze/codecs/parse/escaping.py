"""Reading and writing text in which bytes are escaped: %XX, quoted-printable (RFC 2045), and \\uXXXX in JSON.

Each byte of the content has an action: 1 if it is escaped, else 0, and 2 more if a soft line break is before it.
In JSON each character has one. A rule expects actions, and what differs from it is noted.
"""

from typing import Any, NamedTuple

import numpy as np

from squeeze.numerics.bitmodels import layout
from squeeze.numerics.jit import inline, kernel, part

__all__ = ["JSON", "PERCENT", "QUOTED", "Differences", "Rule", "compare", "read", "write"]

PERCENT, QUOTED, JSON = range(3)
ESCAPED, BREAK = 1, 2  # the bits of an action
_MARKS = b"%=\\"
LITERALS_END, ALL_END = 1, 2  # what may take the last column of a line: literals, or escapes, too


class Rule(NamedTuple):
    """The rule by which bytes are escaped.

    Attributes:
        form: PERCENT, QUOTED or JSON.
        upper: whether hexadecimal digits are upper case, 0 or 1.
        plus: whether a literal space is written as a plus sign.
        two: whether a soft break has two bytes after its mark: CR LF, else LF.
        width: bytes of a line with its soft break, or 0 without such.
        last: what may take the last column where the line ends by itself: 0, LITERALS_END or ALL_END.
    """

    form: int
    upper: int = 0
    plus: int = 0
    two: int = 0
    width: int = 0
    last: int = 0

    @property
    def numbers(self) -> np.ndarray:
        """The rule as kernels read it, int64 [7], with the mark of an escape."""
        return np.array([*self, _MARKS[self.form]], np.int64)


class Differences(NamedTuple):
    """Actions that a rule does not expect: the bytes without one before each, int64 [n], and the actions, int64 [n]."""

    gaps: np.ndarray
    actions: np.ndarray


_FORM, _UPPER, _PLUS, _TWO, _WIDTH, _LAST, _MARK = range(7)  # of the numbers of a rule
# The place in the content, the column, differences that were passed, the end of the last, and bytes of text.
_STATE = layout.fields("at column number before written")


class _Walker(NamedTuple):
    """The arrays of a walk over a content, and its state."""

    state: Any  # a record of _STATE
    content: np.ndarray  # uint8
    rule: np.ndarray  # its numbers
    escaped: np.ndarray  # bool [256]
    actions: np.ndarray  # uint8 [content], if they are compared
    gaps: np.ndarray  # int64, of differences, which are written or read
    others: np.ndarray  # int64, their actions
    text: np.ndarray  # uint8, of its size or empty


def read(text: np.ndarray, rule: Rule) -> tuple[np.ndarray, np.ndarray, int]:
    """Read text up to its end, or to a second soft break in a row.

    Args:
        text: uint8.
        rule: its form and flags.

    Returns:
        the content, uint8; the action of each byte, uint8; and the bytes of text that were read.
    """
    content, actions = np.zeros((2, text.size), np.uint8)
    size, used = _read(text, rule.numbers, content, actions)
    return content[:size], actions[:size], used


def compare(content: np.ndarray, actions: np.ndarray, rule: Rule, escaped: np.ndarray, most: int) -> Differences | None:
    """Return where the actions for a content are not those that a rule expects, or None if more than `most` are not.

    Args:
        content: uint8.
        actions: uint8, one for each byte of the content.
        rule: the rule.
        escaped: bool [256], which bytes it escapes.
        most: differences that there may be.
    """
    gaps, others = np.zeros((2, most), np.int64)
    walker = _Walker(
        layout.record(_STATE), content, rule.numbers, escaped, actions, gaps, others, np.zeros(0, np.uint8)
    )
    if not _walk(walker, True):
        return None
    count = int(walker.state["number"])
    return Differences(gaps[:count], others[:count])


def write(content: np.ndarray, rule: Rule, escaped: np.ndarray, differences: Differences) -> np.ndarray | None:
    """Return the text of a content, uint8, or None if the differences do not belong to it.

    Args:
        content: uint8; valid UTF-8 in JSON.
        rule: the rule.
        escaped: bool [256], which bytes it escapes.
        differences: from what it expects.
    """
    text = nothing = np.zeros(0, np.uint8)
    for _ in range(2):  # the first time the text is measured
        state = layout.record(_STATE)
        if not _walk(_Walker(state, content, rule.numbers, escaped, nothing, *differences, text), False):
            return None
        text = np.zeros(int(state["written"]), np.uint8) if text.size == 0 else text
    return text if state["number"] == differences.gaps.size else None


@inline
def _digit(byte, upper):
    """Return the value of a hexadecimal digit in one case, or a large number."""
    value = np.int64(byte)
    if 48 <= value <= 57:
        return value - 48
    first = 65 if upper else 97
    return value - first + 10 if first <= value <= first + 5 else 1 << 20


@inline
def _number(text, at, digits, upper):
    """Return the number of some hexadecimal digits, or a large number."""
    if at + digits > text.size:
        return np.int64(1 << 20)
    value = np.int64(0)
    for k in range(digits):
        value = value * 16 + _digit(text[at + k], upper)
    return value


@inline
def _unit(text, at, r):
    """Return the UTF-16 unit of an escape in JSON, or a large number."""
    if at + 6 > text.size or text[at] != r[_MARK] or text[at + 1] != 117:  # u
        return np.int64(1 << 20)
    return _number(text, at + 2, 4, r[_UPPER])


@part
def _character(text, at, r):
    """Return the character of an escape in JSON and its bytes in the text; 0 bytes if it stays as it is."""
    first = _unit(text, at, r)
    if 0xD800 <= first < 0xDC00:
        second = _unit(text, at + 6, r)
        if 0xDC00 <= second < 0xE000:
            return 0x10000 + ((first - 0xD800) << 10) + second - 0xDC00, 12
        return np.int64(0), 0
    if first < 32 or first > 0xFFFF or 0xD800 <= first < 0xE000 or first == 34 or first == 92 or first == 127:
        return np.int64(0), 0
    return first, 6


@inline
def _put(content, at, value):
    """Write a character in UTF-8, and return the place after it."""
    if value < 0x80:
        content[at] = value
        return at + 1
    size = 2 if value < 0x800 else 3 if value < 0x10000 else 4
    content[at] = (0xF00 >> size & 0xFF) | value >> 6 * (size - 1)
    for k in range(1, size):
        content[at + k] = 0x80 | (value >> 6 * (size - 1 - k) & 63)
    return at + size


@inline
def _is_soft_break(text, at, r):
    """Return whether a soft line break is at a place of text."""
    end = at + 1 + r[_TWO]
    return r[_FORM] == QUOTED and end < text.size and text[end] == 10 and (r[_TWO] == 0 or text[at + 1] == 13)


@kernel
def _read(text, r, content, actions):
    """Write the content of text and its actions; return the bytes of both that are complete."""
    at, size, broken = 0, 0, 0
    while at < text.size:
        byte = text[at]
        if byte == r[_MARK]:
            if _is_soft_break(text, at, r):
                if broken:
                    return size, at - 2 - r[_TWO]
                broken = BREAK
                at += 2 + r[_TWO]
                continue
            if r[_FORM] == JSON:
                value, used = _character(text, at, r)
            else:
                value, used = _number(text, at + 1, 2, r[_UPPER]), 3
            if used and value < 1 << 20 and (r[_FORM] == JSON or value < 256):
                end = _put(content, size, value) if r[_FORM] == JSON else size + 1
                if r[_FORM] != JSON:
                    content[size] = value
                actions[size], broken = ESCAPED | broken, 0
                size, at = end, at + used
                continue
        content[size] = 32 if byte == 43 and r[_PLUS] else byte
        actions[size], broken = broken, 0
        size, at = size + 1, at + 1
    return size, text.size - (2 + r[_TWO] if broken else 0)


@inline
def _ends(content, at):
    """Return whether a line ends after a place of the content."""
    return at + 1 >= content.size or content[at + 1] == 10 or content[at + 1] == 13


@inline
def _is_newline(byte):
    return byte == 10 or byte == 13


@inline
def _expected(w):
    """Return the action that a rule expects for the next byte."""
    s, content, r = w.state, w.content, w.rule
    byte = content[s.at]
    action = np.int64(w.escaped[byte])
    if r[_FORM] != QUOTED:
        return action
    ends = _ends(content, s.at)
    if ends and (byte == 32 or byte == 9):
        action = np.int64(ESCAPED)
    if r[_WIDTH] and (action or not _is_newline(byte)):
        may_end = ends and r[_LAST] > action
        if s.column + (3 if action else 1) > r[_WIDTH] - (0 if may_end else 1):
            action |= BREAK
    return action


@inline
def _next_action(w, expected, comparing):
    """Return the action for the next byte, which is noted if it is not the expected one; or -1."""
    s, gaps, others = w.state, w.gaps, w.others
    if comparing:
        action = np.int64(w.actions[s.at])
        if action == expected:
            return action
        if s.number == gaps.size:
            return np.int64(-1)
        gaps[s.number], others[s.number] = s.at - s.before, action
    else:
        if s.number == gaps.size or gaps[s.number] != s.at - s.before:
            return expected
        action = others[s.number]
    s.number, s.before = s.number + 1, s.at + 1
    return action


@inline
def _write_digits(text, at, value, digits, upper):
    for k in range(digits):
        digit = value >> 4 * (digits - 1 - k) & 15
        text[at + k] = 48 + digit if digit < 10 else (55 if upper else 87) + digit


@inline
def _character_at(content, at):
    """Return the character at a place of valid UTF-8, and its bytes."""
    byte = np.int64(content[at])
    if byte < 0x80:
        return byte, 1
    size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
    value = byte & (0x7F >> size)
    for k in range(1, size):
        value = value << 6 | np.int64(content[at + k] & 63)
    return value, size


@inline
def _write_escape(text, at, value, r):
    """Write an escape if there is room for it, and return its bytes."""
    if r[_FORM] != JSON:
        if text.size:
            text[at] = r[_MARK]
            _write_digits(text, at + 1, value, 2, r[_UPPER])
        return 3
    count = 2 if value >= 0x10000 else 1
    if text.size:
        for k in range(count):
            unit = value
            if count == 2:
                over = value - 0x10000
                unit = 0xDC00 | over & 0x3FF if k else 0xD800 | over >> 10
            text[at + 6 * k], text[at + 6 * k + 1] = r[_MARK], 117
            _write_digits(text, at + 6 * k + 2, unit, 4, r[_UPPER])
    return 6 * count


@inline
def _write_break(text, at, r):
    """Write a soft line break if there is room for it, and return its bytes."""
    if text.size:
        text[at] = r[_MARK]
        if r[_TWO]:
            text[at + 1] = 13
        text[at + 1 + r[_TWO]] = 10
    return 2 + r[_TWO]


@kernel
def _walk(w, comparing):
    """Note where actions differ from those of a rule, or write text; without room for text, it is only measured.

    Args:
        w: The walker.
        comparing: Whether actions are compared.

    Returns:
        Whether the differences are possible, and there is room for all.
    """
    s, content, r, text = w.state, w.content, w.rule, w.text
    while s.at < content.size:
        action = _next_action(w, _expected(w), comparing)
        if action < 0 or action > (ESCAPED | BREAK if r[_FORM] == QUOTED else ESCAPED):
            return False
        if action & BREAK:
            s.column = 0
            if not comparing:
                s.written += _write_break(text, s.written, r)
        byte, size = np.int64(content[s.at]), 1
        if r[_FORM] == JSON and byte >= 128 and action == 0:
            return False
        if action & ESCAPED:
            if r[_FORM] == JSON:
                byte, size = _character_at(content, s.at)
            s.column += 3
            if not comparing:
                s.written += _write_escape(text, s.written, byte, r)
        else:
            s.column = 0 if byte == 10 else s.column + (byte != 13)
            if not comparing:
                if text.size:
                    text[s.written] = 43 if byte == 32 and r[_PLUS] else byte
                s.written += 1
        s.at += size
    return True
