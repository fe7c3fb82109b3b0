"""Click options made of declared ones: what a command takes of an operation's methods and settings."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import click

from squeeze.commands.options import PATH, PLACE, Command, Size, several
from squeeze.options import MethodOption, Operation, Option, options_of
from squeeze.recipes.options import Common, Packing

__all__ = ["OperationCommand", "base", "both_ways", "calibrating", "default_of", "given", "kind_of", "spelled"]

_KINDS: dict[str, Any] = {"int": click.INT, "float": click.FLOAT, "Path": PATH}
_YES = "yes"
_METAVARS = {"int": "N", "float": "X", "Path": "PATH"}


class OperationCommand(click.Command):
    """A command with the options of an operation, of its methods as they are when it is called, before its own."""

    def __init__(self, *args: Any, operation: Operation[Any], **options: Any) -> None:
        self.operation = operation
        super().__init__(*args, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A flag that may have a value has none where what follows is not one of its choices."""
        flags = {
            spelled(one.option): one.option.choices for one in self.operation.options().values() if _both(one.option)
        }
        told = [
            f"{arg}={_YES}" if arg in flags and after not in flags[arg] else arg for arg, after in pairwise([*args, ""])
        ]
        return super().parse_args(ctx, told)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*_options(self.operation), *super().get_params(ctx)]


def given(operation: Operation[Any], options: dict[str, Any]) -> dict[str, Any]:
    """What a user gave of an operation's options, which are taken out of a command's."""
    names = [*operation.keys, *(option.name for option in options_of(Common))] if operation.methods else operation.keys
    values = {name: options.pop(name) for name in names}
    return {name: value for name, value in values.items() if value not in (None, ())}


def _options(operation: Operation[Any]) -> list[click.Parameter]:
    """Made once for each state of the registry, since click compares parameters by identity."""
    state = tuple(operation.methods.items())
    known = _made.get(operation.name)
    if known is None or known[0] != state:
        _made[operation.name] = known = (state, _make(operation))
    return known[1]


_made: dict[str, tuple[Any, list[click.Parameter]]] = {}


def _make(operation: Operation[Any]) -> list[click.Parameter]:
    parameters: list[click.Parameter] = []
    if operation.methods:
        kind = click.Choice(list(operation.methods))
        parameters.append(click.Option(["--method"], type=kind, help=f"How ({operation.default})."))
    parameters += [_option(owned, len(operation.methods)) for owned in operation.options().values()]
    return parameters + [
        _option(MethodOption(option), 0) for option in (options_of(Common) if operation.methods else ())
    ]


def _option(owned: MethodOption, methods: int) -> click.Option:
    names, facts = _declaration(owned, methods)
    return click.Option(names, **facts)


def _declaration(owned: MethodOption, methods: int) -> tuple[list[str], dict[str, Any]]:
    """What click is told of an option. None and () mean that it was not given: defaults are the dataclass's."""
    option = owned.option
    facts: dict[str, Any] = {"default": None, "help": _help(owned, methods)}
    if option.type.startswith("tuple"):
        facts |= {"multiple": True, "metavar": "NAMES", "callback": _split}
    elif _both(option):
        known = click.Choice((_YES, *option.choices))
        facts |= {"type": known, "metavar": f"[{'|'.join(option.choices)}]", "callback": _yes}
    elif option.choices:
        facts["type"] = click.Choice(option.choices)
    elif option.unit == "bytes":
        facts |= {"type": Size(), "metavar": "SIZE"}
    elif {"Path", "str"} <= set(option.types):
        facts |= {"type": PLACE, "metavar": "PATH"}
    elif "bool" not in option.types:
        kind = click.STRING if "Bits" in option.types else _KINDS.get(option.type, click.STRING)
        facts |= {"type": kind, "metavar": _METAVARS.get(option.type, "TEXT")}
    return [both_ways(option), option.name], facts


def _both(option: Option) -> bool:
    """Whether an option is a flag that may have a value."""
    return "bool" in option.types and bool(option.choices)


def _yes(ctx: click.Context, param: click.Parameter, value: str | None) -> str | bool | None:
    return True if value == _YES else value


def _split(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Several names may be given in one, with commas."""
    return tuple(name for text in value for name in text.split(",") if name)


def spelled(option: Option) -> str:
    """As the command line has it."""
    return option.spelling or "--" + option.name.replace("_", "-")


def both_ways(option: Option) -> str:
    """As `spelled`, of a flag with what turns it off."""
    name = spelled(option)
    return name if "bool" not in option.types or option.choices else f"{name}/{option.off or '--no-' + name[2:]}"


def _help(owned: MethodOption, methods: int) -> str:
    """The sentence, after the methods that have the option if not all do, and with what it is by default."""
    option, owners = owned.option, owned.defaults
    names = "" if not owners or len(owners) == methods else ", ".join(owners) + ": "
    default = default_of(option, owners)
    text = option.help[0].lower() + option.help[1:] if names and option.help[1].islower() else option.help
    return names + (f"{text.removesuffix('.')} ({default})." if default else text)


def default_of(option: Option, owners: Mapping[str, Any]) -> str:
    """What an option is by default, in words; empty for nothing."""
    variants = [replace(option, default=value) for value in owners.values()] or [option]
    words = {name: _word(variant) for name, variant in zip(owners or ("",), variants, strict=True)}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{name} {word}" for name, word in words.items())


def _word(option: Option) -> str:
    if isinstance(option.default, bool):
        return "yes" if option.default else "no"
    if option.default in (None, ()):
        return ""
    return f"{option.default:g}" if isinstance(option.default, float) else str(option.default)


def kind_of(option: Option) -> str:
    """The type in words."""
    if option.choices:
        return " or ".join(option.choices)
    words = {"int": "whole number", "float": "number", "bool": "yes or no", "str": "text", "tuple[str, ...]": "names"}
    return "size" if option.unit else words.get(option.type, "text")


def _declared(kind: type, name: str) -> Callable[[Command], Command]:
    """A decorator that adds one option of a dataclass to a command of its own."""
    names, facts = _declaration(MethodOption(next(one for one in options_of(kind) if one.name == name)), 0)
    return click.option(*names, **facts)


base = _declared(Packing, "base")
calibrating = several(*(_declared(Common, name) for name in ("calibration", "samples", "sequence_length", "seed")))
