"""Pages and plots equal what the records give, and a table or row that does not exist is an error."""

import json
import re
import shutil
from pathlib import Path

import pytest

from bench import docs
from bench.docs import DocsError

ROOT = Path(docs.__file__).parents[1]
PAGE = ROOT / "docs" / "how" / "page.md"
ROW = {"file": "bash.elf", "transforms": "encode", "bytes": 1200}


def write(folder: Path, name: str = "programs", rows: list[dict[str, object]] | None = None, **changed: object) -> None:
    machine = {"cpu": "A(R) Thing Processor @ 2 GHz", "cores": 2, "flags": ["avx2", "avx512f"]}
    record = {"date": "2026-01-02", "commit": "0123abcd", "machine": machine, "versions": {}}
    record |= {"commands": ["python -m bench programs bash.elf"], "rows": rows or [ROW], **changed}
    (folder / f"{name}.json").write_text(json.dumps(record))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    write(folder)
    return folder


def test_the_docs_equal_what_the_records_give() -> None:
    pytest.importorskip("matplotlib")
    assert docs.update(ROOT, docs.RESULTS, write=False) == []


def test_every_table_is_shown() -> None:
    pages = "".join(page.read_text() for page in docs.pages(ROOT))
    shown = set(re.findall(r"<!-- (?:table|rows): ([\w-]+)", pages))
    assert shown == {name for measure in docs.measures().values() for name in measure.tables}


def test_every_plot_with_results_is_shown() -> None:
    pages = "".join(page.read_text() for page in docs.pages(ROOT))
    shown = set(re.findall(r"<!-- plot: (\S+) -->", pages))
    assert shown == {path.stem for path in (ROOT / "docs" / "plots").glob("*.svg")}
    assert shown <= set(docs.all_plots())


def test_a_caption_is_below_a_table(results: Path) -> None:
    assert docs.table("programs", results=results).splitlines() == [
        "| transforms | bash.elf |",
        "|---|--:|",
        "| encode | 1,200 |",
        "",
        "*Measured 2026-01-02, A Thing (AVX-512, 2 cores), squeeze 0123abcd: `python -m bench programs`*",
    ]


def test_a_table_without_results_names_its_benchmark(results: Path) -> None:
    assert docs.table("kv", results=results) == "*Not measured yet: `python -m bench kv`*"


def test_some_rows_of_a_table_in_the_order_in_which_they_are_named(results: Path) -> None:
    write(results, rows=[ROW | {"transforms": name} for name in "abc"])
    made = docs.fill("<!-- table: programs | c | a -->\n<!-- end -->", PAGE, ROOT, results)
    assert made.splitlines()[4:6] == ["| c | 1,200 |", "| a | 1,200 |"]


def test_rows_have_no_caption(results: Path) -> None:
    made = docs.fill("<!-- rows: programs -->\n<!-- end -->", PAGE, ROOT, results)
    assert made.splitlines()[-3:] == ["| encode | 1,200 |", "", "<!-- end -->"]


def test_text_between_markers_is_replaced(results: Path) -> None:
    text = "before\n<!-- table: programs -->\nold\n<!-- end -->\nafter\n"
    made = docs.fill(text, PAGE, ROOT, results)
    assert "old" not in made
    assert made.startswith("before\n<!-- table: programs -->\n\n| transforms |")
    assert made.endswith("\n\n<!-- end -->\nafter\n")
    assert docs.fill(made, PAGE, ROOT, results) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table: no-such -->\n<!-- end -->", "no benchmark has a table 'no-such'"),
        ("<!-- plot: no-such -->\n<!-- end -->", "there is no plot 'no-such'"),
        ("<!-- table: programs | no-such -->\n<!-- end -->", "table programs: there is no row 'no-such'"),
        ("<!-- table: programs -->\n", "a marker has no <!-- end -->"),
    ],
)
def test_a_table_or_plot_that_does_not_exist_is_an_error(text: str, message: str, results: Path) -> None:
    with pytest.raises(DocsError, match=re.escape(message)):
        docs.fill(text, PAGE, ROOT, results)


def test_a_changed_page_is_found_and_written(results: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing\n")
    page = tmp_path / "docs" / "how" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("<!-- table: programs -->\n<!-- end -->\n")
    assert docs.update(tmp_path, results, write=False) == [page]
    assert docs.update(tmp_path, results, write=True) == [page]
    assert docs.update(tmp_path, results, write=False) == []


def test_plots_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shutil.copyfile(ROOT / "README.md", tmp_path / "README.md")
    drawn = list(docs.drawings(tmp_path, docs.RESULTS, write=True))
    assert {path.stem for path in drawn} == {path.stem for path in (ROOT / "docs" / "plots").glob("*.svg")}
    assert all(path.read_bytes() == (ROOT / "docs" / "plots" / path.name).read_bytes() for path in drawn)
