"""The HTML page of one run or several, drawn by Vega.

Vega, Vega-Lite and Vega-Embed come from the package vl-convert-python, of the extra `report`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from squeeze.engine.report import NAME
from squeeze.errors import FormatError, SqueezeError
from squeeze.recipes.reports.html import packed, render as render_page
from squeeze.recipes.reports.kinds import KINDS, Record, kind_of
from squeeze.recipes.reports.page_data import COLUMNS, MEASURES, Shown
from squeeze.system import extras, files
from squeeze.system.documents import MAX_FILE, parse
from squeeze.system.limits import Limits

__all__ = ["check_page", "read", "render", "shown", "write"]


def read(path: Path) -> list[Shown]:
    """Read the runs of a file: a JSON object, a list of them, or one a line; of a model's folder, its report.

    Raises FormatError if it is not a report.
    """
    path = path / NAME if path.is_dir() else path
    with path.open("rb") as file:
        text = file.read(MAX_FILE + 1)
    try:
        return shown(_records(text))
    except FormatError as error:
        raise FormatError(f"{path}: is not a report of squeeze, or damaged: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise FormatError(f"{path}: is not a report of squeeze, or damaged") from None


def shown(records: Sequence[Record]) -> list[Shown]:
    """Return what a page shows of records of one kind; raises KeyError, TypeError or ValueError if they are damaged."""
    kinds = {kind_of(record) for record in records}
    if len(kinds) != 1:
        raise ValueError("records of several kinds, or of none")
    return KINDS[kinds.pop()](records)


def _records(text: bytes) -> list[Record]:
    limits = Limits()
    try:
        document = parse(text, limits)
    except FormatError:
        document = [parse(line, limits) for line in text.splitlines() if line.strip()]
    return document if isinstance(document, list) else [document]


_MARK = '<meta name="generator" content="squeeze">'
_HEAD = 512  # bytes of a page that have the mark


def check_page(path: Path) -> None:
    """Raise PackageError without the extra, and SqueezeError if the folder is missing or another file has the name."""
    with extras.explained():
        import vl_convert  # noqa: F401
    if not path.parent.is_dir():
        raise SqueezeError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir() or (path.exists() and not _is_page(path)):
        raise SqueezeError(f"{path} exists and is not a page of squeeze: name another file")


def write(path: Path, runs: Sequence[Shown]) -> None:
    """Write the page of runs, replacing an earlier page; raises as `check_page` does."""
    check_page(path)
    page = render(runs)
    with files.replacing(path, overwrite=True) as sink:
        sink.write(page.encode())


def render(runs: Sequence[Shown]) -> str:
    """Return the page of at least one run; raises PackageError without the extra."""
    facts = {
        "runs": [run.as_json() for run in runs],
        "measures": {key: asdict(measure) for key, measure in MEASURES.items()},
        "columns": {key: asdict(column) for key, column in COLUMNS.items()},
    }
    return render_page(
        "squeeze.recipes.reports",
        evaluates=True,
        mark=_MARK,
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared",
        runs=runs,
        rows=sum(len(run.rows) for run in runs),
        facts=packed(json.dumps(facts, separators=(",", ":")).encode()),
        vega=_vega(),
    )


@cache
def _vega() -> str:
    """Return the script that sets window.vegaEmbed."""
    with extras.explained():
        import vl_convert
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return _MARK.encode() in file.read(_HEAD)
