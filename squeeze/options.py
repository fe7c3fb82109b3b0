"""Options declared once, as fields of dataclasses, for the command line, recipes, Python and the docs.

    damping: float = option(0.01, "Damping, as a share of the Hessian's mean diagonal", least=0)

A field that is declared without `option` can be set in Python only. An `Operation`, such as quantize, lists its methods
and its own settings, and checks the options of a call. This module imports neither click nor torch, so that `--help`
stays fast.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from os import PathLike
from typing import Any, Generic, TypeVar

from squeeze.errors import OptionError, printable

__all__ = [
    "MOST_MINUTES",
    "Checked",
    "Lazy",
    "MethodOption",
    "Operation",
    "Option",
    "Reference",
    "Request",
    "check",
    "load",
    "option",
    "options_of",
    "read_options",
    "size_of",
    "values_of",
]

S = TypeVar("S")
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
            raise _unknown(key, (*other_keys, *known))
    return kind(**{key: known[key].read(value) for key, value in values.items()})


def _unknown(key: str, known: Iterable[str]) -> OptionError:
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


@dataclass(frozen=True)
class MethodOption:
    """An option of an operation.

    Attributes:
        option: The declaration. If several methods have the option, that of the first one.
        defaults: The default in each method that has it, by the method's name; empty for a setting of the operation.
    """

    option: Option
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation(Generic[S]):
    """An operation on a checkpoint, such as quantize: its settings, its methods and all their options.

    Commands, recipes and functions pass the options of a call to `read`, so that all accept the same.

    Attributes:
        name: The name of the command.
        settings: The dataclass of options that belong to no method.
        methods: The methods by name.
        default: The name of the default method.
    """

    name: str
    settings: type[S]
    methods: Mapping[str, Reference] = field(default_factory=dict)
    default: str = ""

    def options(self) -> dict[str, MethodOption]:
        """Return every option except `method` by name, those of methods first."""
        found: dict[str, MethodOption] = {}
        for name, reference in self.methods.items():
            for entry in options_of(reference):
                known = found.get(entry.name, MethodOption(entry))
                found[entry.name] = MethodOption(known.option, {**known.defaults, name: entry.default})
        return found | {entry.name: MethodOption(entry) for entry in options_of(self.settings)}

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of all options."""
        return (*(("method",) if self.methods else ()), *self.options())

    def default_of(self, key: str, method: str | None = None) -> Any:
        """Return the default of an option in the named method, or else in the default method."""
        if key == "method":
            return self.default
        chosen = self.methods.get(method or self.default)
        own = () if chosen is None else options_of(chosen)
        return {entry.name: entry.default for entry in (*options_of(self.settings), *own)}.get(key)

    def read(self, options: Mapping[str, Any], method: Any = None) -> "Request[S]":
        """Check the options of a call.

        Args:
            options: Values by name, which may include `method`.
            method: The method's name, or an instance of a method. It takes precedence.

        Raises:
            OptionError: A key or method is unknown, or a value has the wrong type or is out of bounds.
        """
        values, known = dict(options), self.options()
        chosen = values.pop("method", None) if self.methods else None
        chosen = method if method is not None else chosen if chosen is not None else self.default
        is_known = chosen in self.methods if isinstance(chosen, str) else is_dataclass(chosen)
        if self.methods and not is_known:
            raise OptionError(f"method {printable(repr(chosen))} is unknown: choose from {', '.join(self.methods)}")
        own = {entry.name for entry in options_of(self.settings)}
        for key in values:
            if key not in known:
                raise _unknown(key, self.keys)
            if key not in own and not isinstance(chosen, str):
                raise OptionError(f"{key} is an option of the method: pass it to {type(chosen).__name__}(...)")
        settings = read_options(self.settings, {key: value for key, value in values.items() if key in own})
        others = {key: value for key, value in values.items() if key not in own}
        return Request(self, chosen, self._read_method_options(chosen, others, known), settings)

    def _read_method_options(
        self, method: str, values: dict[str, Any], known: dict[str, MethodOption]
    ) -> dict[str, Any]:
        own = {entry.name: entry for entry in options_of(self.methods[method])} if values else {}
        return {key: own.get(key, known[key].option).read(value) for key, value in values.items()}


@dataclass(frozen=True)
class Request(Generic[S]):
    """The checked options of one call of an operation.

    Attributes:
        operation: The operation.
        method: The name of the method, or an instance of one.
        method_options: Given options of methods, by name. Options that the chosen method does not have are ignored.
        settings: All options that belong to no method.
    """

    operation: Operation[S]
    method: Any
    method_options: Mapping[str, Any]
    settings: S

    def options_of_method(self, name: str) -> dict[str, Any]:
        """Return the given options that the method of this name has."""
        known = {entry.name for entry in options_of(self.operation.methods[name])}
        return {key: value for key, value in self.method_options.items() if key in known}

    def create_method(self) -> Any:
        """Return an instance of the method. Raise SqueezeError if its options contradict each other."""
        if not isinstance(self.method, str):
            return self.method
        return load(self.operation.methods[self.method])(**self.options_of_method(self.method))
