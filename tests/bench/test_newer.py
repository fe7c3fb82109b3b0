"""Files beside what another squeeze makes of them: a checkout, or an interpreter that has it."""

import sys
from pathlib import Path

import pytest

from bench.__main__ import main, parser
from bench.registry import ENTRIES
from tests.makers import inputs

OTHER = """
__version__ = "0"
def compress(data, level, verify): return data + bytes(level)
def decompress(coded): return coded.rstrip(b"\\0")
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    texts = {"prose": inputs.PROSE[:900], "words": inputs.words(400)}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    return [str(tmp_path / name) for name in texts]


def rows(*words: str) -> list[dict]:
    entry = ENTRIES["newer"]
    return list(entry.rows("newer")(parser("newer", entry).parse_args(words)))


def test_a_checkout(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "old" / "squeeze").mkdir(parents=True)
    (tmp_path / "old" / "squeeze" / "__init__.py").write_text(OTHER)
    found = rows(*files, "--against", str(tmp_path / "old"), "--levels", "1", "--prefixes", "300,500")
    assert [(row.get("file"), row["of"], row.get("against")) for row in found] == [
        *(("prose", 300, 301), ("words", 300, 301), ("prose", 500, 501)),
        *((None, 300, None), (None, 500, None)),
    ]
    first, second, _, both, one = found
    assert 0 < first["bytes"] < 301 and first["ratio"] == first["bytes"] / 301
    assert both["mean ratio"] == pytest.approx((first["ratio"] * second["ratio"]) ** 0.5)
    assert (both["files"], one["files"]) == (2, 1)
    assert (both["worst"], both["worst of"]) == max((row["ratio"], row["file"]) for row in (first, second))


def test_an_interpreter(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Of which one has the squeeze that this environment has, and one is none."""
    assert main(["newer", *files, "--against", sys.executable, "--levels", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and "ratio 1 " in f"{said[0]} "
    assert "files 2  of all  level 1  mean ratio 1  worst 1" in said[-1]
    with pytest.raises(SystemExit, match="Error: /no/python: No such file or directory"):
        rows(*files, "--against", "/no/python", "--levels", "1")


def test_what_cannot_be_compared(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no folder squeeze: give a checkout, or an interpreter"):
        rows(*files, "--against", str(tmp_path), "--levels", "1")
    with pytest.raises(SystemExit, match="no file is as long as a prefix"):
        rows(*files, "--against", sys.executable, "--prefixes", "5000")


def test_a_file_that_is_shorter_than_a_prefix_is_named(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    rows(*files, "--against", sys.executable, "--levels", "1,2", "--prefixes", "300,700")
    assert capsys.readouterr().err.splitlines(True)[0] == "words: shorter than 700 bytes, so it is not among those\n"
