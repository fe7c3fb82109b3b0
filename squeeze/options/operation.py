"""One thing that can be done to a checkpoint: the methods that it has, and which options it takes of whom.

Commands, recipes and functions all hand what they were given to `Operation.read`, so that all take the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Generic, TypeVar

from squeeze.errors import OptionError, printable
from squeeze.options.option import Option, of, unknown
from squeeze.options.registry import Reference, load, options_of

__all__ = ["Asked", "Operation", "Owned", "fill"]

S = TypeVar("S")
K = TypeVar("K")


@dataclass(frozen=True)
class Owned:
    """An option, and the methods that have it, by name with what it is by default; none for one of the pass."""

    option: Option
    owners: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation(Generic[S]):
    """settings: the dataclass of options that do not belong to a method. methods: by name; default: one of them."""

    name: str
    settings: type[S]
    methods: Mapping[str, Reference] = field(default_factory=dict)
    default: str = ""

    def owned(self) -> dict[str, Owned]:
        """Every option but `method`, by name: first those of methods."""
        owned: dict[str, Owned] = {}
        for name, reference in self.methods.items():
            for entry in options_of(reference):
                known = owned.get(entry.name, Owned(entry))
                owned[entry.name] = Owned(known.option, {**known.owners, name: entry.default})
        return owned | {entry.name: Owned(entry) for entry in of(self.settings)}

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of all options."""
        return (*(("method",) if self.methods else ()), *self.owned())

    def default_of(self, key: str, method: str | None = None) -> Any:
        """What an option is where it is not given, as the method of this name has it, or the default one."""
        if key == "method":
            return self.default
        chosen = self.methods.get(method or self.default)
        own = () if chosen is None else options_of(chosen)
        known = {one.name: one.default for one in (*of(self.settings), *own)}
        return known.get(key)

    def read(self, options: Mapping[str, Any], method: Any = None) -> "Asked[S]":
        """What is asked for. options: by name, perhaps `method`; method: or its name, or a method that is made
        already. Raises OptionError for what is unknown, of another type or out of bounds."""
        values, owned = dict(options), self.owned()
        chosen = values.pop("method", None) if self.methods else None
        chosen = method if method is not None else chosen if chosen is not None else self.default
        is_known = chosen in self.methods if isinstance(chosen, str) else is_dataclass(chosen)
        if self.methods and not is_known:
            raise OptionError(f"method {printable(repr(chosen))} is unknown: choose from {', '.join(self.methods)}")
        mine = {one.name for one in of(self.settings)}
        for key in values:
            if key not in owned:
                raise unknown(key, self.keys)
            if key not in mine and not isinstance(chosen, str):
                raise OptionError(f"{key!r} belongs to a method that is named: give it to {type(chosen).__name__}")
        settings = fill(self.settings, {key: value for key, value in values.items() if key in mine})
        others = {key: value for key, value in values.items() if key not in mine}
        return Asked(self, chosen, self._read(chosen, others, owned), settings)

    def _read(self, chosen: Any, values: dict[str, Any], owned: dict[str, Owned]) -> dict[str, Any]:
        """Values of methods' options, as the chosen one has them."""
        own = {one.name: one for one in options_of(self.methods[chosen])} if values else {}
        return {key: own.get(key, owned[key].option).read(value) for key, value in values.items()}


@dataclass(frozen=True)
class Asked(Generic[S]):
    """method: its name, or one that is made already. given: options of methods, as they were given; those that only
    other methods have count for nothing. settings: all others."""

    operation: Operation[S]
    method: Any
    given: Mapping[str, Any]
    settings: S

    def own(self, name: str) -> dict[str, Any]:
        """What was given of the options of the method of this name."""
        known = {one.name for one in options_of(self.operation.methods[name])}
        return {key: value for key, value in self.given.items() if key in known}

    def made(self) -> Any:
        """The method. Raises SqueezeError where its options do not go together."""
        if not isinstance(self.method, str):
            return self.method
        return load(self.operation.methods[self.method])(**self.own(self.method))


def fill(kind: type[K], values: Mapping[str, Any], *others: str) -> K:
    """A dataclass of options from what was given. Raises OptionError as `read`. others: keys that are known besides."""
    known = {one.name: one for one in of(kind)}
    for key in values:
        if key not in known:
            raise unknown(key, (*others, *known))
    return kind(**{key: known[key].read(value) for key, value in values.items()})
