"""The table of a run, and its place in the docs."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.fuzz.judging import CRASH, HANG, MEMORY, REFUSED, SAME, TRACEBACK, TRUE, WRONG
from tests.fuzz.running import Result

DOCS = Path(__file__).parents[2] / "docs" / "security.md"
_COLUMNS = {
    REFUSED: "refused",
    SAME: "same",
    TRUE: "as it says",
    WRONG: "wrong",
    TRACEBACK: "tracebacks",
    HANG: "hangs",
    MEMORY: "over memory",
    CRASH: "crashes",
}
_PLACE = re.compile(r"(<!-- fuzz -->\n)(.*?)(<!-- /fuzz -->)", re.DOTALL)


def table(results: Sequence[Result], header: bool = True) -> str:
    """A row for each format."""
    rows = [_row("format", "mutations", *_COLUMNS.values(), "seconds")] if header else []
    for result in results:
        counts = (f"{result.counts[kind]:,}" for kind in _COLUMNS)
        rows.append(_row(result.name, f"{result.cases:,}", *counts, f"{result.seconds:.0f}"))
    return "\n".join(rows)


def _row(*cells: str) -> str:
    return " ".join([f"{cells[0]:<12}", *(f"{cell:>11}" for cell in cells[1:])])


def markdown(results: Sequence[Result], before: str = "") -> str:
    """The table, with those of the rows `before` that no result takes the place of."""
    columns = ("format", "mutations", *_COLUMNS.values(), "seconds")
    rows = {name: line for line in before.splitlines()[2:] if (name := line.split()[1])}
    for result in results:
        counts = [f"{result.counts[kind]:,}" for kind in _COLUMNS]
        rows[result.name] = _cells([result.name, f"{result.cases:,}", *counts, f"{result.seconds:.0f}"])
    return "\n".join([_cells(columns), "|---|" + "---:|" * (len(columns) - 1), *rows.values()])


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write_docs(results: Sequence[Result], path: Path = DOCS) -> None:
    """Put the rows into the table between its marks."""
    text = path.read_text("utf-8")
    path.write_text(_PLACE.sub(lambda place: f"{place[1]}{markdown(results, place[2])}\n{place[3]}", text), "utf-8")
