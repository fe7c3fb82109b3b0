"""`squeeze compress`: levels, blocks, and the check of what was written."""

from pathlib import Path

import pytest

import squeeze
from squeeze.codecs.stream import coding, compressor, levels
from tests.makers.command import TEXT, call, fails, listed, names, run, usage_error

pytestmark = pytest.mark.usefixtures("in_folder")


@pytest.mark.parametrize("level", [n for n in levels.LEVELS if n < 4])
def test_round_trip(note: Path, level: int):
    run("compress", f"-{level}", note)
    assert names() == ["note.txt", "note.txt.sqz"]
    note.unlink()
    run("decompress", "note.txt.sqz")
    assert note.read_bytes() == TEXT


def test_last_level_wins(note: Path):
    run("compress", "-3", "--level", "1", note)
    assert listed("note.txt.sqz")["streams"][0]["header"]["level"] == 1


@pytest.mark.parametrize("level", ["--level=0", "--level=10"])
def test_level_that_does_not_exist(note: Path, level: str):
    assert fails("compress", level, note).startswith("Error: level")
    assert names() == ["note.txt"]


def test_block_size(note: Path):
    run("compress", "-1", "--block-size", "1K", note)
    assert [block["raw_length"] for block in listed("note.txt.sqz")["streams"][0]["blocks"]] == [1024, 1024, 912]


@pytest.mark.parametrize("size", ["", "K", "1T", "-1", "1.5M"])
def test_block_size_that_is_none(note: Path, size: str):
    assert usage_error("compress", "--block-size", size, note) == (
        f"Error: Invalid value for '--block-size': {size!r} is not a size such as 65536, 64K or 4M"
    )


def test_no_verify(note: Path, monkeypatch: pytest.MonkeyPatch):
    def decode_block(*_: object) -> object:
        raise squeeze.VerifyError("decoded")

    monkeypatch.setattr(coding, "decode_block", decode_block)
    run("compress", "-1", "--no-verify", note)
    assert fails("compress", "-1", "-f", note) == "Error: note.txt: decoded\n"
    assert names() == ["note.txt", "note.txt.sqz"]


def test_slow_run_says_so(note: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(levels, "estimate_seconds", lambda level, *_: 50.0 * level)
    assert call("compress", "-2", note).stderr == "Level 2 will take about 100 s; -1 would take about 50 s.\n"
    assert call("compress", "-2", "-qf", note).stderr == ""


def test_the_default_level(note: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(levels, "DEFAULT", 1)
    run("compress", note)
    assert listed("note.txt.sqz")["streams"][0]["header"]["level"] == 1


def test_too_little_memory(note: Path, monkeypatch: pytest.MonkeyPatch):
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(compressor, "compress_stream", greedy)
    assert fails("compress", "-1", note) == (
        "Error: note.txt: not enough memory; use fewer threads (-T) or a smaller --block-size\n"
    )
