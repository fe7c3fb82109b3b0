"""The tables and plots of the docs, written from the results between their markers.

A table stands between `<!-- table: NAME -->` and `<!-- end -->` in README.md or a page below docs/. `<!-- table: NAME |
ROW | ROW -->` has some of its rows, by what their first cell says, in that order; `rows:` in place of `table:` leaves
out the lines that say how it was measured, and `plot:` stands before a picture. What stands between is replaced. A
figure whose benchmark, option or result is gone is an error.
"""

import argparse
import contextlib
import importlib.util
import io
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import plots, provenance, records
from bench.entry import Entry
from bench.records import RESULTS, Record
from bench.registry import ENTRIES
from bench.tables import MACHINE

ROOT = Path(__file__).parents[1]
_MARKED = re.compile(r"(<!-- (table|rows|plot): ([^\n]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_OPENED = re.compile(r"<!-- (?:table|rows|plot): ")


class DocsError(Exception):
    """A figure that cannot be made."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m bench docs", description="Write tables and plots of the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where something would change")
    options = parser.parse_args(arguments)
    try:
        changed = update(ROOT, RESULTS, write=not options.check)
    except DocsError as error:
        raise SystemExit(f"Error: {error}") from None
    for path in changed:
        print(f"{'out of date' if options.check else 'written'}: {path.relative_to(ROOT)}")
    return int(options.check and bool(changed))


def update(root: Path, results: Path, write: bool) -> list[Path]:
    """The pages and plots that differ from what the results make of them; written where asked for."""
    check_results(results)
    changed = []
    for path in pages(root):
        text = path.read_text()
        if (made := filled(text, path, root, results)) != text:
            changed.append(path)
            if write:
                path.write_text(made)
    return [*changed, *drawings(root, results, write)]


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def filled(text: str, path: Path, root: Path, results: Path = RESULTS) -> str:
    """A page with all that stands between markers made anew."""
    if len(_OPENED.findall(text)) != len(_MARKED.findall(text)):
        raise DocsError(f"{path.name}: a marker has no <!-- end -->")
    kinds: dict[str, Callable[[str], str]] = {
        "table": lambda words: table(*words.split(" | "), results=results),
        "rows": lambda words: table(*words.split(" | "), results=results, told=False),
        "plot": lambda name: picture(name, path, root),
    }
    return _MARKED.sub(lambda found: f"{found[1]}\n{kinds[found[2]](found[3])}\n\n{found[5]}", text)


def table(name: str, *wanted: str, results: Path = RESULTS, told: bool = True) -> str:
    """A table in Markdown, or the rows of it that are named; told: with lines that say how it was measured."""
    entry_name, entry = source(name)
    made = entry.tables[name]
    shown = made.chosen(records.load(entry_name, results))
    if not shown:
        raise DocsError(f"table {name}: no results of `python -m bench {entry_name}`")
    lines = made.lines([record["row"] | {MACHINE: provenance.machine(record["machine"])} for record in shown])
    if wanted:
        lines = [*lines[:2], *(line for row in wanted for line in named(lines[2:], row, name))]
        shown = [record for record in shown if made.title(record["row"]) in wanted]
    below = provenance.lines(shown, commands=not wanted) if told else []
    return "\n".join([*lines, *(["", "  \n".join(below)] if below else [])])


def named(lines: list[str], row: str, table: str) -> list[str]:
    """The lines whose first cell this is."""
    found = [line for line in lines if line.startswith(f"| {row} |")]
    if not found:
        raise DocsError(f"table {table}: there is no row {row!r}")
    return found


def source(name: str) -> tuple[str, Entry]:
    """The benchmark that has a table of this name."""
    for entry_name, entry in ENTRIES.items():
        if name in entry.tables:
            return entry_name, entry
    raise DocsError(f"no benchmark has a table {name!r}")


def check_results(results: Path) -> None:
    """Every result is of a benchmark that there is, by a command that it still understands."""
    for path in sorted(results.glob("*.jsonl")):
        if path.stem not in ENTRIES:
            raise DocsError(f"{path.name}: there is no benchmark of that name")
        check_commands(path.stem, ENTRIES[path.stem], records.load(path.stem, results))


def check_commands(name: str, entry: Entry, found: list[Record]) -> None:
    if importlib.util.find_spec(entry.measuring(name)) is None:
        raise DocsError(f"{name}: {entry.measuring(name)} is gone")
    for command in dict.fromkeys(record["command"] for record in found):
        words = shlex.split(command)
        if words[:4] != ["python", "-m", "bench", name] or not understood(entry, name, words[4:]):
            raise DocsError(f"{name}.jsonl: there is no such command any more: {command}")


def understood(entry: Entry, name: str, words: list[str]) -> bool:
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            entry.parser(name).parse_args(words)
    except SystemExit:
        return False
    return True


def picture(name: str, path: Path, root: Path) -> str:
    if name not in plots.PLOTS:
        raise DocsError(f"there is no plot {name!r}")
    place = os.path.relpath(root / "docs" / "plots" / f"{name}.svg", path.parent)
    return f"![{plots.PLOTS[name].caption}]({place})"


def drawings(root: Path, results: Path, write: bool) -> Iterator[Path]:
    """The pictures that differ from what is drawn now. Without matplotlib they stay as they are."""
    if importlib.util.find_spec("matplotlib") is None:
        print("Note: matplotlib is not installed, so plots stay as they are")
        return
    for name in plots.PLOTS:
        path, drawn = root / "docs" / "plots" / f"{name}.svg", plots.svg(name, results)
        if not path.is_file() or path.read_bytes() != drawn:
            yield path
            if write:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(drawn)
