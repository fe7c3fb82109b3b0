"""Reading JSON that somebody else may have written: bounded bytes, memory and depth, of the types that a schema names.

A schema is a type (`int` is no `bool`; `float` takes whole numbers, too), None, `object` for any value, a tuple of
schemas of which one must fit, a list with the schema of all its items, or a dictionary: its keys are needed, but for
those that end in "?", and `...` stands for all others.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

from squeeze.errors import FormatError, printable
from squeeze.system.limits import Limits

__all__ = ["MAX_FILE", "MAX_LINE", "check", "parse", "parse_object", "parsed_size", "read_object"]

MAX_FILE = 100_000_000  # bytes, as safetensors bounds its headers
MAX_LINE = 1 << 24  # bytes of one line of JSON
_MAX_DEPTH = 64  # objects and lists in each other, which every reader of the value can follow
_NAMES: dict[Any, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", None: "null"}


def read_object(path: Path, limits: Limits | None = None, schema: Any = None) -> dict[str, Any]:
    """Return the object in a file.

    Raises FormatError for anything else, OSError if the file cannot be read, and LimitError if parsing takes more
    memory than `limits` allow.
    """
    with path.open("rb") as file:
        text = file.read(MAX_FILE + 1)
    try:
        return _object(parse(text, limits or Limits(), schema))
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the object that a text in UTF-8 holds; for texts whose size is bounded. Raises FormatError."""
    return _object(parse(text))


def parse(text: str | bytes, limits: Limits | None = None, schema: Any = None, most: int = MAX_FILE) -> Any:
    """Return the value of a text.

    Raises FormatError for a text of more than `most` bytes, for text that is not JSON, for a key that appears twice
    in an object or deep nesting, on which readers disagree, and for a value of other types than the schema names.
    Raises LimitError if parsing takes more memory than `limits` allow.
    """
    if len(text) > most:
        raise FormatError(f"expected at most {most} bytes of JSON, got {len(text)} or more")
    if limits:
        limits.need_memory(parsed_size(text), "its JSON")
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        raise FormatError("is not JSON") from None
    _check_depth(value)
    if schema is not None:
        check(value, schema)
    return value


def check(value: Any, schema: Any, where: str = "") -> None:
    """Raises FormatError if a value is not of the types that a schema names. where: its place, for the message."""
    if isinstance(schema, tuple):
        if not any(_fits(value, one) for one in schema):
            raise _other(value, schema, where)
    elif isinstance(schema, dict):
        if not isinstance(value, dict):
            raise _other(value, schema, where)
        _check_keys(value, schema, where)
    elif isinstance(schema, list):
        if not isinstance(value, list):
            raise _other(value, schema, where)
        for item in value:
            check(item, schema[0], where)
    elif not _is_of(value, schema):
        raise _other(value, schema, where)


def _check_keys(value: dict[str, Any], schema: dict[Any, Any], where: str) -> None:
    known = {key.removesuffix("?"): one for key, one in schema.items() if key is not ...}
    missing = sorted(key for key in schema if key is not ... and not key.endswith("?") and key not in value)
    if missing:
        raise FormatError(f"{where and f'{where}: '}{missing[0]!r} is missing")
    for key, item in value.items():
        inner = known.get(key, schema.get(...))
        if inner is None and key not in known:
            raise FormatError(f"{where and f'{where}: '}the key {printable(repr(key))} is unknown")
        check(item, inner, f"{where}.{printable(key)}" if where else printable(key))


def _fits(value: Any, schema: Any) -> bool:
    try:
        check(value, schema)
    except FormatError:
        return False
    return True


def _is_of(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if kind in (int, float):
        return not isinstance(value, bool) and isinstance(value, (int, kind))
    return isinstance(value, kind)


def _other(value: Any, schema: Any, where: str) -> FormatError:
    expected = " or ".join(map(_named, schema if isinstance(schema, tuple) else (schema,)))
    return FormatError(f"{where and f'{where}: '}expected {expected}, got {printable(repr(value))}")


def _named(schema: Any) -> str:
    return "a list" if isinstance(schema, list) else "an object" if isinstance(schema, dict) else _NAMES[schema]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError("is not a JSON object")
    return cast(dict[str, Any], value)


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
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [part for parts in inner for part in parts if isinstance(part, (dict, list))]
        if not level:
            return
    raise FormatError(f"is nested more than {_MAX_DEPTH} deep")
