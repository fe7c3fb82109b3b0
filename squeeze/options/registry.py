"""Methods by name: a registry is a plain dict of references. A module with torch is imported when it is first used."""

from dataclasses import dataclass
from importlib import import_module

from squeeze.options.option import Option, of

__all__ = ["Lazy", "Reference", "load", "options_of"]


@dataclass(frozen=True)
class Lazy:
    """A class in a module that imports torch, which `--help` does not wait for. options: the dataclass of its options,
    which it inherits from; place: "module:Class"."""

    options: type
    place: str


Reference = type | Lazy


def load(reference: Reference) -> type:
    """Import and return the class."""
    if not isinstance(reference, Lazy):
        return reference
    module, _, name = reference.place.partition(":")
    value: type = getattr(import_module(module), name)
    return value


def options_of(reference: Reference) -> tuple[Option, ...]:
    """Return the options of a class without importing its module."""
    return of(reference.options if isinstance(reference, Lazy) else reference)
