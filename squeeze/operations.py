"""Operations on checkpoints, such as quantize: their methods and settings, and the checked options of a call."""

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Generic, TypeVar

from squeeze.errors import OptionError, printable
from squeeze.options import Option, Reference, load, options_of, read_options, unknown

__all__ = ["MethodOption", "Operation", "Request"]

S = TypeVar("S")


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
                raise unknown(key, self.keys)
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
