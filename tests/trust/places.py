"""The strings and other values of JSON, one after the other replaced by something else."""

import json
from collections.abc import Callable, Iterator
from typing import Any

Change = Callable[[str], Any]  # the whole value with one string replaced


def places(value: Any) -> Iterator[tuple[str, Change]]:
    """Each string of a value, and each key of an object, with its path and what replaces it."""
    text = json.dumps(value)
    for path in list(_paths(value, ())):

        def changed(new: str, path: tuple[Any, ...] = path) -> Any:
            return _replaced(json.loads(text), path, new)

        yield ".".join(map(str, path)), changed


def scalars(value: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Each string, number and truth value of a value, with its path and what replaces it by a value of any type."""
    text = json.dumps(value)
    for path in list(_leaves(value, ())):

        def changed(new: Any, path: tuple[Any, ...] = path) -> Any:
            return _replaced(json.loads(text), path, new)

        yield ".".join(map(str, path)), changed


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if not isinstance(value, (dict, list)):
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _leaves(item, (*path, key))


class _Key(str):
    """A key that is to be replaced, and not what is below it."""


def _paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, str):
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(key, str):
            yield (*path, _Key(key))
        yield from _paths(item, (*path, key))


def _replaced(value: Any, path: tuple[Any, ...], new: str) -> Any:
    if not path:
        return new
    first, rest = path[0], path[1:]
    if isinstance(first, _Key):
        return {new if key == first else key: item for key, item in value.items()}
    value[first] = _replaced(value[first], rest, new)
    return value
