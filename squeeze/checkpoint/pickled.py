"""Pickles as trees of values and of the names of functions that they would call. Nothing is executed.

Opcodes are parsed by the standard library's pickletools, which does not execute them either.
"""

import pickletools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

from squeeze.errors import FormatError
from squeeze.system.limits import Limits

__all__ = ["Name", "Node", "Persistent", "read"]

MAX_OPCODES = 1 << 24
_STEP_MEMORY = 400  # most bytes of memory for a step and its later results
_ASKED = 1 << 10  # steps between two checks of the limits
_LONGEST = 200  # most letters of an imported name
_MARK = object()


@dataclass(frozen=True, slots=True)
class Name:
    """A class or function: `module.name`."""

    name: str


@dataclass(eq=False, slots=True)
class Persistent:
    """An object outside the pickle: torch's storages."""

    id: Any


@dataclass(eq=False, slots=True)
class Node:
    """A dict or list, or the result of a call. Items have a key in a dict, and their number elsewhere."""

    function: Any = None  # a Name, for a call
    arguments: tuple[Any, ...] = ()
    items: list[tuple[Any, Any]] = field(default_factory=list)


def read(file: BinaryIO, names: set[str], limits: Limits | None = None) -> Any:
    """Return the tree of one pickle, and leave `file` after it.

    Args:
        file: the pickle.
        names: the names of everything that it would import are added.
        limits: of memory.

    Raises:
        FormatError: it is not a pickle, is damaged or too long.
        LimitError: the tree needs more memory than `limits` allow.
    """
    machine = _Machine(names)
    try:
        return _built(machine, file, limits or Limits())
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise FormatError("a pickle that cannot be read") from error


def _built(machine: "_Machine", file: BinaryIO, limits: Limits) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in texts
        for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if count > MAX_OPCODES:
                raise FormatError(f"a pickle of more than {MAX_OPCODES} steps")
            if count % _ASKED == 0:
                limits.need_memory((count + _ASKED) * _STEP_MEMORY, "its pickle")
            machine.step(opcode.name, argument)
    return machine.stack.pop()


class _Machine:
    """The stack and memo of a pickle."""

    def __init__(self, names: set[str]):
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.names = names

    def step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name in _VALUES:
            self.stack.append(argument)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(name)

    def marked(self) -> list[Any]:
        """Pop and return everything above the last mark, and the mark."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise IndexError
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values

    def tuple_of(self, count: int) -> None:
        values = [self.stack.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(values)))

    def add(self, values: list[Any]) -> None:
        """Append values to the list, set or call on top of the stack."""
        items = self.stack[-1].items
        items.extend(enumerate(values, len(items)))

    def put(self, values: list[Any]) -> None:
        """Add keys and values to the dict or call on top of the stack."""
        self.stack[-1].items.extend(zip(values[::2], values[1::2], strict=True))

    def call(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self.stack.append(Node(function, arguments))

    def reduce(self) -> None:
        arguments = self.stack.pop()
        self.call(self.stack.pop(), arguments if isinstance(arguments, tuple) else (arguments,))

    def build(self) -> None:
        state = self.stack.pop()
        self.stack[-1].items.append(("", state))

    def call_with_names(self) -> None:
        named = self.stack.pop()
        self.reduce()
        self.stack[-1].items.append(("", named))

    def instance(self, text: str) -> None:
        values = self.marked()
        self.imported(*text.split(" ", 1))
        self.call(self.stack.pop(), tuple(values))

    def object_of(self, function: Any, *arguments: Any) -> None:
        self.call(function, arguments)

    def dict_of(self, values: list[Any]) -> None:
        self.stack.append(Node())
        self.put(values)

    def pair(self) -> list[Any]:
        """Pop and return the two top values."""
        value = self.stack.pop()
        return [self.stack.pop(), value]

    def imported(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError
        if len(module) + len(name) > _LONGEST:
            raise ValueError
        whole = f"{module}.{name}"
        self.names.add(whole)
        self.stack.append(Name(whole))

    def memoize(self, place: int) -> None:
        self.memo[place] = self.stack[-1]


def _tuple(count: int, machine: _Machine, _: Any) -> None:
    machine.tuple_of(count)


def _steps() -> Iterator[tuple[str, Callable[[_Machine, Any], Any]]]:
    yield "MARK", lambda m, _: m.stack.append(_MARK)
    yield "POP", lambda m, _: m.stack.pop()
    yield "POP_MARK", lambda m, _: m.marked()
    yield "DUP", lambda m, _: m.stack.append(m.stack[-1])
    for name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET"):
        yield name, lambda m, _: m.stack.append(Node())
    for count, name in enumerate(("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")):
        yield name, partial(_tuple, count)
    yield "TUPLE", lambda m, _: m.stack.append(tuple(m.marked()))
    for name in ("LIST", "FROZENSET"):
        yield name, lambda m, _: m.stack.append(Node(items=list(enumerate(m.marked()))))
    yield "DICT", lambda m, _: m.dict_of(m.marked())
    yield "APPEND", lambda m, _: m.add([m.stack.pop()])
    for name in ("APPENDS", "ADDITEMS"):
        yield name, lambda m, _: m.add(m.marked())
    yield "SETITEM", lambda m, _: m.put(m.pair())
    yield "SETITEMS", lambda m, _: m.put(m.marked())
    for name in ("PUT", "BINPUT", "LONG_BINPUT"):
        yield name, lambda m, place: m.memoize(place)
    yield "MEMOIZE", lambda m, _: m.memoize(len(m.memo))
    for name in ("GET", "BINGET", "LONG_BINGET"):
        yield name, lambda m, place: m.stack.append(m.memo[place])
    yield "GLOBAL", lambda m, text: m.imported(*text.split(" ", 1))
    yield "STACK_GLOBAL", lambda m, _: m.imported(*m.pair())
    yield "INST", lambda m, text: m.instance(text)
    yield "OBJ", lambda m, _: m.object_of(*m.marked())
    for name in ("REDUCE", "NEWOBJ"):
        yield name, lambda m, _: m.reduce()
    yield "NEWOBJ_EX", lambda m, _: m.call_with_names()
    yield "BUILD", lambda m, _: m.build()
    yield "PERSID", lambda m, text: m.stack.append(Persistent(text))
    yield "BINPERSID", lambda m, _: m.stack.append(Persistent(m.stack.pop()))


_STEPS = dict(_steps())
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
