"""`python -m bench gpu` on a device that is not there, so that it does not fail for small reasons on one that is."""

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from bench import machine
from bench.__main__ import main
from bench.measures import gpu
from bench.shared.contest import Case, Contender, check, contend

pytest.importorskip("triton", reason="triton is not installed")

from bench.shared.gpu_cases import CASES

RIVALS = {one.package for case in CASES for one in case.contenders if one.package}


class Fake:
    """The CPU in place of a GPU: small matrices, kernels interpreted (which takes float16), a time that is no time."""

    where, dtype, apart, large = "cpu", torch.float16, 1, False

    def name(self) -> str:
        return "a fake"

    def microseconds(self, calls) -> float:
        for call in calls:
            call()
        return 2.0


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_way_of_a_case_gives_the_right_result(case, monkeypatch):
    monkeypatch.setattr("bench.shared.contest.find_spec", lambda name: None)
    names = [one.name for one in case.contenders]
    with torch.no_grad():
        rows = {row["way"]: row for row in contend(case, names, Fake())}
    assert list(rows) == names
    for one in case.contenders:
        row = rows[one.name]
        if one.name == "torch semi-structured":  # which needs sparse tensor cores
            assert row["status"].startswith("failed: ")
        elif one.package:
            assert row["status"] == "not installed"
        else:
            assert row["status"] == "measured", row
            assert (row["us"], row["device"]) == (2.0, "a fake")
    assert rows["squeeze"]["x"] == 1.0 or names[0] == "squeeze"


def test_names_of_rows_are_their_own():
    names = [(case.name, one.name) for case in CASES for one in case.contenders]
    assert len(set(names)) == len(names)
    assert {"vllm", "bitsandbytes", "nvidia.nvcomp", "dfloat11"} == RIVALS


def options(tmp_path: Path, **given) -> argparse.Namespace:
    return argparse.Namespace(
        **{"only": "", "again": False, "together": False, "seconds": 60.0, "results": tmp_path} | given
    )


def test_without_a_gpu_every_row_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["gpu", "--json", "--results", str(tmp_path)]) == 0
    rows = [json.loads(line)["row"] for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == sum(len(case.contenders) for case in CASES)
    assert {row["status"] for row in rows} == {"no GPU"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gpu", "proof"])
def test_without_triton_the_command_says_so(name, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(SystemExit, match="Error: triton is not installed"):
        main([name])


@pytest.fixture
def faked(monkeypatch):
    """A GPU whose cases run here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a fake")
    monkeypatch.setattr(gpu, "apart", lambda case, wanted, seconds, work: contend(case, wanted, Fake()))


def test_a_run_goes_on_where_it_was_stopped(tmp_path, faked, capsys):
    words = ["gpu", "--only", "expanded", "--json", "--results", str(tmp_path)]
    assert main(words) == 0
    rows = [json.loads(line)["row"] for line in capsys.readouterr().out.splitlines()]
    assert [row["status"] for row in rows] == ["measured", "measured"]
    assert list(gpu.rows(options(tmp_path, only="expanded"))) == []
    assert [row["way"] for row in gpu.rows(options(tmp_path, only="expanded", again=True))] == ["torch", "squeeze"]
    path = tmp_path / "gpu.jsonl"
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(record | {'row': record['row']})}\n" for record in kept[:1]))
    assert [row["way"] for row in gpu.rows(options(tmp_path, only="expanded"))] == ["torch", "squeeze"]
    path.write_text("".join(f"{json.dumps(record | {'commit': 'another'})}\n" for record in kept))
    assert machine.commit() != "another" and len(list(gpu.rows(options(tmp_path, only="expanded")))) == 2


TWO = Case("two", lambda device: None, lambda data: torch.ones(1), (Contender("a", lambda data: []),) * 2)


def answers(sending, name, wanted):
    sending.send({"case": name, "way": "a", "status": "measured"})


def breaks(sending, name, wanted):
    answers(sending, name, wanted)
    os._exit(7)


def hangs(sending, name, wanted):
    answers(sending, name, wanted)
    time.sleep(600)


@pytest.mark.parametrize(
    "work, seconds, reason",
    [(breaks, 60, "the process ended with 7"), (hangs, 0.5, "took more than 0.5 s")],
    ids=["breaks", "hangs"],
)
def test_a_case_that_breaks_or_hangs_ends_alone(work, seconds, reason, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_context", lambda way: _fork())
    rows = list(gpu.apart(TWO, ["a", "b"], seconds, work))
    assert [(row["way"], row["status"]) for row in rows] == [("a", "measured"), ("b", f"failed: {reason}")]


def _fork():
    return multiprocessing.context.ForkContext()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_process_of_its_own_starts_and_says_what_is_missing(capfd):
    case = CASES[0]
    (row,) = gpu.apart(case, ["squeeze"], 100, gpu._contend)
    assert (row["case"], row["status"]) == (case.name, "failed: the process ended with 1")
    assert "get_device_name" in capfd.readouterr().err  # so it came to the case


def raises(data):
    raise RuntimeError("no image of this kernel")


def test_a_way_that_fails_says_so_and_the_others_go_on():
    ways = (
        Contender("first", raises),
        Contender("wrong", lambda data: [lambda: torch.zeros(2)]),
        Contender("right", lambda data: [lambda: torch.ones(2)]),
        Contender("another shape", lambda data: [lambda: torch.ones(3)]),
    )
    case = Case("case", lambda device: None, lambda data: torch.ones(2), ways)
    rows = list(contend(case, [one.name for one in ways], Fake()))
    assert [row["status"] for row in rows] == [
        "failed: RuntimeError: no image of this kernel",
        "failed: ValueError: the result is wrong: it is 1.00e+00 of the product away from the reference's",
        "measured",
        "failed: ValueError: the result has the shape (3,) in place of (2,)",
    ]
    assert "x" not in rows[2]  # there is nothing to compare with
    with pytest.raises(ValueError, match="the result is wrong"):
        check(torch.zeros(1), torch.full((1,), -0.0), 0)


def test_bitsandbytes_multiplies_by_copies_of_the_weight(monkeypatch):
    """By a stand-in with its names."""
    from bench.shared import gpu_rivals

    library = ModuleType("bitsandbytes")
    library.functional = SimpleNamespace(quantize_4bit=lambda weight, quant_type: (weight.T, quant_type))
    library.matmul_4bit = lambda x, weight, quant_state: x @ weight.T if quant_state == "nf4" else None
    monkeypatch.setitem(sys.modules, "bitsandbytes", library)
    x, dense = torch.randn(2, 4), torch.randn(3, 4)
    calls = gpu_rivals.bitsandbytes(x, dense, 2)
    assert len(calls) == 2 and torch.allclose(calls[1](), x @ dense.T)
