"""Reading JSON and YAML from untrusted files: bounded in bytes, memory and depth, and checked against a schema.

A schema is a type, None, `object` for any value, a tuple of alternatives, or a list with the schema of its items. Among
types, `int` excludes booleans, and `float` includes integers. A dictionary lists the required keys. Keys that end in
"?" are optional, and `...` is the schema of all others.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

from squeeze.errors import FormatError, printable
from squeeze.system.limits import Limits

__all__ = ["MAX_FILE", "MAX_LINE", "check", "parse", "parse_object", "parsed_size", "read_object", "read_yaml"]

MAX_FILE = 100_000_000  # bytes, as safetensors bounds its headers
MAX_LINE = 1 << 24  # bytes of one line of JSON
_MAX_DEPTH = 64  # nested objects and lists, which every recursive reader can follow
_NAMES: dict[Any, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", None: "null"}


def read_object(path: Path, limits: Limits | None = None, schema: Any = None) -> dict[str, Any]:
    """Return the JSON object in a file.

    Args:
        path: The file.
        limits: Limits on the memory for parsing; the default limits if None.
        schema: The schema of the object, or None for any object.

    Raises:
        FormatError: The file is not a JSON object that fits the schema.
        LimitError: Parsing needs more memory than `limits` allow.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        text = file.read(MAX_FILE + 1)
    try:
        return _object(parse(text, limits or Limits(), schema))
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object in a UTF-8 text whose size is already bounded.

    Raise FormatError if it is not an object.
    """
    return _object(parse(text))


def parse(text: str | bytes, limits: Limits | None = None, schema: Any = None, most: int = MAX_FILE) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The JSON, as a string or UTF-8.
        limits: Limits on the memory for parsing, or None for no limit.
        schema: The schema of the value, or None for any value.
        most: The most bytes of the text.

    Raises:
        FormatError: The text is too long, is not JSON, or does not fit the schema. A duplicate key and deep nesting are
        errors as well, since readers disagree about them.
        LimitError: Parsing needs more memory than `limits` allow.
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
    """Raise FormatError if a value does not fit a schema. `where` is the path of the value for the message."""
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
    """Estimate the peak memory of parsing JSON, in bytes. Containers take many times the size of their text."""
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


_MAX_YAML = 1 << 16  # bytes
_MAX_YAML_DEPTH = 16  # nested lists and mappings
_LARGEST = 1 << 63  # integers must be smaller
_OF_TAGS_AND_NUMBERS = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
)  # what PyYAML raises for invalid tags and numbers


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file: lists, mappings with strings as keys, and plain values, without aliases.

    Raises:
        FormatError: The file is not such YAML, or is too long. The message is one line.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        text = file.read(_MAX_YAML + 1)
    if len(text) > _MAX_YAML:
        raise FormatError(f"{path}: expected at most {_MAX_YAML} bytes of YAML, got more")
    try:
        return _parse(text)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def _parse(text: bytes) -> Any:
    import yaml

    try:
        _check_events(yaml.parse(text, Loader=yaml.SafeLoader))
        value = yaml.safe_load(text)
    except (yaml.YAMLError, *_OF_TAGS_AND_NUMBERS) as error:
        raise FormatError(f"is not YAML: {printable(' '.join(str(error).split()))}") from None
    _check_values(value)
    return value


def _check_events(events: Any) -> None:
    import yaml

    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise FormatError(f"line {event.start_mark.line + 1}: aliases are not supported: write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_YAML_DEPTH:
            raise FormatError(f"line {event.start_mark.line + 1}: is nested more than {_MAX_YAML_DEPTH} deep")


def _check_values(value: Any) -> None:
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise FormatError("expected strings as keys, got another type")
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_values(item)
    elif isinstance(value, int) and abs(value) >= _LARGEST:
        raise FormatError("a number has more than 18 digits")
    elif not isinstance(value, (str, int, float, type(None))):
        raise FormatError(f"expected strings, numbers, lists or mappings, got a {type(value).__name__}")
