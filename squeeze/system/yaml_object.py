"""Reading YAML that somebody else may have written: no aliases, which can stand for gigabytes; bounds on all else."""

from pathlib import Path
from typing import Any

from squeeze.errors import FormatError, printable

__all__ = ["read_yaml"]

_MAX_FILE = 1 << 16  # bytes
_MAX_DEPTH = 16  # lists and mappings in each other
_LARGEST = 1 << 63  # whole numbers below it
_OF_TAGS_AND_NUMBERS = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # what reading them raises


def read_yaml(path: Path) -> Any:
    """What a file holds: lists, mappings with texts as keys, and plain values.

    Raises FormatError, in one line, for what is not that; OSError where the file cannot be read.
    """
    with path.open("rb") as file:
        text = file.read(_MAX_FILE + 1)
    if len(text) > _MAX_FILE:
        raise FormatError(f"{path}: is longer than {_MAX_FILE} bytes, and at most that are read")
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
            raise FormatError(f"line {event.start_mark.line + 1}: aliases are not taken; write it out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise FormatError(f"line {event.start_mark.line + 1}: is nested more than {_MAX_DEPTH} deep")


def _check_values(value: Any) -> None:
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise FormatError("a mapping has a key that is not a text")
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_values(item)
    elif isinstance(value, int) and abs(value) >= _LARGEST:
        raise FormatError("a number has more than 18 digits")
    elif not isinstance(value, (str, int, float, type(None))):
        raise FormatError(f"a {type(value).__name__} is not taken; texts, numbers, lists and mappings are")
