"""The parts of a class file of Java (The Java Virtual Machine Specification, chapter 4).

One walk serves both directions: a port reads the parts from one side, and writes them to the other.
"""

from typing import Protocol

from squeeze.errors import DamagedError

__all__ = ["CODE", "MAGIC", "REST", "TEXT", "Port", "impossible", "walk"]

MAGIC = b"\xca\xfe\xba\xbe"
REST, CODE = range(2)  # where bytes are
TEXT = 1  # tag of a constant
# By the tag of a constant: the bytes before its references to others, the number of these, and the numbers it has.
_FORMS = {
    **dict.fromkeys((7, 8, 16, 19, 20), (0, 1, 1)),
    **dict.fromkeys((9, 10, 11, 12), (0, 2, 1)),
    **dict.fromkeys((17, 18), (2, 1, 1)),
    **dict.fromkeys((3, 4), (4, 0, 1)),
    **dict.fromkeys((5, 6), (8, 0, 2)),
    15: (1, 1, 1),
}
_DEEPEST = 4  # attributes in attributes


class Port(Protocol):
    """Moves the parts of a class file in one direction, and returns what the walk must know of them."""

    def tag(self) -> int:
        """Move the tag of a constant."""

    def text(self) -> bytes:
        """Move a constant that is a text."""

    def reference(self, number: int) -> None:
        """Move a reference of constant `number` to another one."""

    def constant(self, size: int) -> None:
        """Move other bytes of a constant."""

    def number(self, size: int) -> int:
        """Move a number of `size` bytes."""

    def take(self, size: int, what: int) -> None:
        """Move bytes of a kind."""

    def lines(self, count: int) -> None:
        """Move the rows of a table of line numbers."""

    def end_at(self, size: int) -> int:
        """Return the place `size` bytes on, or -1 if it does not matter."""

    def check(self, end: int) -> None:
        """Check that a part ends at a place that `end_at` returned."""


def walk(port: Port) -> None:
    """Move a class file from its first byte to its last.

    Raises:
        DamagedError: if it is not one.
    """
    port.take(len(MAGIC) + 4, REST)
    texts, number, count = dict[int, bytes](), 1, port.number(2)
    while number < count:
        tag = port.tag()
        if tag == TEXT:
            texts[number] = port.text()
            number += 1
            continue
        if tag not in _FORMS:
            raise impossible()
        size, references, numbers = _FORMS[tag]
        port.constant(size)
        for _ in range(references):
            port.reference(number)
        number += numbers
    port.take(6, REST)
    port.take(2 * port.number(2), REST)
    for _ in range(2):  # fields, methods
        for _ in range(port.number(2)):
            port.take(6, REST)
            _attributes(port, texts, 0)
    _attributes(port, texts, 0)


def _attributes(port: Port, texts: dict[int, bytes], depth: int) -> None:
    if depth > _DEEPEST:
        raise impossible()
    for _ in range(port.number(2)):
        name, size = texts.get(port.number(2)), port.number(4)
        end = port.end_at(size)
        if name == b"Code":
            port.take(4, REST)
            port.take(port.number(4), CODE)
            port.take(8 * port.number(2), REST)
            _attributes(port, texts, depth + 1)
        elif name == b"LineNumberTable":
            port.lines(port.number(2))
        else:
            port.take(size, REST)
        port.check(end)


def impossible() -> DamagedError:
    """Return the error for a file that is not a class file, or for streams of none."""
    return DamagedError("the parts of a class file are impossible: the file is damaged")
