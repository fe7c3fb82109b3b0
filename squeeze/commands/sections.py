"""Help in sections: the options that most commands share come first, and every other group has a title."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import click

__all__ = ["COMMON", "Command", "command", "in_section", "place", "several"]

COMMON = "Options"
_SECTION = "squeeze.section"  # an attribute of click's options
_FIRST = ["output", "stdout", "output_dir", "force", "rm", "recursive", "exclude", "threads", "device", "resume"]
_LAST = ["page", "quiet", "verbose", "as_json", "help"]
_BOUNDS = re.compile(r"\s+\[[^\]]*x[<>][^\]]*\]$")  # which click adds to a number
Function = Callable[..., None]
Decorator = Callable[[Function], Function]


class Command(click.Command):
    """A command whose help lists its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one definition list for each section, the common one first."""
        for title, rows in self.options_by_section(ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def options_by_section(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return the options of each section as pairs of their spelling and their help, the common section first."""
        sections: dict[str, list[tuple[str, str]]] = {COMMON: []}
        for parameter in sorted(self.get_params(ctx), key=_rank):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record:
                row = record[0], _BOUNDS.sub("", record[1])
                sections.setdefault(getattr(parameter, _SECTION, COMMON), []).append(row)
        return sections


command: Callable[..., Callable[[Function], Command]] = partial(click.command, cls=Command)


def _rank(parameter: click.Parameter) -> int:
    """Return the place of an option: that of _FIRST, of _LAST, or between them."""
    name = "help" if "--help" in parameter.opts else parameter.name or ""
    if getattr(parameter, _SECTION, COMMON) != COMMON:
        return 0
    if name in _LAST:
        return 1 + _LAST.index(name)
    return _FIRST.index(name) - len(_FIRST) if name in _FIRST else 0


def several(*options: Decorator) -> Decorator:
    """Return one decorator that adds all these options, in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def in_section(title: str, *options: Any) -> Decorator:
    """Return one decorator that adds these options, and `--help` shows them under `title`."""

    def decorate(function: Function) -> Function:
        known = list(getattr(function, "__click_params__", ()))
        function = several(*options)(function)
        for parameter in function.__click_params__[len(known) :]:  # type: ignore[attr-defined]
            place(parameter, title)
        return function

    return decorate


def place(parameter: click.Parameter, title: str) -> click.Parameter:
    """Put an option into a section, and return it."""
    setattr(parameter, _SECTION, title)
    return parameter
