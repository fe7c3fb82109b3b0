"""Reports that are read again: files of what commands printed with --json, and the folders that they wrote."""

from collections.abc import Sequence
from pathlib import Path

from squeeze.engine.report import NAME
from squeeze.errors import FormatError
from squeeze.recipes.reports.kinds import KINDS, Record, kind_of
from squeeze.recipes.reports.shown import Shown
from squeeze.system.documents import MAX_FILE, parse
from squeeze.system.limits import Limits

__all__ = ["read", "shown"]


def read(path: Path) -> list[Shown]:
    """The runs in a file: one JSON object, a list of them, or one a line. Of a model's folder, its report.

    Raises FormatError for what is no report.
    """
    path = path / NAME if path.is_dir() else path
    with path.open("rb") as file:
        text = file.read(MAX_FILE + 1)
    try:
        return shown(_records(text))
    except FormatError as error:
        raise FormatError(f"{path}: is no report of squeeze, or damaged: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise FormatError(f"{path}: is no report of squeeze, or damaged") from None


def shown(records: Sequence[Record]) -> list[Shown]:
    """What a page shows of records of one kind. Raises KeyError and its like where they are damaged."""
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
