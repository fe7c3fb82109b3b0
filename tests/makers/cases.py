"""Cases of a test: some run each time, and the others in the slow tests."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

ParameterSet = type(pytest.param())


def all_slow_but(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return cases as parameters. Those that are not among the quick ones are slow."""
    found = list(cases)
    if missing := [case for case in quick if case not in found]:
        raise ValueError(f"no cases: {missing}")
    return [_parameter(case, case not in quick) for case in found]


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases as parameters. All are slow but the first of each `step` of those that are not slow already."""
    found, number = [], 0
    for case in cases:
        found.append(_parameter(case, number % step > 0))
        number += not _is_slow(case)
    return found


def _is_slow(case: Any) -> bool:
    return isinstance(case, ParameterSet) and any(mark.name == "slow" for mark in case.marks)


def _parameter(case: Any, slow: bool) -> Any:
    marks = [pytest.mark.slow] * (slow and not _is_slow(case))
    if isinstance(case, ParameterSet):  # a tuple, whose parts are no values
        return case._replace(marks=[*case.marks, *marks])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)
