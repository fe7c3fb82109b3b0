"""Write the tables and plots of the docs from the records in bench/results.

README.md and pages below docs/ have tables between `<!-- table: NAME -->` and `<!-- end -->`, each with a caption.
`<!-- table: NAME | ROW | ROW -->` selects rows by their first cell, in that order. `rows:` instead of `table:` omits
the caption, and `plot:` inserts a picture. A table without results shows the command that measures it. A table or row
that no longer exists is an error.
"""

import argparse
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from bench import plots, records
from bench.measure import MEASURES, Measure, load
from bench.plots import Plot
from bench.records import RESULTS, ROOT

_MARKED = re.compile(r"(<!-- (table|rows|plot): ([^\n]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_OPENED = re.compile(r"<!-- (?:table|rows|plot): ")


class DocsError(Exception):
    """A table, row or plot that a page names and that does not exist."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m bench docs", description="Write tables and plots of the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    options = parser.parse_args(arguments)
    try:
        changed = update(ROOT, RESULTS, write=not options.check)
    except DocsError as error:
        raise SystemExit(f"Error: {error}") from None
    for path in changed:
        print(f"{'out of date' if options.check else 'written'}: {path.relative_to(ROOT)}")
    return int(options.check and bool(changed))


def update(root: Path, results: Path, write: bool) -> list[Path]:
    """Return the pages and plots that are out of date, and write them if asked.

    Args:
        root: folder of the repository
        results: folder of the records
        write: whether to write the pages and plots
    """
    changed = []
    for path in pages(root):
        text = path.read_text()
        if (made := fill(text, path, root, results)) != text:
            changed.append(path)
            if write:
                path.write_text(made)
    return [*changed, *drawings(root, results, write)]


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def fill(text: str, path: Path, root: Path, results: Path = RESULTS) -> str:
    """Return a page's text with everything between markers generated again.

    Args:
        text: text of the page
        path: file of the page, from which links to pictures start
        root: folder of the repository
        results: folder of the records
    """
    if len(_OPENED.findall(text)) != len(_MARKED.findall(text)):
        raise DocsError(f"{path.name}: a marker has no <!-- end -->")
    kinds: dict[str, Callable[[str], str]] = {
        "table": lambda words: table(*words.split(" | "), results=results),
        "rows": lambda words: table(*words.split(" | "), results=results, captioned=False),
        "plot": lambda name: picture(name, path, root),
    }
    return _MARKED.sub(lambda found: f"{found[1]}\n{kinds[found[2]](found[3])}\n\n{found[5]}", text)


def table(name: str, *wanted: str, results: Path = RESULTS, captioned: bool = True) -> str:
    """Return a table in Markdown.

    Args:
        name: name of the table
        wanted: first cells of the rows to show, in this order; none for all rows
        results: folder of the records
        captioned: whether to add the caption
    """
    measure_name, measure = source(name)
    record = records.load(measure_name, results)
    rows = measure.tables[name].chosen(record["rows"]) if record else []
    if record is None or not rows:
        return f"*Not measured yet: `python -m bench {measure_name}`*"
    lines = measure.tables[name].lines(rows)
    for row in wanted:
        if not any(line.startswith(f"| {row} |") for line in lines[2:]):
            raise DocsError(f"table {name}: there is no row {row!r}")
    if wanted:
        lines = [*lines[:2], *(line for row in wanted for line in lines[2:] if line.startswith(f"| {row} |"))]
    return "\n".join([*lines, *(["", records.caption(measure_name, record)] if captioned else [])])


@cache
def measures() -> dict[str, Measure]:
    return {name: load(name) for name in MEASURES}


def all_plots() -> dict[str, tuple[str, Plot]]:
    """Return every plot and the name of its benchmark, by the name of the plot."""
    return {key: (name, plot) for name, measure in measures().items() for key, plot in measure.plots.items()}


def source(name: str) -> tuple[str, Measure]:
    """Return the benchmark that has a table of this name, and its own name."""
    for measure_name, measure in measures().items():
        if name in measure.tables:
            return measure_name, measure
    raise DocsError(f"no benchmark has a table {name!r}")


def picture(name: str, path: Path, root: Path) -> str:
    if name not in all_plots():
        raise DocsError(f"there is no plot {name!r}")
    place = os.path.relpath(root / "docs" / "plots" / f"{name}.svg", path.parent)
    return f"![{all_plots()[name][1].caption}]({place})"


def drawings(root: Path, results: Path, write: bool) -> Iterator[Path]:
    """Yield plots that are out of date, and write them if asked. Without matplotlib none is changed."""
    if importlib.util.find_spec("matplotlib") is None:
        print("Note: matplotlib is not installed, so plots stay as they are")
        return
    for name, (measure, plot) in all_plots().items():
        path, rows = root / "docs" / "plots" / f"{name}.svg", records.rows(measure, results)
        drawn = plots.picture(plot, rows) if rows else b""
        if drawn and (not path.is_file() or path.read_bytes() != drawn):
            yield path
            if write:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(drawn)
