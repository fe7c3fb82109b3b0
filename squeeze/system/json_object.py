"""Reading JSON that somebody else may have written: an object of a bounded size, or a line that says what is wrong."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from squeeze.errors import FormatError, printable
from squeeze.system.limits import Limits

__all__ = ["MAX_FILE", "parse_object", "parsed_size", "read_object"]

MAX_FILE = 100_000_000  # bytes, as safetensors bounds its headers
_MAX_DEPTH = 64  # objects and lists in each other, which every reader of the value can follow


def read_object(path: Path, limits: Limits | None = None) -> dict[str, Any]:
    """The object in a file. Raises FormatError for anything else, OSError where the file cannot be read, LimitError
    where it takes more memory than `limits` allow."""
    size = path.stat().st_size
    if size > MAX_FILE:
        raise FormatError(f"{path}: is {size} bytes of JSON, and at most {MAX_FILE} are read")
    text = path.read_bytes()
    (limits or Limits()).need_memory(parsed_size(text), str(path))
    try:
        return parse_object(text)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The object that a text in UTF-8 holds. Raises FormatError for anything else, and for a key that stands twice
    in an object or deep nesting, on which readers disagree."""
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        raise FormatError("is not JSON") from None
    if not isinstance(value, dict):
        raise FormatError("is not a JSON object")
    _check_depth(value)
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


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [part for parts in inner for part in parts if isinstance(part, (dict, list))]
        if not level:
            return
    raise FormatError(f"is nested more than {_MAX_DEPTH} deep")
