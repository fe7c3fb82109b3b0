"""Reading within the limits of the run."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import squeeze
from tests.fuzz.judging import LIMITS


@cache
def _takes(function: Callable[..., Any]) -> bool:
    return function is squeeze.open or "limits" in inspect.signature(function).parameters


def limited(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function with the limits where it takes some."""
    return function(*args, **options, **({"limits": LIMITS} if _takes(function) else {}))
