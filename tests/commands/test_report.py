"""`squeeze report`, and --report of other commands."""

import json
from pathlib import Path

import pytest

from tests.makers import reports
from tests.makers.checkpoints import tensors, write
from tests.makers.command import call, fails, names, run, usage_error

pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")
pytestmark = pytest.mark.usefixtures("in_folder")


def page(name: str) -> str:
    text = Path(name).read_text()
    assert text.startswith("<!DOCTYPE html>")
    return text


def test_a_page_compares_runs():
    for name, bits in (("a", 4), ("b", 8)):
        Path(f"{name}.json").write_text(json.dumps(reports.model(bits=bits, blocks=2)))
    assert run("report", "a.json", "b.json").stdout == "report.html: open it in a browser\n"
    assert "2 runs compared" in page("report.html")
    assert "small-4bit (a)" in page("report.html")
    run("report", "-q", "a.json", "-o", "report.html")  # a page may be replaced
    assert "<h1>small-4bit</h1>" in page("report.html")


def test_refuses_pages_and_runs_that_cannot_be_used():
    Path("a.json").write_text("{}")
    Path("note.txt").write_text("mine")
    assert fails("report", "a.json") == "Error: a.json: is not a report of squeeze, or damaged\n"
    assert fails("report", "b.json") == "Error: b.json: No such file or directory\n"
    assert fails("report", "a.json", "-o", "note.txt") == (
        "Error: note.txt exists and is not a page of squeeze: name another file\n"
    )
    assert fails("report", "a.json", "-o", "no/page.html") == "Error: no/page.html: the folder no does not exist\n"
    assert fails("inspect", "a.json", "--report", "note.txt").startswith("Error: note.txt exists")
    assert usage_error("pack", "--follow", "--report", "p.html", "x", "y") == (
        "Error: --report shows one checkpoint: leave out --follow"
    )
    assert names() == ["a.json", "note.txt"]


def test_a_command_without_the_extra_says_so(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    said = fails("bench", "-1", "--report", "p.html", "x")
    assert said == "Error: this needs vl_convert, which is not installed: pip install 'squeeze-neural[report]'\n"


def test_pack_and_inspect_write_a_page():
    write("a.safetensors", tensors())
    record = json.loads(run("pack", "a.safetensors", "b.safetensors", "--json", "--report", "pack.html").stdout)
    entries = json.loads(run("inspect", "b.safetensors", "--json", "--report", "inspect.html").stdout)["tensors"]
    keys = ("name", "dtype", "shape", "coding", "raw", "coded")
    assert record["tensors"] == [{key: entry[key] for key in keys} for entry in entries]
    assert "b.safetensors" in page("pack.html") and "tensors." in page("inspect.html")
    Path("pack.json").write_text(json.dumps(record))
    run("report", "-q", "pack.json")
    assert page("report.html") == page("pack.html")
    restored = json.loads(run("unpack", "b.safetensors", "c.safetensors", "--json", "--report", "unpack.html").stdout)
    run("verify", "b.safetensors", "--report", "verify.html")
    assert "tensors" not in restored
    sizes = f"{record['raw_size']:,} bytes {{}} {record['coded_size']:,}"
    assert sizes.format("are restored from") in page("unpack.html")
    assert sizes.format("were verified in") in page("verify.html")
    Path("plain.bin").write_bytes(b"no tensors")
    assert "plain bytes" in call("pack", "plain.bin", "coded.bin", "--report", "plain.html").stderr
    assert "in 0 tensors." in page("plain.html")


def test_bench_writes_a_page(note: Path):
    run("bench", "-1", "-2", note, "--report", "bench.html")
    assert "1 file through 2 tools" in page("bench.html")
