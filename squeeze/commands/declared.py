"""Click options made of declared ones: the options of an operation and of its methods, in sections."""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import click

from squeeze.commands.sections import Command, Decorator, place, several
from squeeze.commands.values import PATH, PLACE, Size
from squeeze.operations import MethodOption, Operation
from squeeze.options import Option, options_of
from squeeze.recipes.options import Common, Packing

__all__ = ["OperationCommand", "base", "both_ways", "calibrating", "default_of", "kind_of", "options_given", "spelled"]

_KINDS: dict[str, Any] = {"int": click.INT, "float": click.FLOAT, "Path": PATH}
_YES = "yes"
_METAVARS = {"int": "N", "float": "X", "Path": "PATH"}
_CALIBRATION = "Calibration and modules"
_ONLY = re.compile(r"( \([^()]* only\))?$")  # the end of a help text


class OperationCommand(Command):
    """A command with the options of an operation and of all methods registered when it is called, before its own."""

    def __init__(self, *args: Any, operation: Operation[Any], **options: Any) -> None:
        self.operation = operation
        super().__init__(*args, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give a flag that may have a value none if what follows is not one of its choices."""
        flags = {
            spelled(one.option): one.option.choices for one in self.operation.options().values() if _both(one.option)
        }
        words = [
            f"{arg}={_YES}" if arg in flags and after not in flags[arg] else arg for arg, after in pairwise([*args, ""])
        ]
        return super().parse_args(ctx, words)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*_options(self.operation), *super().get_params(ctx)]


def options_given(operation: Operation[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of an operation out of those of a command, and return those that the user gave."""
    names = [*operation.keys, *(option.name for option in options_of(Common))] if operation.methods else operation.keys
    values = {name: options.pop(name) for name in names}
    return {name: value for name, value in values.items() if value not in (None, ())}


def _options(operation: Operation[Any]) -> list[click.Parameter]:
    """Make click's options once for each state of the registry, since click compares parameters by identity."""
    state = tuple(operation.methods.items())
    known = _made.get(operation.settings)
    if known is None or known[0] != state:
        _made[operation.settings] = known = (state, _make_options(operation))
    return known[1]


_made: dict[type, tuple[Any, list[click.Parameter]]] = {}


def _make_options(operation: Operation[Any]) -> list[click.Parameter]:
    """Return `--method`, the options of all methods and of each, and those of the calibration."""
    title, found = f"{operation.name.capitalize()} options", list[click.Parameter]()
    if operation.methods:
        kind = click.Choice(list(operation.methods))
        found.append(place(click.Option(["--method"], type=kind, help=f"Method; default: {operation.default}"), title))
    method_options = sorted(operation.options().values(), key=lambda one: _is_of_some(one, operation))
    for one in method_options:
        names = ", ".join(one.defaults)
        section = f"Method{'s' * (len(one.defaults) > 1)} {names}" if _is_of_some(one, operation) else title
        found.append(place(_option(one), section))
    common = options_of(Common) if operation.methods else ()
    return found + [place(_option(MethodOption(option)), _CALIBRATION) for option in common]


def _is_of_some(method_option: MethodOption, operation: Operation[Any]) -> bool:
    """Return whether only some of the methods have an option."""
    return 0 < len(method_option.defaults) < len(operation.methods)


def _option(method_option: MethodOption) -> click.Option:
    names, facts = _declaration(method_option)
    return click.Option(names, **facts)


def _declaration(method_option: MethodOption) -> tuple[list[str], dict[str, Any]]:
    """Return the names and settings of a click option. None and () mean that it was not given: defaults are the
    dataclass's."""
    option = method_option.option
    facts: dict[str, Any] = {"default": None, "help": _help(method_option)}
    if option.type.startswith("tuple"):
        facts |= {"multiple": True, "metavar": "NAMES", "callback": _split}
    elif _both(option):
        choice = click.Choice((_YES, *option.choices))
        facts |= {"type": choice, "metavar": f"[{'|'.join(option.choices)}]", "callback": _yes}
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
    """Return whether an option is a flag that may have a value."""
    return "bool" in option.types and bool(option.choices)


def _yes(ctx: click.Context, param: click.Parameter, value: str | None) -> str | bool | None:
    return True if value == _YES else value


def _split(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Split names that are given in one, with commas."""
    return tuple(name for text in value for name in text.split(",") if name)


def spelled(option: Option) -> str:
    """Return the name of an option on the command line."""
    return option.spelling or "--" + option.name.replace("_", "-")


def both_ways(option: Option) -> str:
    """Return `spelled`, and for a flag also the name that turns it off."""
    name = spelled(option)
    return name if "bool" not in option.types or option.choices else f"{name}/{option.off or '--no-' + name[2:]}"


def _help(method_option: MethodOption) -> str:
    """Return the text of an option with its default, which comes before a condition such as "(gptq only)"."""
    text, default = method_option.option.help, default_of(method_option.option, method_option.defaults)
    if not default or default == "no" or "default:" in text:
        return text
    return _ONLY.sub(lambda end: f"; default: {default}{end[0]}", text, count=1)


def default_of(option: Option, owners: Mapping[str, Any]) -> str:
    """Return the default of an option in words, by method if they differ, or an empty text for none."""
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
    """Return the type of an option in words."""
    if option.choices:
        return " or ".join(option.choices)
    words = {"int": "whole number", "float": "number", "bool": "yes or no", "str": "text", "tuple[str, ...]": "names"}
    return "size" if option.unit else words.get(option.type, "text")


def _declared(kind: type, name: str) -> Decorator:
    """Return a decorator that adds one option of a dataclass to a command."""
    names, facts = _declaration(MethodOption(next(one for one in options_of(kind) if one.name == name)))
    return click.option(*names, **facts)


base = _declared(Packing, "base")
calibrating = several(*(_declared(Common, name) for name in ("calibration", "samples", "sequence_length", "seed")))
