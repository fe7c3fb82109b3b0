"""What mkdocs does beside its plugins: see `hooks` in mkdocs.yml."""

from typing import Any

_WIDE = ("benchmarks.md", "reference/command-line.md")  # pages of wide tables, which take the left column too
_UNSET = "<td><code>Sentinel.UNSET</code></td>"  # what mkdocs-click writes for options of click 8.3 without a default


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in _WIDE:
        page.meta.setdefault("hide", ["navigation"])
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    return html.replace(_UNSET, "<td></td>")
