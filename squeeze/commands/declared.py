"""Click options made of declared ones: what a command takes of an operation's methods and settings."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click

from squeeze.commands.options import PATH, Command, Size
from squeeze.options import Operation, Option, of
from squeeze.options.operation import Owned
from squeeze.options.option import UNTOLD
from squeeze.recipes.options import Common, Packing

__all__ = ["OperationCommand", "base", "both_ways", "default_of", "given", "kind_of", "spelled"]

_KINDS: dict[str, Any] = {"int": click.INT, "float": click.FLOAT, "Path": PATH}
_METAVARS = {"int": "N", "float": "X", "Path": "PATH"}


class OperationCommand(click.Command):
    """A command with the options of an operation, of its methods as they are when it is called, before its own."""

    def __init__(self, *args: Any, operation: Operation[Any], **options: Any) -> None:
        self.operation = operation
        super().__init__(*args, **options)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*_options(self.operation), *super().get_params(ctx)]


def given(operation: Operation[Any], options: dict[str, Any]) -> dict[str, Any]:
    """What a user gave of an operation's options, which are taken out of a command's."""
    names = [*operation.keys, *(one.name for one in of(Common))] if operation.methods else operation.keys
    taken = {name: options.pop(name) for name in names}
    return {name: value for name, value in taken.items() if value not in (None, ())}


def _options(operation: Operation[Any]) -> list[click.Parameter]:
    """Made once for each state of the registry, since click compares parameters by identity."""
    state = tuple(operation.methods.items())
    known = _made.get(operation.name)
    if known is None or known[0] != state:
        _made[operation.name] = known = (state, _make(operation))
    return known[1]


_made: dict[str, tuple[Any, list[click.Parameter]]] = {}


def _make(operation: Operation[Any]) -> list[click.Parameter]:
    found: list[click.Parameter] = []
    if operation.methods:
        kind = click.Choice(list(operation.methods))
        found.append(click.Option(["--method"], type=kind, help=f"How ({operation.default})."))
    found += [_option(owned, len(operation.methods)) for owned in operation.owned().values()]
    return found + [_option(Owned(one), 0) for one in (of(Common) if operation.methods else ())]


def _option(owned: Owned, methods: int) -> click.Option:
    names, facts = _declaration(owned, methods)
    return click.Option(names, **facts)


def _declaration(owned: Owned, methods: int) -> tuple[list[str], dict[str, Any]]:
    """What click is told of an option. None and () mean that it was not given: defaults are the dataclass's."""
    one = owned.option
    facts: dict[str, Any] = {"default": None, "help": _help(owned, methods)}
    if one.type.startswith("tuple"):
        facts |= {"multiple": True, "metavar": "NAMES", "callback": _split}
    elif one.choices:
        facts["type"] = click.Choice(one.choices)
    elif one.unit == "bytes":
        facts |= {"type": Size(), "metavar": "SIZE"}
    elif "bool" not in one.types:
        facts |= {"type": _KINDS.get(one.type, click.STRING), "metavar": _METAVARS.get(one.type, "TEXT")}
    return [both_ways(one), one.name], facts


def _split(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Several names may be given in one, with commas."""
    return tuple(name for text in value for name in text.split(",") if name)


def spelled(one: Option) -> str:
    """As the command line has it."""
    return one.spelling or "--" + one.name.replace("_", "-")


def both_ways(one: Option) -> str:
    """As `spelled`, of a flag with what turns it off."""
    name = spelled(one)
    return name if "bool" not in one.types else f"{name}/{one.off or '--no-' + name[2:]}"


def _help(owned: Owned, methods: int) -> str:
    """The sentence, after the methods that have the option if not all do, and with what it is by default."""
    one, owners = owned.option, owned.owners
    names = "" if not owners or len(owners) == methods else ", ".join(owners) + ": "
    default = default_of(one, owners)
    text = one.help[0].lower() + one.help[1:] if names and one.help[1].islower() else one.help
    return names + (f"{text.removesuffix('.')} ({default})." if default else text)


def default_of(one: Option, owners: Mapping[str, Any]) -> str:
    """What an option is by default, in words; empty for nothing."""
    told = [replace(one, default=value) for value in owners.values()] or [one]
    words = {name: _word(each) for name, each in zip(owners or ("",), told, strict=True)}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{name} {word}" for name, word in words.items())


def _word(one: Option) -> str:
    if isinstance(one.default, bool):
        return "yes" if one.default else "no"
    if one.shown or one.default in (None, (), UNTOLD):
        return one.shown
    return f"{one.default:g}" if isinstance(one.default, float) else str(one.default)


def kind_of(one: Option) -> str:
    """The type in words."""
    if one.choices:
        return " or ".join(one.choices)
    words = {"int": "whole number", "float": "number", "bool": "yes or no", "str": "text", "tuple[str, ...]": "names"}
    return "size" if one.unit else words.get(one.type, "text")


def _declared(kind: type, name: str) -> Callable[[Command], Command]:
    """A decorator that adds one option of a dataclass to a command of its own."""
    names, facts = _declaration(Owned(next(one for one in of(kind) if one.name == name)), 0)
    return click.option(*names, **facts)


base = _declared(Packing, "base")
