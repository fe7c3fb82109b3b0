"""A benchmark that runs writes records with all that they must say."""

import json
import re
from pathlib import Path

import pytest

from bench import machine, records
from bench.__main__ import main
from bench.registry import ENTRIES

RESULTS = Path(__file__).parents[2] / "bench" / "results"


def test_a_run_writes_a_record_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"so it goes, and so it went. " * 40)
    assert main(["sizes", str(text), "--levels", "1", "--against", "", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("file text  raw 1,120  tool squeeze -1  bytes ")
    (record,) = records.load("sizes", tmp_path)
    assert set(record) == set(records.FIELDS)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
    assert record["command"].startswith("python -m bench sizes text --levels 1 --against ''")
    assert {"cpu", "cores", "flags", "memory", "os", "load"} <= set(record["machine"])
    assert {"python", "numpy", "numba", "torch"} <= set(record["versions"])
    assert record["row"] == {"file": "text", "raw": 1120, "tool": "squeeze -1", "bytes": record["row"]["bytes"]}
    assert 0 < record["row"]["bytes"] < 200


def test_a_run_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    entry = ENTRIES["sizes"]
    for size in (7, 8):
        for tool in ("a", "b"):
            records.save("sizes", entry, {"row": {"file": "x", "tool": tool, "bytes": size}}, tmp_path)
    kept = [(record["row"]["tool"], record["row"]["bytes"]) for record in records.load("sizes", tmp_path)]
    assert kept == [("a", 8), ("b", 8)]


def test_no_save_keeps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(1000))
    given = ["--levels", "1", "--against", "", "--no-save", "--json", "--results", str(tmp_path / "new")]
    assert main(["sizes", str(text), *given]) == 0
    assert json.loads(capsys.readouterr().out)["row"]["tool"] == "squeeze -1"
    assert not (tmp_path / "new").exists()


def test_a_corpus_that_is_needed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQUEEZE_CORPUS", raising=False)
    with pytest.raises(SystemExit, match="set SQUEEZE_CORPUS"):
        main(["sizes"])


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_committed_results_say_all_that_they_must(path: Path) -> None:
    entry, found = ENTRIES[path.stem], records.load(path.stem)
    for record in found:
        assert set(record) - {"carried"} == set(records.FIELDS)
        assert re.fullmatch(r"[0-9a-f]{8}", record["commit"])
        assert {"cpu", "flags"} <= set(record["machine"])
        assert all(field in record["row"] for field in entry.key)
    assert len({records.key_of(entry, record) for record in found}) == len(found)


def test_a_program_that_is_not_installed_has_no_version() -> None:
    assert "no-such-program" not in machine.versions(["no-such-program"])
