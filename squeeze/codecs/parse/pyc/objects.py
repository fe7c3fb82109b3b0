"""The objects in a file of byte code, as Python's module marshal writes them (versions 2 to 5, Python/marshal.c).

One walk serves both directions: a port reads the parts of an object from one side, and writes them to the other.
"""

from typing import Protocol

from squeeze.errors import DamagedError

__all__ = ["BYTES", "CODE", "HEADER", "KINDS", "LINES", "PLACES", "STRINGS", "TEXTS", "Port", "walk"]

HEADER = 16  # bytes before the first object
# What bytes are: instructions, tables of lines or exceptions, kinds of variables, others, and places in the source.
CODE, LINES, KINDS, TEXTS, PLACES = range(5)
STRINGS = b"zZaAtu"  # types of strings, the first two with a length of one byte
BYTES = b"s"[0]
_NONE, _SMALL_TUPLE, _DICTIONARY, _CODE, _LONG, _SLICE = b"0"[0], b")"[0], b"{"[0], b"c"[0], b"l"[0], b":"[0]
_ALONE, _NUMBERS, _LISTS = b"0NFTS.", b"ir", b"([<>"
_FIXED = {b"I"[0]: 8, b"g"[0]: 8, b"y"[0]: 16}
_DEEPEST = 100
# By the least number that a file begins with: the numbers of a code object, the objects before its first line, and
# those after it. An object is None, or what its bytes are.
_LAYOUTS = (
    (3450, 5, (CODE, None, None, None, KINDS, None, None, None), (PLACES, LINES)),  # from Python 3.11 on
    (3411, 6, (CODE, *(None,) * 7), (LINES,)),  # from 3.8 on
    (3390, 5, (CODE, *(None,) * 7), (LINES,)),  # 3.7
)


class Port(Protocol):
    """Moves the parts of objects in one direction, and returns what the walk must know of them."""

    def kind(self) -> int:
        """Move the type of an object, without its flag, and if it is a string, all of it."""

    def byte(self) -> int:
        """Move a byte."""

    def number(self) -> int:
        """Move a number of 32 bits."""

    def line(self) -> None:
        """Move the first line of a code object."""

    def raw(self, count: int) -> None:
        """Move some bytes."""

    def bytes(self, what: int) -> None:
        """Move the length and the bytes of bytes."""


def walk(port: Port, magic: int) -> None:
    """Move the object of a file that begins with a number.

    Raises:
        DamagedError: if it is not one that this walk knows.
    """
    layout = next((layout for layout in _LAYOUTS if layout[0] <= magic), None)
    if layout is None:
        raise _unknown()
    _Walk(port, *layout[1:]).object(None, 0)


class _Walk:
    """A walk over objects whose code objects have one layout."""

    def __init__(self, port: Port, numbers: int, before: tuple[int | None, ...], after: tuple[int | None, ...]):
        self._port, self._numbers, self._before, self._after = port, numbers, before, after

    def object(self, what: int | None, depth: int) -> int:
        """Move an object, whose bytes are what a code object says, and return its type."""
        port = self._port
        kind = port.kind()
        if kind in _ALONE or kind in STRINGS:
            return kind
        if depth > _DEEPEST:
            raise _unknown()
        if kind in _NUMBERS:
            port.number()
        elif kind in _FIXED:
            port.raw(_FIXED[kind])
        elif kind == BYTES:
            port.bytes(TEXTS if what is None else what)
        elif kind == _LONG:
            port.raw(2 * abs(port.number()))
        elif kind == _CODE:
            self._code(depth + 1)
        elif kind == _DICTIONARY:
            while self.object(None, depth + 1) != _NONE:
                self.object(None, depth + 1)
        else:
            for _ in range(self._count(kind)):
                self.object(None, depth + 1)
        return kind

    def _count(self, kind: int) -> int:
        """Return the number of objects in a list."""
        if kind == _SLICE:
            return 3
        if kind != _SMALL_TUPLE and kind not in _LISTS:
            raise _unknown()
        return self._port.byte() if kind == _SMALL_TUPLE else self._port.number()

    def _code(self, depth: int) -> None:
        for _ in range(self._numbers):
            self._port.number()
        for what in self._before:
            self.object(what, depth)
        self._port.line()
        for what in self._after:
            self.object(what, depth)


def _unknown() -> DamagedError:
    return DamagedError("the objects of a file of byte code are impossible: the file is damaged")
