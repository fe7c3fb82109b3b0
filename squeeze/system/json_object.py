"""Reading JSON that somebody else may have written: an object of a bounded size, or a line that says what is wrong."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from squeeze.errors import FormatError, printable
from squeeze.system.limits import Limits

__all__ = ["MAX_FILE", "parse_object", "parsed_size", "read_object"]

MAX_FILE = 100_000_000  # bytes, as safetensors bounds its headers


def read_object(path: Path, unique: bool = False, limits: Limits | None = None) -> dict[str, Any]:
    """The object in a file. Raises FormatError for anything else, OSError where the file cannot be read, LimitError
    where it takes more memory than `limits` allow."""
    size = path.stat().st_size
    if size > MAX_FILE:
        raise FormatError(f"{path}: is {size} bytes of JSON, and at most {MAX_FILE} are read")
    text = path.read_bytes()
    (limits or Limits()).need_memory(parsed_size(text), str(path))
    try:
        return parse_object(text, unique)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def parse_object(text: str | bytes, unique: bool = False) -> dict[str, Any]:
    """The object that a text in UTF-8 holds. Raises FormatError for anything else; `unique`: for a key that stands
    twice in an object, too, of which JSON takes the last."""
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates if unique else None)
    except (ValueError, RecursionError):
        raise FormatError("is not JSON") from None
    if not isinstance(value, dict):
        raise FormatError("is not a JSON object")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise FormatError(f"has '{printable(name)}' twice")
    return table


def parsed_size(text: bytes | str) -> int:
    """About the most bytes of memory that parsing JSON takes: containers cost many times what they are as text."""
    if isinstance(text, bytes):
        marks = text.count(b",") + text.count(b"[") + text.count(b"{")
    else:
        marks = text.count(",") + text.count("[") + text.count("{")
    return 8 * len(text) + 64 * marks
