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
from torch.nn import functional

from bench import machine
from bench.__main__ import main
from bench.measures import gpu, gpu_files, gpu_model, w4a16
from bench.shared import alone, gpu_rivals
from bench.shared.contest import Case, Contender, check, contend

pytest.importorskip("triton", reason="triton is not installed")

from bench.shared import gpu_cases
from bench.shared.gpu_cases import CASES
from squeeze.kernels.roofline import GPUS
from squeeze.lm import devices
from tests.makers import tiny_models
from tests.makers.inputs import python_text

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
    monkeypatch.setattr(gpu_cases, "constants_of", lambda device: GPUS["h100"].constants())
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
    assert ("advised x" in rows["squeeze"]) == case.name.startswith("2:4")
    ran = [row["kernel"] for row in rows.values() if "kernel" in row]
    assert len(ran) == (2 if case.name.startswith("w4a16") else 0)
    if ran:
        assert ran[0].startswith(("slices", "blocks")) and ran[1].startswith("panels")


def test_names_of_rows_are_their_own():
    names = [(case.name, one.name) for case in CASES for one in case.contenders]
    assert len(set(names)) == len(names)
    assert {"vllm", "bitsandbytes", "nvidia.nvcomp", "dfloat11", "flash_attn"} == RIVALS


def options(tmp_path: Path, **given) -> argparse.Namespace:
    return argparse.Namespace(
        **{"only": "", "again": False, "together": False, "seconds": 60.0, "results": tmp_path} | given
    )


def printed(capsys) -> list[dict]:
    return [json.loads(line)["row"] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "name, count", [("gpu", sum(len(case.contenders) for case in CASES)), ("gpu-model", 1), ("gpu-files", 1)]
)
def test_without_a_gpu_every_row_says_so(name, count, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([name, "--json", "--results", str(tmp_path)]) == 0
    rows = printed(capsys)
    assert len(rows) == count and {(row["status"], row["device"]) for row in rows} == {("no GPU", None)}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gpu", "gpu-model", "gpu-files"])
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
    words = ["gpu", "--only", "4-bit", "--json", "--results", str(tmp_path)]
    assert main(words) == 0
    measured, before = [(way, "measured") for way in ("torch", "squeeze")], "measured before"
    assert [(row["way"], row["status"]) for row in printed(capsys)] == measured
    path = tmp_path / "gpu.jsonl"
    text = path.read_text()
    assert main(words) == 0 and [row["status"] for row in printed(capsys)] == [before] * 2
    assert path.read_text() == text

    def ways(**given) -> list[tuple[str, str]]:
        return [(row["way"], row["status"]) for row in gpu.rows(options(tmp_path, only="4-bit", **given))]

    assert ways(again=True) == measured
    path.write_text(text.splitlines(keepends=True)[0])
    assert ways() == [("torch", before), *measured]  # torch's once more, to compare with
    kept = [json.loads(line) for line in text.splitlines()]
    path.write_text("".join(f"{json.dumps(record | {'commit': 'another'})}\n" for record in kept))
    assert machine.commit() != "another" and ways() == measured


def test_a_rival_that_is_not_there_begins_no_process(tmp_path, faked, monkeypatch):
    monkeypatch.setattr("bench.shared.contest.find_spec", lambda name: None)
    begun = []
    monkeypatch.setattr(gpu, "apart", lambda case, wanted, *rest: begun.append(wanted) or ())
    found = [(row["way"], row["status"]) for row in gpu.rows(options(tmp_path, only="w4a16, 4 rows"))]
    assert found == [("Marlin", "not installed"), ("bitsandbytes NF4", "not installed")]
    assert begun == [["torch bf16", "squeeze", "squeeze, reshuffled"]]


@pytest.mark.parametrize("size", [128, 16])
def test_products_with_codes_in_both_orders(size, monkeypatch):
    """Groups of 16 cannot be reshuffled."""
    monkeypatch.setattr(w4a16, "graph_time", lambda calls: float(len([call() for call in calls]) + 1))
    monkeypatch.setattr(w4a16, "_APART", 1)
    row = w4a16.on_gpu(w4a16.draw(64, 256, 4, size, True), 2, False, "cpu")
    assert (row["us"], row["float16 us"], row["x float16"], row["order"]) == (2.0, 2.0, 1.0, "as stored")
    both = {key: value for key, value in row.items() if key.endswith(("as stored", "reshuffled"))}
    if size == 128:
        assert len(both) == 6 and both["kernel as stored"] == row["kernel"]
        assert both["kernel reshuffled"].startswith("panels")
    else:
        assert not both and row["kernel"].endswith("splits")


TWO = Case("two", lambda device: None, lambda data: torch.ones(1), (Contender("a", lambda data: []),) * 2)


def breaks(name, wanted):
    yield {"case": name, "way": "a", "status": "measured"}
    os._exit(7)


def stops(name, wanted):
    yield {"case": name, "way": "a", "status": "measured"}
    os._exit(0)


def hangs(name, wanted):
    yield {"case": name, "way": "a", "status": "measured"}
    time.sleep(600)


@pytest.mark.parametrize(
    "work, seconds, reason",
    [
        (breaks, 60, "the process ended with 7"),
        (stops, 60, "the process ended with 0"),
        (hangs, 0.5, "took more than 0.5 s"),
    ],
    ids=["breaks", "stops", "hangs"],
)
def test_a_case_that_breaks_or_hangs_ends_alone(work, seconds, reason, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_context", lambda way: _fork())
    rows = list(gpu.apart(TWO, ["a", "b"], seconds, work))
    assert [(row["way"], row["status"]) for row in rows] == [("a", "measured"), ("b", f"failed: {reason}")]


def _fork():
    return multiprocessing.context.ForkContext()


def test_a_row_that_fails_is_an_error_as_well(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_context", lambda way: _fork())
    about, options = {"lanes": 7, "device": "a GPU"}, SimpleNamespace(seconds=60, again=True)
    rows = alone.row_of("gpu-files", about, lambda options: os._exit(3), options)
    assert next(rows) == about | {"status": "failed: the process ended with 3"}
    with pytest.raises(SystemExit, match=r"^Error: failed: the process ended with 3$"):
        next(rows)
    rows = alone.row_of("gpu-files", about, lambda options: iter([{"status": "measured"}]), options)
    assert list(rows) == [about | {"status": "measured"}]


@pytest.fixture
def here(monkeypatch):
    """What is measured in a process of its own is measured in this one, on the CPU."""
    monkeypatch.setattr(alone, "measured", lambda work, seconds, *given: work(*given))


def test_a_packed_model(tmp_path, here, monkeypatch, capsys):
    words = ["gpu-model", "--blocks", "1", "--width", "128", "--tokens", "3", "--device", "cpu"]
    words += ["--json", "--results", str(tmp_path)]
    assert main(words) == 0
    (row,) = printed(capsys)
    assert (row["status"], row["device"], row["blocks"], row["tokens"]) == ("measured", "cpu", 1, 3)
    assert row["x"] > 0 and row["parameters"] > 2 * 32000 * 128
    assert main(words) == 0 and printed(capsys)[0]["status"] == "measured before"
    assert len((tmp_path / "gpu-model.jsonl").read_text().splitlines()) == 1
    monkeypatch.setattr(gpu_model, "measured", lambda options: iter([{"status": "measured"}]))
    words[words.index("--tokens") + 1] = "4"
    assert main(words) == 0 and printed(capsys)[0]["status"] == "measured"  # it is another row
    assert len((tmp_path / "gpu-model.jsonl").read_text().splitlines()) == 2


def test_files(tmp_path, here, faked, monkeypatch, capsys):
    monkeypatch.setattr(devices, "torch_devices", lambda name: [] if name == "cpu" else ["cpu"])
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "cache"))
    folder = tiny_models.write_folder(tmp_path / "tiny", tiny_models.byte_level())
    (tmp_path / "text").write_bytes(python_text(4_000))
    words = ["gpu-files", "--model", str(folder), "--file", str(tmp_path / "text"), "--bytes", "3000", "--lanes", "6"]
    words += ["--on-cpu", "900", "--json", "--results", str(tmp_path)]
    assert main(words) == 0
    (row,) = printed(capsys)
    assert (row["status"], row["device"], row["of"], row["lanes"]) == ("measured", "a fake", 3000, 6)
    assert row["decoded on a CPU"] == 900 and 0 < row["size"] < 3000 and row["text"] == "text"
    assert main(words) == 0 and printed(capsys)[0]["status"] == "measured before"
    monkeypatch.setattr(gpu_files, "measured", lambda options: iter([{"status": "measured"}]))
    for option, other in (("--file", str(tmp_path / "other")), ("--on-cpu", "800"), ("--threads", "1")):
        asked = [*words, option, other]
        assert main(asked) == 0 and printed(capsys)[0]["status"] == "measured"  # it is another row
        assert main(asked) == 0 and printed(capsys)[0]["status"] == "measured before"


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


@pytest.mark.parametrize("fails", [False, True])
def test_advice_is_asked_for_behind_a_time_and_may_fail(fails):
    asked = []

    def advised(data):
        asked.append("advice")
        if fails:
            raise RuntimeError("no peaks")
        return {"b": 3.0}

    def called():
        asked.append("call")
        return torch.ones(2)

    ways = tuple(Contender(name, lambda data: [called]) for name in "abc")
    case = Case("case", lambda device: None, lambda data: torch.ones(2), ways, advised=advised)
    rows = list(contend(case, "abc", Fake()))
    others = ["failed: RuntimeError: no peaks" if fails else "measured"] * 2
    assert [row["status"] for row in rows] == ["measured", *others]
    assert [row.get("advised x") for row in rows] == [None, None if fails else 3.0, None]
    assert asked == ["call"] * 4 + ["advice"] + ["call"] * 2 + ["advice"] * fails


def test_bitsandbytes_multiplies_by_copies_of_the_weight(monkeypatch):
    """By a stand-in with its names."""
    library = ModuleType("bitsandbytes")
    library.functional = SimpleNamespace(quantize_4bit=lambda weight, quant_type: (weight.T, quant_type))
    library.matmul_4bit = lambda x, weight, quant_state: x @ weight.T if quant_state == "nf4" else None
    monkeypatch.setitem(sys.modules, "bitsandbytes", library)
    x, dense = torch.randn(2, 4), torch.randn(3, 4)
    calls = gpu_rivals.bitsandbytes(x, dense, 2)
    assert len(calls) == 2 and torch.allclose(calls[1](), x @ dense.T)


def test_flash_attention_is_asked_for_a_step(monkeypatch):
    """By a stand-in with its name, which has heads behind tokens."""
    library, (batch, groups, tokens, size) = ModuleType("flash_attn"), (2, 3, 5, 4)

    def step(q, k, v, softmax_scale):
        assert (q.shape, k.shape) == ((batch, 1, 2 * groups, size), (batch, tokens, groups, size))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, scale=softmax_scale, enable_gqa=True).transpose(1, 2)

    library.flash_attn_with_kvcache = step
    monkeypatch.setitem(sys.modules, "flash_attn", library)
    query, keys = torch.randn(batch, 2 * groups, 1, size), torch.randn(batch, groups, tokens, size)
    (call,) = gpu_rivals.flash_attention(query, keys, keys + 1, 0.3)
    wanted = functional.scaled_dot_product_attention(query, keys, keys + 1, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(call(), wanted)
