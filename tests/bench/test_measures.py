"""Every benchmark loads and has help, and a run writes a complete record."""

import json
import re
import shlex
from pathlib import Path

import pytest

from bench import records
from bench.__main__ import main, parser
from bench.measure import MEASURES, Measure, load

MEASURE_FILES = Path(records.__file__).parent / "measures"


def test_every_file_is_a_measure_and_every_measure_has_one() -> None:
    files = {path.stem for path in MEASURE_FILES.glob("*.py") if path.stem != "__init__"}
    assert {name.replace("-", "_") for name in MEASURES} == files


def test_tables_and_plots_have_names_of_their_own() -> None:
    found = [load(name) for name in MEASURES]
    for names in ([key for one in found for key in one.tables], [key for one in found for key in one.plots]):
        assert len(names) == len(set(names))


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser(name, load(name)).parse_args(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"python -m bench {name}" in shown and "--no-save" in shown


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert set(MEASURES) <= listed


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(SystemExit, match="there is no benchmark 'speling'"):
        main(["speling"])


def test_a_run_writes_one_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"so it goes, and so it went. " * 40)
    words = ["sizes", str(text), "--levels", "1,2", "--against", "", "--results", str(tmp_path)]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("file text  raw 1,120  squeeze -1 ")
    record = records.load("sizes", tmp_path)
    assert record and tuple(record) == records.FIELDS
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
    assert record["commands"][0].startswith("python -m bench sizes text --levels 1,2 --against ''")
    assert {"cpu", "cores", "flags", "memory", "os", "load"} <= set(record["machine"])
    assert {"python", "numpy", "numba", "torch"} <= set(record["versions"])
    (row,) = record["rows"]
    assert list(row) == ["file", "raw", "squeeze -1", "squeeze -2"] and 0 < row["squeeze -2"] < 200
    assert len((tmp_path / "sizes.json").read_text().splitlines()) == len(records.FIELDS) + 2  # diffs show a row a line
    assert records.rows("sizes", tmp_path) == records.current("sizes", tmp_path) == record["rows"]


def about(**changed: object) -> records.Record:
    machine = {"cpu": "A", "cores": 2, "flags": ["avx2"], "load": 0.1}
    made = {"date": "2026-01-02", "commit": "0123abcd", "machine": machine, "versions": {}, "commands": ["a"]}
    return made | changed


def test_rows_of_one_commit_and_machine_are_one_record(tmp_path: Path) -> None:
    measure = Measure(lambda options: iter([]), key=("file", "tool"))
    for size in (7, 8):
        for tool in ("a", "b"):
            records.save("x", measure, about(commands=[tool]), {"file": "f", "tool": tool, "bytes": size}, tmp_path)
    record = records.load("x", tmp_path)
    assert record and [(row["tool"], row["bytes"]) for row in record["rows"]] == [("a", 8), ("b", 8)]
    assert record["commands"] == ["a", "b"]


@pytest.mark.parametrize("changed", [{"commit": "89abcdef"}, {"machine": {"cpu": "B", "cores": 2, "flags": []}}])
def test_a_row_of_another_run_begins_a_new_record(
    changed: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = Measure(lambda options: iter([]), key=("tool",))
    records.save("x", measure, about(), {"tool": "a"}, tmp_path)
    records.save("x", measure, about(**changed), {"tool": "b"}, tmp_path)
    assert records.rows("x", tmp_path) == [{"tool": "b"}]
    assert capsys.readouterr().err == "Note: x: results of 0123abcd (2026-01-02) are replaced\n"


def test_no_save_keeps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(1000))
    given = ["--levels", "1", "--against", "", "--no-save", "--json", "--results", str(tmp_path / "new")]
    assert main(["sizes", str(text), *given]) == 0
    assert json.loads(capsys.readouterr().out)["row"]["file"] == "text"
    assert not (tmp_path / "new").exists()


def test_a_corpus_that_is_needed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQUEEZE_CORPUS", raising=False)
    with pytest.raises(SystemExit, match="set SQUEEZE_CORPUS"):
        main(["sizes"])


@pytest.mark.parametrize("path", sorted(records.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_results_say_everything_and_nothing_twice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, record = load(path.stem), records.load(path.stem)
    monkeypatch.delenv("SQUEEZE_CORPUS", raising=False)  # files that a command names need not be in it
    assert record and tuple(record) == records.FIELDS
    assert re.fullmatch(r"[0-9a-f]{8}", record["commit"])
    assert {"cpu", "cores", "flags"} <= set(record["machine"])
    keys = [records.key_of(measure, row) for row in record["rows"]]
    assert len(set(keys)) == len(keys)
    assert all(any(field in row for field in measure.key) for row in record["rows"])
    for command in record["commands"]:
        python, _, package, name, *words = shlex.split(command)
        assert (python, package, name) == ("python", "bench", path.stem)
        parser(path.stem, measure).parse_args(words)


def test_a_caption_is_one_short_line() -> None:
    for path in records.RESULTS.glob("*.json"):
        record = records.load(path.stem)
        assert record
        caption = records.caption(path.stem, record)
        assert len(caption) <= 120 and record["commit"] in caption and record["date"] in caption


def test_a_program_that_is_not_installed_has_no_version() -> None:
    assert "no-such-program" not in records.versions(["no-such-program"])
