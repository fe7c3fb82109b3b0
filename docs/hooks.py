"""Hooks of mkdocs: they fill in the tables of options, and list commands by section."""

import re
from typing import Any

from squeeze.cli import SECTIONS
from squeeze.commands.reference import OPERATIONS, operation_table, options_table
from squeeze.recipes.options import DELTA, Common, Recovering

_WIDE = ("benchmarks.md", "reference/command-line.md", "reference/options.md")  # they take the left column too
_UNSET = re.compile(r"<td>(?:<code>(?:Sentinel\.UNSET|False)</code>|``)</td>")  # mkdocs-click, without a default
_OPTIONS = re.compile(r"^<!-- options: (\w+) -->$", re.MULTILINE)
_EXAMPLE = re.compile(r"<p>Example: (squeeze .*?)</p>", re.DOTALL)
_COMMAND = """\
::: mkdocs-click
    :module: squeeze.commands.{module}
    :command: {command}
    :prog_name: squeeze {name}
    :depth: 2
    :style: table
"""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what a page asks for in a comment."""
    if page.file.src_uri in _WIDE:
        page.meta.setdefault("hide", ["navigation"])
    filled = _OPTIONS.sub(lambda found: _options(found[1]), markdown)
    return filled.replace("<!-- commands -->", _commands()) if "<!-- commands -->" in filled else filled


def on_page_content(html: str, **_: Any) -> str:
    """Empty the cells of options without a default, and give each example of a help text its line."""
    return _EXAMPLE.sub(_example, _UNSET.sub("<td></td>", html))


def _example(found: re.Match[str]) -> str:
    lines = "\n".join(line.strip() for line in found[1].splitlines())
    return f'<div class="language-sh highlight"><pre><code>{lines}</code></pre></div>'


def _commands() -> str:
    """Return a section for each group of commands: a list of its commands, then each with its options."""
    return "\n".join(line for title, commands in SECTIONS.items() for line in _section(title, commands))


def _section(title: str, commands: dict[str, tuple[str, str]]) -> list[str]:
    listed = [f"- [{name}](#squeeze-{name}): {about}" for name, (_, about) in commands.items()]
    places = {name: place.split(":") for name, (place, _) in commands.items()}
    blocks = [_COMMAND.format(module=place[0], command=place[1], name=name) for name, place in places.items()]
    return [f"## {title}", "", *listed, "", *blocks]


def _options(name: str) -> str:
    """Return the table of an operation, of recovering, or of what all operations share."""
    tables = {operation.name: operation_table(operation) for operation in (*OPERATIONS, DELTA)}
    return {**tables, "recover": options_table(Recovering), "common": options_table(Common)}[name]
