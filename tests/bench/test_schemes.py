"""Rows of the schemes: ours beside those of llm-compressor's ways that were asked for."""

import argparse

import numpy as np
import pytest

from bench.measures.schemes import Schemes

GAPS = {"ours": [0.1, 0.2], "rotated": [0.1, 0.1], "gptq": [0.4, 0.2], "rtn": [0.3, 0.1]}


@pytest.fixture
def schemes(monkeypatch: pytest.MonkeyPatch) -> Schemes:
    made = object.__new__(Schemes)  # without a model
    made.before = np.zeros(2)
    monkeypatch.setattr(made, "_gaps", lambda scheme, way: np.array(GAPS[way]))
    return made


@pytest.mark.parametrize(
    ("ways", "best"), [("gptq", 0.5), ("rtn", 0.75), ("gptq,rtn", 0.75), ("rotated,gptq", 0.5), ("rotated", None)]
)
def test_ours_is_beside_the_better_one_of_those_asked_for(schemes: Schemes, ways: str, best: float | None) -> None:
    schemes.options = argparse.Namespace(adapted=False, ways=ways, samples=16)
    row = schemes.row("w8a8")
    assert row["gap"] == pytest.approx(0.15)
    assert row.get("of best") == (None if best is None else pytest.approx(best))
    assert {*ways.split(",")} <= row.keys()
