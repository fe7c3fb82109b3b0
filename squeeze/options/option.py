"""What one option is, where a dataclass declares it, and whether a value will do."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from os import PathLike
from typing import Any, TypeVar

from squeeze.errors import OptionError, printable

__all__ = ["Checked", "Option", "check", "of", "option", "size_of", "unknown", "values_of"]

T = TypeVar("T")
_KEY = "squeeze.option"


@dataclass(frozen=True)
class Option:
    """types: names of the types that a value may have, such as ("int", "None"). least, above, most: bounds of a number.
    choices: the only texts there are; a bool that has some may be one of them besides. says: how a message begins that
    finds a value out of bounds, with {} for the value. unit: "bytes" for sizes, which may be texts such as 600M.
    spelling: of the command line's option, where it is not the name; off: of what turns a flag off, where it is not
    --no-NAME. parse: what makes a value of a text."""

    name: str
    types: tuple[str, ...]
    default: Any
    help: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    says: str = ""
    unit: str = ""
    spelling: str = ""
    off: str = ""
    parse: Callable[[str], Any] | None = None

    def read(self, value: Any) -> Any:
        """The value as the field takes it. Raises OptionError where it cannot be one."""
        if self.parse and isinstance(value, str):
            return self.parse(value)
        if self.unit == "bytes" and isinstance(value, str):
            value = size_of(value)
        if _TUPLE in self.types and isinstance(value, Iterable) and not isinstance(value, str):
            value = tuple(value)
        if not any(_fits(value, one) for one in self.types):
            raise OptionError(f"{self.name}: {printable(repr(value))} is not of its type")
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raises OptionError where a value is out of bounds."""
        if self.choices and not isinstance(value, (bool, type(None))) and value not in self.choices:
            raise OptionError(f"{self.name} {printable(repr(value))} is unknown: choose from {', '.join(self.choices)}")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or self._holds(value):
            return
        subject = self.says.format(f"{value:g}") if self.says else f"{self.name} {value:g}"
        raise OptionError(f"{subject}: it {self.bounds}")

    def _holds(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    @property
    def bounds(self) -> str:
        """What holds of a value, as the end of a sentence; empty where all do."""
        if self.least is not None and self.most is not None:
            return f"is from {self.least:g} to {self.most:g}"
        if self.least is not None:
            return f"is at least {self.least:g}"
        if self.above is not None:
            return f"lies above {self.above:g}" + ("" if self.most is None else f" and is at most {self.most:g}")
        return "" if self.most is None else f"is at most {self.most:g}"

    @property
    def type(self) -> str:
        """The name of the type, None left aside."""
        return next(name for name in self.types if name != "None")


_FACTS = tuple(entry.name for entry in fields(Option) if entry.name not in ("name", "types", "default", "help"))
_TUPLE = "tuple[str, ...]"
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "int": int,
    "float": (int, float),
    "bool": bool,
    "str": str,
    "None": type(None),
    "Path": PathLike,
}


def _fits(value: Any, name: str) -> bool:
    if name == _TUPLE:
        return isinstance(value, tuple) and all(isinstance(one, str) for one in value)
    if isinstance(value, bool):
        return name == "bool"
    if name in _TYPES:
        return isinstance(value, _TYPES[name])
    return any(kind.__name__ == name for kind in type(value).__mro__)


def option(default: T, help: str, **facts: Any) -> T:
    """A field of a dataclass that is an option. facts: those of Option that are not left as they are."""
    assert set(facts) <= set(_FACTS), facts
    return field(default=default, metadata={_KEY: {"help": help, **facts}})


def of(kind: type) -> tuple[Option, ...]:
    """The options that a dataclass declares, in the order of its fields."""
    return tuple(_of(entry) for entry in fields(kind) if _KEY in entry.metadata)


def _of(entry: "Field[Any]") -> Option:
    return Option(entry.name, _type_names(entry.type), entry.default, **entry.metadata[_KEY])


def _type_names(annotation: Any) -> tuple[str, ...]:
    """What an annotation allows, each without its module: ("str", "Path", "None")."""
    text = annotation.__name__ if isinstance(annotation, type) and str(annotation)[0] == "<" else str(annotation)
    return tuple(one if "[" in one else one.rpartition(".")[2] for one in text.split(" | "))


def check(instance: Any) -> None:
    """Raises OptionError where an option of a dataclass's instance is out of bounds."""
    for one in of(type(instance)):
        one.check(getattr(instance, one.name))


MOST_MINUTES = 525_600  # a year


class Checked:
    """A dataclass of options whose bounds are checked as it is made."""

    def __post_init__(self) -> None:
        check(self)


def values_of(instance: Any) -> dict[str, Any]:
    """The options of a dataclass's instance, by name."""
    return {one.name: getattr(instance, one.name) for one in of(type(instance))}


def unknown(key: str, known: Iterable[str]) -> OptionError:
    """What is said of a key that is none of those known."""
    names = list(known)
    message = f"{printable(repr(key))} is unknown: choose from {', '.join(names)}"
    near = get_close_matches(key[:100], names, 1)
    return OptionError(f"{message}; nearest is {near[0]}" if near else message)


def size_of(text: str) -> int:
    """A number of bytes, with K, M or G for powers of 1024. Raises OptionError for other texts."""
    digits, shift = text, 0
    if text[-1:].upper() in ("K", "M", "G"):
        digits, shift = text[:-1], 10 * (1 + "KMG".index(text[-1].upper()))
    if not (digits.isascii() and digits.isdigit()):
        raise OptionError(f"{text!r} is not a size such as 65536, 64K or 4M")
    return int(digits) << shift
