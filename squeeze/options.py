"""Options declared once, as fields of dataclasses, for the command line, recipes, Python and the docs.

    damping: float = option(0.01, "Damping, as a share of the Hessian's mean diagonal", least=0)

A field that is declared without `option` can be set in Python only. This module and operations.py import neither click
nor torch, so that `--help` stays fast.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from importlib import import_module
from os import PathLike
from typing import Any, TypeVar

from squeeze.errors import OptionError, printable

__all__ = [
    "MOST_MINUTES",
    "Checked",
    "Lazy",
    "Option",
    "Reference",
    "check",
    "load",
    "option",
    "options_of",
    "read_options",
    "size_of",
    "unknown",
    "values_of",
]

T = TypeVar("T")
MOST_MINUTES = 525_600  # a year: the upper bound of options that limit time
_KEY = "squeeze.option"  # in the metadata of a dataclass's field


@dataclass(frozen=True)
class Option:
    """An option: its type, its bounds and its spelling on the command line.

    Attributes:
        name: The name of the field.
        types: Names of the types that a value may have, such as ("int", "None").
        default: The value of an option that is not given.
        help: A noun phrase without a full stop, as `--help` shows it.
        least: Lower bound of a number, inclusive.
        above: Lower bound of a number, exclusive.
        most: Upper bound of a number, inclusive.
        choices: The only strings allowed. A boolean with choices may be one of them as well.
        numbers: The only numbers allowed.
        unit: "bytes" for sizes, which may also be strings such as 600M.
        spelling: The option on the command line, if it is not `--name`.
        off: The option that turns a flag off, if it is not `--no-name`.
        parse: A function that makes a value of a string.
    """

    name: str
    types: tuple[str, ...]
    default: Any
    help: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    unit: str = ""
    spelling: str = ""
    off: str = ""
    parse: Callable[[str], Any] | None = None

    def read(self, value: Any) -> Any:
        """Return the value as the field takes it. Raise OptionError if its type is wrong or it is out of bounds."""
        if self.parse and isinstance(value, str):
            return self.parse(value)
        if self.unit == "bytes" and isinstance(value, str):
            value = size_of(value)
        if _NAMES in self.types and isinstance(value, Iterable) and not isinstance(value, str):
            value = tuple(value)
        if not any(_fits(value, name) for name in self.types):
            wanted = " or ".join(_NOUNS.get(name, name) for name in self.types if name != "None")
            raise OptionError(f"{self.name} must be {wanted}, got {printable(repr(value))}")
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise OptionError if a value is out of bounds."""
        if self.choices and not isinstance(value, (bool, type(None))) and value not in self.choices:
            raise OptionError(f"{self.name} {printable(repr(value))} is unknown: choose from {', '.join(self.choices)}")
        if self.numbers and value is not None and value not in self.numbers:
            raise OptionError(f"{self.name} must be {self.bounds}, got {value:g}")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or self._holds(value):
            return
        raise OptionError(f"{self.name} must be {self.bounds}, got {value:g}")

    def _holds(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    @property
    def bounds(self) -> str:
        """The bounds in words, such as "from 2 to 8"; empty if there are none."""
        if self.numbers:
            return f"{', '.join(map(str, self.numbers[:-1]))} or {self.numbers[-1]}"
        if self.least is not None and self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        if self.least is not None:
            return f"at least {self.least:g}"
        if self.above is not None:
            return f"above {self.above:g}" + ("" if self.most is None else f" and at most {self.most:g}")
        return "" if self.most is None else f"at most {self.most:g}"

    @property
    def type(self) -> str:
        """The name of the first type that is not None."""
        return next(name for name in self.types if name != "None")


_FACTS = tuple(entry.name for entry in fields(Option) if entry.name not in ("name", "types", "default", "help"))
_NAMES = "tuple[str, ...]"
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "int": int,
    "float": (int, float),
    "bool": bool,
    "str": str,
    "None": type(None),
    "Path": PathLike,
}
_NOUNS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "Path": "a path",
    _NAMES: "a list of strings",
}


def _fits(value: Any, name: str) -> bool:
    """Return whether a value has the type of this name."""
    if name == _NAMES:
        return isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    if isinstance(value, bool):
        return name == "bool"
    if name in _TYPES:
        return isinstance(value, _TYPES[name])
    return any(kind.__name__ == name for kind in type(value).__mro__)


def option(default: T, help: str, **facts: Any) -> T:
    """Declare a field of a dataclass as an option.

    Args:
        default: The field's default.
        help: A noun phrase without a full stop, as `--help` shows it.
        facts: Other attributes of `Option`, such as `least=1` or `choices=("a", "b")`.
    """
    assert set(facts) <= set(_FACTS), facts
    return field(default=default, metadata={_KEY: {"help": help, **facts}})


@dataclass(frozen=True)
class Lazy:
    """A method whose module imports torch, so that it is imported only if the method is used.

    Attributes:
        options: The dataclass of its options, which the class inherits from. Its module does not import torch.
        place: The class, as "module:Class".
    """

    options: type
    place: str


Reference = type | Lazy


def load(reference: Reference) -> type:
    """Return the class, and import its module if necessary."""
    if not isinstance(reference, Lazy):
        return reference
    module, _, name = reference.place.partition(":")
    value: type = getattr(import_module(module), name)
    return value


def options_of(reference: Reference) -> tuple[Option, ...]:
    """Return the options that a dataclass declares, in the order of its fields, without importing a lazy class."""
    kind = reference.options if isinstance(reference, Lazy) else reference
    return tuple(_option_of(entry) for entry in fields(kind) if _KEY in entry.metadata)


def _option_of(entry: "Field[Any]") -> Option:
    return Option(entry.name, _type_names(entry.type), entry.default, **entry.metadata[_KEY])


def _type_names(annotation: Any) -> tuple[str, ...]:
    """Return the types of an annotation, each without its module: ("str", "Path", "None")."""
    text = annotation.__name__ if isinstance(annotation, type) and str(annotation)[0] == "<" else str(annotation)
    return tuple(part if "[" in part else part.rpartition(".")[2] for part in text.split(" | "))


def check(instance: Any) -> None:
    """Raise OptionError if an option of this dataclass instance is out of bounds."""
    for known in options_of(type(instance)):
        known.check(getattr(instance, known.name))


class Checked:
    """A base of dataclasses that checks the bounds of its options when an instance is created."""

    def __post_init__(self) -> None:
        check(self)


def values_of(instance: Any) -> dict[str, Any]:
    """Return the values of the options of a dataclass instance, by name."""
    return {known.name: getattr(instance, known.name) for known in options_of(type(instance))}


def read_options(kind: type[T], values: Mapping[str, Any], *other_keys: str) -> T:
    """Build a dataclass of options from values by name.

    Args:
        kind: The dataclass.
        values: Values by option name, as a user gave them.
        other_keys: Keys that the message for an unknown key lists as well.

    Raises:
        OptionError: A key is unknown, or a value has the wrong type or is out of bounds.
    """
    known = {entry.name: entry for entry in options_of(kind)}
    for key in values:
        if key not in known:
            raise unknown(key, (*other_keys, *known))
    return kind(**{key: known[key].read(value) for key, value in values.items()})


def unknown(key: str, known: Iterable[str]) -> OptionError:
    """Return the error for an unknown key, with the nearest known one."""
    names = list(known)
    message = f"{printable(repr(key))} is unknown: choose from {', '.join(names)}"
    near = get_close_matches(key[:100], names, 1)
    return OptionError(f"{message}; nearest is {near[0]}" if near else message)


def size_of(text: str) -> int:
    """Return the number of bytes in a size such as 65536, 64K or 4M (powers of 1024). Raise OptionError if invalid."""
    digits, shift = text, 0
    if text[-1:].upper() in ("K", "M", "G"):
        digits, shift = text[:-1], 10 * (1 + "KMG".index(text[-1].upper()))
    if not (digits.isascii() and digits.isdigit()):
        raise OptionError(f"{text!r} is not a size such as 65536, 64K or 4M")
    return int(digits) << shift
