"""`squeeze bench`: levels and rivals side by side."""

import json
from pathlib import Path

import pytest

from tests.makers.command import call, fails, run

pytestmark = pytest.mark.usefixtures("in_folder")


def test_bench_compares_levels_and_proves_every_round_trip(note: Path):
    Path("b").write_bytes(b"b" * 1000)
    lines = run("bench", "-1", "-2", note, "b").stdout.splitlines()
    assert [line.split()[0] for line in lines[4:]] == ["note.txt", "note.txt", "b", "b", "total", "total"]
    assert lines[4].split()[1:3] == ["squeeze", "-1"]


def test_bench_of_processes_as_json(note: Path):
    record = json.loads(run("bench", "-1", "--processes", "--runs", "1", "--json", note).stdout)
    run("compress", "-1", note)
    assert record["coded_size"] == Path("note.txt.sqz").stat().st_size
    assert record["error"] is None


def fake_rival(folder: Path, name: str, script: str) -> None:
    folder.mkdir()
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_bench_measures_rivals_as_well(note: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_rival(tmp_path / "bin", "xz", 'for last; do :; done; cat "$last"')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    record = json.loads(run("bench", "-1", "--against", "xz", "--json", note).stdout.splitlines()[1])
    assert (record["tool"], record["coded_size"], record["error"]) == ("xz -9e", 2960, None)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert call("bench", "-1", "--against", "zstd", note).stderr == "Note: zstd is not installed; skipped\n"
    assert fails("bench", "-1", "--against", "arj", note) == (
        "Error: unknown rival 'arj'; choose from xz, zstd, brotli, bzip2, zpaq, lpaq1, 7z\n"
    )


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo nonsense", "the round trip changed the bytes"),
        ("echo broken >&2; exit 3", "xz exited with 3: broken"),
    ],
)
def test_bench_reports_a_rival_that_fails(
    note: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: str
):
    fake_rival(tmp_path / "bin", "xz", script)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    assert fails("bench", "-1", "--against", "xz", note) == f"Error: note.txt: xz -9e: {error}\n"


def test_memory_is_that_of_the_level_or_the_rival_that_takes_most():
    from squeeze.recipes.measure import benchmark

    assert benchmark.memory([1], [], 1) < benchmark.memory([6, 1], [], 1)
    assert benchmark.memory([], [], 1) == benchmark.memory([3], [], 1)
    assert benchmark.memory([1], ["xz"], 1) == 1 << 30
