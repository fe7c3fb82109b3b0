"""Tables and plots of the docs are those of the results, and a figure without a command fails."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from bench import docs, plots, records
from bench.docs import ROOT, DocsError

PAGE = ROOT / "docs" / "benchmarks.md"


def of(record: dict[str, object] | None = None, **row: object) -> str:
    whole = {
        "date": "2026-01-02",
        "commit": "0123abcd",
        "machine": {"cpu": "A Processor", "cores": 2, "flags": ["avx2"]},
        "versions": {},
        "command": "python -m bench memory --levels 1",
        "row": {"file": "a", "raw": 9, "level": 1, "threads": 1, "compress": 1 << 20, "decompress": 3 << 20, **row},
    }
    return json.dumps({**whole, **(record or {})}) + "\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "memory.jsonl").write_text(of())
    return folder


def test_committed_pages_are_what_the_results_make_of_them() -> None:
    for path in docs.pages(ROOT):
        assert docs.filled(path.read_text(), path, ROOT) == path.read_text(), f"run `python -m bench docs`: {path.name}"
    docs.check_results(records.RESULTS)


@pytest.mark.parametrize("name", plots.PLOTS)
def test_committed_plots_are_what_is_drawn(name: str) -> None:
    pytest.importorskip("matplotlib")
    assert (ROOT / "docs" / "plots" / f"{name}.svg").read_bytes() == plots.svg(name)


def test_no_table_of_the_page_is_typed() -> None:
    made = re.sub(r"<!-- (table|rows): .*?<!-- end -->", "", PAGE.read_text(), flags=re.DOTALL)
    assert "|--" not in made


def test_every_plot_is_shown() -> None:
    pages = "".join(page.read_text() for page in docs.pages(ROOT))
    shown = set(re.findall(r"<!-- plot: (\S+) -->", pages))
    assert shown == set(plots.PLOTS)
    assert {path.stem for path in (ROOT / "docs" / "plots").glob("*.svg")} == shown


def test_a_table_says_how_it_was_measured(results: Path) -> None:
    with (results / "memory.jsonl").open("a") as file:
        file.write(of({"carried": True, "date": "2025-12-31", "machine": {"cpu": "An Old One", "flags": []}}, level=2))
    assert docs.table("memory", results=results).splitlines() == [
        "| file | level | compressing, MiB | decompressing, MiB |",
        "|---|--:|--:|--:|",
        "| a | -1 | 1 | 3 |",
        "| a | -2 | 1 | 3 |",
        "",
        "*Measured on 2 January 2026 (0123abcd), A with AVX2, 2 cores:* `python -m bench memory --levels 1`  ",
        "*Carried over from the table of 31 December 2025 (0123abcd), An Old One:* `python -m bench memory --levels 1`",
    ]


def test_some_rows_of_a_table_in_the_order_in_which_they_are_named(results: Path) -> None:
    with (results / "memory.jsonl").open("a") as file:
        file.write(of(file="b") + of(file="c"))
    made = docs.filled("<!-- table: memory | c | a -->\n<!-- end -->", PAGE, ROOT, results)
    assert made.splitlines()[4:-2] == [
        "| c | -1 | 1 | 3 |",
        "| a | -1 | 1 | 3 |",
        "",
        "*Measured on 2 January 2026 (0123abcd), A with AVX2, 2 cores.*",
    ]


def test_rows_stand_without_what_is_said_of_them(results: Path) -> None:
    made = docs.filled("<!-- rows: memory -->\n<!-- end -->", PAGE, ROOT, results)
    assert made.splitlines()[-3:] == ["| a | -1 | 1 | 3 |", "", "<!-- end -->"]


def test_what_stands_between_markers_is_replaced(results: Path) -> None:
    text = "before\n<!-- table: memory -->\nold\n<!-- end -->\nafter\n"
    made = docs.filled(text, PAGE, ROOT, results)
    assert "old" not in made
    assert made.startswith("before\n<!-- table: memory -->\n\n| file |")
    assert made.endswith("\n\n<!-- end -->\nafter\n")
    assert docs.filled(made, PAGE, ROOT, results) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table: no-such -->\n<!-- end -->", "no benchmark has a table 'no-such'"),
        ("<!-- plot: no-such -->\n<!-- end -->", "there is no plot 'no-such'"),
        ("<!-- table: kv -->\n<!-- end -->", "table kv: no results of `python -m bench kv`"),
        ("<!-- table: memory | no-such -->\n<!-- end -->", "table memory: there is no row 'no-such'"),
        ("<!-- table: memory -->\n", "a marker has no <!-- end -->"),
    ],
)
def test_a_figure_that_cannot_be_made_fails(text: str, message: str, results: Path) -> None:
    with pytest.raises(DocsError, match=re.escape(message)):
        docs.filled(text, PAGE, ROOT, results)


def test_files_that_a_command_names_need_not_be_in_the_corpus(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (results / "memory.jsonl").write_text(of({"command": "python -m bench memory elsewhere.txt"}))
    monkeypatch.setenv("SQUEEZE_CORPUS", str(tmp_path))
    docs.check_results(results)
    assert os.environ["SQUEEZE_CORPUS"] == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("gone", {}, "gone.jsonl: there is no benchmark of that name"),
        ("memory", {"command": "python bench/memory.py"}, "there is no such command any more"),
        ("memory", {"command": "python -m bench memory --speling 3"}, "there is no such command any more"),
        ("memory", {"command": "python -m bench speed"}, "there is no such command any more"),
    ],
)
def test_a_result_without_a_command_fails(
    name: str, record: dict[str, object], message: str, results: Path, tmp_path: Path
) -> None:
    (results / f"{name}.jsonl").write_text(of(record))
    with pytest.raises(DocsError, match=re.escape(message)):
        docs.update(tmp_path, results, write=False)


def test_a_benchmark_whose_module_is_gone_fails(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DocsError, match=re.escape("memory: bench.measures.memory is gone")):
        docs.check_results(results)


def test_a_changed_page_is_found_and_written(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "PLOTS", {})
    shutil.copyfile(ROOT / "README.md", tmp_path / "README.md")
    page = tmp_path / "docs" / "how" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("<!-- table: memory -->\n<!-- end -->\n")
    (tmp_path / "README.md").write_text("nothing\n")
    assert docs.update(tmp_path, results, write=False) == [page]
    assert docs.update(tmp_path, results, write=True) == [page]
    assert docs.update(tmp_path, results, write=False) == []


def test_plots_are_drawn_alike_every_time() -> None:
    pytest.importorskip("matplotlib")
    assert plots.svg("kv") == plots.svg("kv")
