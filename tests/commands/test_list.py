"""`squeeze list`: streams and blocks, as they stand in the index."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from squeeze import cli
from squeeze.codecs.stream import container
from squeeze.codecs.stream.footer import Index, index_bytes
from tests.makers import wrapped
from tests.makers.command import listed, run, usage_error

pytestmark = pytest.mark.usefixtures("in_folder")


def test_list_shows_sizes_ratio_level_and_checksum(packed: Path):
    lines = run("list", packed).stdout.splitlines()
    stream = listed("note.txt.sqz")["streams"][0]
    size = packed.stat().st_size
    assert lines[0].split() == ["compressed", "raw", "ratio", "level", "codec", "checksum", "file"]
    ratio = f"{100 * size / 2960:.1f}"
    assert lines[1].split() == [str(size), "2960", ratio, "%", "1", "bytewise", stream["checksum"], "note.txt.sqz"]
    assert len(lines) == 2


def test_verbose_list_shows_blocks(note: Path):
    run("compress", "-1", "--block-size", "2K", note)
    lines = run("list", "-v", "note.txt.sqz").stdout.splitlines()
    blocks = listed("note.txt.sqz")["streams"][0]["blocks"]
    assert lines[2] == "  parameters: level 1, numerics 1"
    for line, block in zip(lines[4:], blocks, strict=True):
        numbers = [str(block[name]) for name in ("raw_offset", "raw_length", "coded_length")]
        assert line.split() == [*numbers, "bytewise", block["content"], block["checksum"]]


def test_a_verbose_list_of_two_files_has_no_totals(packed: Path):
    shown = run("list", "-v", packed, packed)
    assert shown.stdout.count("note.txt.sqz") == 2 and shown.stderr == ""


def test_verbose_list_and_json_show_what_was_opened():
    Path("archive.zip").write_bytes(wrapped.documents()["zip"])
    record = json.loads(run("compress", "-1", "--json", "archive.zip").stdout)
    opened = record["opened"]
    assert opened["wrappers"] == {"zip member": 4} and opened["raw_size"] == record["raw_size"]
    (block,) = listed("archive.zip.sqz")["streams"][0]["blocks"]
    assert block["opened"] == opened
    lines = run("list", "-v", "archive.zip.sqz").stdout.splitlines()
    raw, size = f"{opened['raw_size']:,}", f"{opened['opened_size']:,}"
    assert lines[5].strip() == f"4 zip members: {raw} bytes, {size} opened"
    assert lines[6].split() == ["opened", "coded", "codec", "content"]
    for line, group in zip(lines[7:-1], opened["groups"], strict=True):
        assert line.split() == [str(group["opened"]), str(group["coded"]), group["codec"], group["content"]]
    assert lines[-1].split() == [str(opened["plan_size"]), "closing", "of", "wrappers"]
    assert len(run("list", "archive.zip.sqz").stdout.splitlines()) == 2


def test_list_shows_an_empty_file():
    Path("empty").touch()
    run("compress", "-1", "empty")
    assert run("list", "empty.sqz").stdout.splitlines()[1].split()[1:4] == ["0", "-", "1"]


def test_list_needs_files():
    assert usage_error("list") == "Error: list takes files, not standard input: it reads their ends first"


def shown(path: Path, *options: str) -> Result:
    return CliRunner().invoke(cli.main, ["list", *options, os.fspath(path)], prog_name="squeeze")


def file_with(path: Path, **fields: object) -> Path:
    header = container.header_bytes(fields)
    path.write_bytes(header + index_bytes(Index(len(header))))
    return path


@pytest.mark.parametrize(
    ("level", "expected"), [(None, "None"), ("\x1b[2J", "\\x1b[2J"), ({"a": 1}, "{'a':"), ([1, [2]], "[1,")]
)
def test_any_level_is_shown_escaped(tmp_path, level, expected):
    path = file_with(tmp_path / "a.sqz", level=level)
    for options in ((), ("-v",)):
        found = shown(path, *options)
        assert (found.exit_code, found.stderr) == (0, "")
        assert found.stdout.splitlines()[1].split()[3] == expected
        assert "\x1b" not in found.stdout
    assert json.loads(shown(path, "--json").stdout)["streams"][0]["header"]["level"] == level


def test_a_header_nested_deep_is_one_line(tmp_path):
    nested: list[object] = []
    for _ in range(800):
        nested = [nested]
    for options in ((), ("-v",), ("--json",)):
        found = shown(file_with(tmp_path / "a.sqz", level=nested), *options)
        assert found.exit_code == 1
        assert found.stderr == f"Error: {tmp_path}/a.sqz: the header is damaged: it has too many values\n"


def test_names_are_shown_escaped(tmp_path):
    path = file_with(tmp_path / os.fsdecode(b"a\xff\x1b[2J\n.sqz"))
    found = shown(path)
    assert found.exit_code == 0
    assert found.stdout.splitlines()[1].endswith("/a\\udcff\\x1b[2J\\n.sqz")
    path.write_bytes(b"hello")
    found = shown(path)
    assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
    assert "/a\\udcff\\x1b[2J\\n.sqz: not a .sqz file" in found.stderr
