"""Cases of a test: some run each time, and the others in the slow tests."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def all_slow_but(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return cases as parameters. Those that are not among the quick ones are slow."""
    found = list(cases)
    if missing := [case for case in quick if case not in found]:
        raise ValueError(f"no cases: {missing}")
    return [_parameter(case, case not in quick) for case in found]


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases as parameters. All are slow but the first of each `step`."""
    return [_parameter(case, number % step > 0) for number, case in enumerate(cases)]


def _parameter(case: Any, slow: bool) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=[pytest.mark.slow] * slow)
