"""`squeeze list`: streams and blocks, as they stand in the index."""

from pathlib import Path

import pytest

from tests.makers.command import listed, run, usage_error

pytestmark = pytest.mark.usefixtures("in_folder")


def test_list(packed: Path):
    lines = run("list", packed).stdout.splitlines()
    stream = listed("note.txt.sqz")["streams"][0]
    size = packed.stat().st_size
    assert lines[0].split() == ["compressed", "raw", "ratio", "level", "codec", "checksum", "file"]
    ratio = f"{100 * size / 2960:.1f}"
    assert lines[1].split() == [str(size), "2960", ratio, "%", "1", "bytewise", stream["checksum"], "note.txt.sqz"]
    assert len(lines) == 2


def test_list_of_blocks(note: Path):
    run("compress", "-1", "--block-size", "2K", note)
    lines = run("list", "-v", "note.txt.sqz").stdout.splitlines()
    blocks = listed("note.txt.sqz")["streams"][0]["blocks"]
    assert lines[2] == "  parameters: level 1, numerics 1"
    for line, block in zip(lines[4:], blocks, strict=True):
        numbers = [str(block[name]) for name in ("raw_offset", "raw_length", "coded_length")]
        assert line.split() == [*numbers, "bytewise", "text", block["checksum"]]


def test_list_of_an_empty_file():
    Path("empty").touch()
    run("compress", "-1", "empty")
    assert run("list", "empty.sqz").stdout.splitlines()[1].split()[1:4] == ["0", "-", "-"]


def test_list_needs_files():
    assert usage_error("list") == "Error: list takes files: it reads their ends first"
