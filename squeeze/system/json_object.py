"""Reading JSON that somebody else may have written: an object of a bounded size, or a line that says what is wrong."""

import json
from pathlib import Path
from typing import Any

from squeeze.errors import FormatError

__all__ = ["MAX_FILE", "parse_object", "read_object"]

MAX_FILE = 100_000_000  # bytes, as safetensors bounds its headers


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file. Raises FormatError for anything else, OSError where the file cannot be read."""
    size = path.stat().st_size
    if size > MAX_FILE:
        raise FormatError(f"{path}: is {size} bytes of JSON, and at most {MAX_FILE} are read")
    try:
        return parse_object(path.read_bytes())
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The object that a text in UTF-8 holds. Raises FormatError for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise FormatError("is not JSON") from None
    if not isinstance(value, dict):
        raise FormatError("is not a JSON object")
    return value
