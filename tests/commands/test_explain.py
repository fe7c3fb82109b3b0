"""`squeeze explain`: a page next to the file, JSON, and what is refused before anything is computed."""

import json
from pathlib import Path

import pytest

from tests.makers.command import TEXT, fails, names, run, usage_error

pytestmark = pytest.mark.usefixtures("in_folder")


def test_a_page_is_written_next_to_the_file(note: Path):
    said = run("explain", "-1", note).stdout
    assert said.startswith(f"note.txt: {len(TEXT):,} bytes, ")
    assert said.endswith("note.txt.html: open it in a browser\n")
    assert Path("note.txt.html").read_text().startswith("<!DOCTYPE html>")
    assert "note.txt.html" in fails("explain", "-1", note)
    run("explain", "-1", "-q", "-f", note)
    run("explain", "-2", "-q", "-o", "page.html", "--against", "-1", "--range", "100:200", note)
    assert names() == ["note.txt", "note.txt.html", "page.html"]


def test_json_needs_no_page(note: Path):
    record = json.loads(run("explain", "--json", "-1", "--range", "10:20", note).stdout)
    assert names() == ["note.txt"]
    assert (record["file"], record["level"], record["range"]) == ("note.txt", 1, [10, 20])
    assert record["units"]["start"] == list(range(10, 20))


def test_a_compressed_file_is_explained_as_it_was_written(packed: Path):
    record = json.loads(run("explain", "--json", packed).stdout)
    assert (record["level"], record["coded_size"]) == (1, packed.stat().st_size)
    assert fails("explain", "--json", "-3", packed) == (
        "Error: a .sqz file says how it was written: leave out the level, lanes, window, backend and parse\n"
    )


def test_refuses_wrong_inputs_before_it_computes(note: Path):
    assert fails("explain", "nothing") == "Error: nothing: No such file or directory\n"
    assert fails("explain", "-1", "-o", note, "-f", note) == "Error: input and output are the same file\n"
    assert usage_error("explain", "-1", "--against", "-12", note) == "Error: the level must be from 1 to 9, got 12"
    assert usage_error("explain", "-1", "--against", "six", note) == (
        "Error: Invalid value for '--against': 'six' is not a level such as -6"
    )
    assert usage_error("explain", "--against-model", "tiny", note) == (
        "Error: level 3 uses no language model: compare models at levels 7 to 9"
    )
    assert usage_error("explain", "-8", "--against", "-2", "--against-model", "tiny", note) == (
        "Error: level 2 uses no language model: compare models at levels 7 to 9"
    )
    assert usage_error("explain", "-1", "--range", "9000:", note) == (
        f"Error: expected a range within {len(TEXT)} bytes, got one that begins at byte 9000"
    )
    assert names() == ["note.txt"]
