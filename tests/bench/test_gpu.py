"""Run `python -m bench gpu` on the CPU, so that it does not fail for trivial reasons on a GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from bench.__main__ import main
from bench.measures import gpu
from bench.shared.gpu_cases import CASES, Case, Inputs


class Fake:
    """The CPU instead of a GPU: small matrices, interpreted kernels (which take float16), a constant time."""

    where, dtype, large = "cpu", torch.float16, False

    def microseconds(self, call) -> float:
        call()
        return 2.0


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_way_of_a_case_gives_the_right_result(case):
    with torch.no_grad():
        rows = list(gpu.measure_case(case, Fake()))
    expected = [way for way in case.ways if way != "torch semi-structured"]
    assert [row["way"] for row in rows] == expected  # semi-structured products need sparse tensor cores
    assert [row["us"] for row in rows] == [2.0] * len(rows)
    assert [row.get("x") for row in rows] == [None] + [1.0] * (len(rows) - 1)
    assert all(("GB/s" in row) == case.in_bytes for row in rows)


def test_names_of_cases_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


def test_without_a_gpu_or_triton_the_command_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="Error: no GPU is available"):
        main(["gpu", "--results", str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(SystemExit, match="Error: triton is not installed"):
        main(["gpu"])


def test_a_run_continues_where_it_was_stopped(tmp_path, monkeypatch):
    measured = []

    def one(case, device):
        measured.append(case.name)
        yield {"case": case.name, "way": "squeeze", "us": 1.0}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "measure_case", one)
    words = ["gpu", "--results", str(tmp_path), "--only"]
    assert main([*words, "2:4"]) == 0
    first = list(measured)
    assert first and all(name.startswith("2:4") for name in first)
    assert main([*words, "2:4|at once"]) == 0
    assert measured == [*first, "a block's coded bf16 weights decoded at once"]


def raises(data):
    raise RuntimeError("no image of this kernel")


def test_a_failing_implementation_is_reported_and_the_others_run(capsys):
    ways = {
        "first": raises,
        "wrong": lambda data: lambda: torch.zeros(2),
        "right": lambda data: lambda: torch.ones(2),
        "another shape": lambda data: lambda: torch.ones(3),
    }
    case = Case("case", lambda device: Inputs(*[torch.ones(2)] * 4), ways)
    assert list(gpu.measure_case(case, Fake())) == [{"case": "case", "way": "right", "us": 2.0}]  # with no x
    assert capsys.readouterr().err.splitlines() == [
        "Note: case, first: failed: RuntimeError: no image of this kernel",
        "Note: case, wrong: failed: ValueError: the result is wrong: its relative error is 1.00e+00",
        "Note: case, another shape: failed: ValueError: expected a result of shape (2,), got (3,)",
    ]
    with pytest.raises(ValueError, match="the result is wrong"):
        gpu.check(torch.zeros(1), torch.full((1,), -0.0), 0)
