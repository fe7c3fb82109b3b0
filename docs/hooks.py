"""Hooks of mkdocs: they fill in the tables of options, and list commands by section."""

import html
import inspect
import re
from importlib import import_module
from typing import Any

import click

from squeeze.cli import SECTIONS
from squeeze.commands.reference import OPERATIONS, operation_table, options_table
from squeeze.recipes.options import DELTA, Common, Recovering

_WIDE = ("benchmarks.md", "reference/command-line.md", "reference/options.md")  # they take the left column too
_OPTIONS = re.compile(r"^<!-- options: (\w+) -->$", re.MULTILINE)
_UNBROKEN = "\b\n"  # what click keeps the lines of
_EXAMPLE = "Example: "


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what a page asks for in a comment."""
    if page.file.src_uri in _WIDE:
        page.meta.setdefault("hide", ["navigation"])
    filled = _OPTIONS.sub(lambda found: _options(found[1]), markdown)
    return filled.replace("<!-- commands -->", _commands()) if "<!-- commands -->" in filled else filled


def _commands() -> str:
    """Return a section for each group of commands: a list of its commands, then each with its options."""
    return "\n".join(line for title, commands in SECTIONS.items() for line in _section(title, commands))


def _section(title: str, commands: dict[str, tuple[str, str]]) -> list[str]:
    listed = [f"- [{name}](#squeeze-{name}): {about}" for name, (_, about) in commands.items()]
    places = {name: place.split(":") for name, (place, _) in commands.items()}
    blocks = [
        _block(name, getattr(import_module(f"squeeze.commands.{place[0]}"), place[1])) for name, place in places.items()
    ]
    return [f"## {title}", "", *listed, "", *blocks]


def _block(name: str, command: Any) -> str:
    """Return a command's usage, its help, and a table of its options for each section."""
    with click.Context(command, info_name=f"squeeze {name}") as ctx:
        usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
        parts = [f"### squeeze {name}", _code(usage), *_paragraphs(command.help or "")]
        if isinstance(command, click.Group):
            return "\n\n".join([*parts, *(_block(f"{name} {one}", each) for one, each in command.commands.items())])
        for title, rows in command.options_by_section(ctx).items():
            lines = [f"| <code>{_cell(option)}</code> | {_cell(about)} |" for option, about in rows]
            parts.append("\n".join([f"| {title} | |", "|---|---|", *lines]))
    return "\n\n".join(parts) + "\n"


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help text; those whose lines are kept become blocks of code."""
    found = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith(_UNBROKEN):
            lines = paragraph.removeprefix(_UNBROKEN).removeprefix(_EXAMPLE).split("\n")
            found.append(_code("\n".join(line.removeprefix(" " * len(_EXAMPLE)) for line in lines)))
        else:
            found.append(html.escape(paragraph, quote=False))
    return found


def _code(text: str) -> str:
    return f"```sh\n{text}\n```"


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "&#124;")


def _options(name: str) -> str:
    """Return the table of an operation, of recovering, or of what all operations share."""
    tables = {operation.name: operation_table(operation) for operation in (*OPERATIONS, DELTA)}
    return {**tables, "recover": options_table(Recovering), "common": options_table(Common)}[name]
