"""What mkdocs does beside its plugins: see `hooks` in mkdocs.yml."""

import re
from typing import Any

from squeeze.commands.reference import OPERATIONS, operation_table, options_table
from squeeze.recipes.options import DELTA, Common, Recovering

_WIDE = ("benchmarks.md", "reference/command-line.md", "reference/options.md")  # they take the left column too
_UNSET = re.compile(r"<td>(?:<code>(?:Sentinel\.UNSET|False)</code>|``)</td>")  # mkdocs-click, without a default
_OPTIONS = re.compile(r"^<!-- options: (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in _WIDE:
        page.meta.setdefault("hide", ["navigation"])
    return _OPTIONS.sub(lambda found: _options(found[1]), markdown)


def on_page_content(html: str, **_: Any) -> str:
    return _UNSET.sub("<td></td>", html)


def _options(name: str) -> str:
    """The table of an operation, of recovering, or of what all operations share."""
    tables = {operation.name: operation_table(operation) for operation in (*OPERATIONS, DELTA)}
    return {**tables, "recover": options_table(Recovering), "common": options_table(Common)}[name]
