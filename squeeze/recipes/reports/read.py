"""Reports that are read again: files of what commands printed with --json, and the folders that they wrote."""

import json
from collections.abc import Sequence
from pathlib import Path

from squeeze.engine.report import NAME
from squeeze.errors import FormatError
from squeeze.recipes.reports.kinds import KINDS, Record, kind_of
from squeeze.recipes.reports.shown import Shown

__all__ = ["read", "shown"]


def read(path: Path) -> list[Shown]:
    """The runs in a file: one JSON object, a list of them, or one a line. Of a model's folder, its report.

    Raises FormatError for what is no report.
    """
    path = path / NAME if path.is_dir() else path
    try:
        return shown(_records(path.read_text("utf-8")))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise FormatError(f"{path}: is no report of squeeze, or damaged") from None


def shown(records: Sequence[Record]) -> list[Shown]:
    """What a page shows of records of one kind. Raises KeyError and its like where they are damaged."""
    kinds = {kind_of(record) for record in records}
    if len(kinds) != 1:
        raise ValueError("records of several kinds, or of none")
    return KINDS[kinds.pop()](records)


def _records(text: str) -> list[Record]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        document = [json.loads(line) for line in text.splitlines() if line.strip()]
    return document if isinstance(document, list) else [document]
