"""What models were taught, left out; and dictionaries for a kind of content, made of some files for others."""

from pathlib import Path

from bench.__main__ import parser
from bench.registry import ENTRIES
from tests.makers import inputs


def rows(*words: str) -> list[dict]:
    entry = ENTRIES["taught"]
    return list(entry.rows("taught")(parser("taught", entry).parse_args(words)))


def test_prefixes_of_files(tmp_path: Path) -> None:
    files = {"note": inputs.python_text(3_000), "table": inputs.records(40), "empty": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = rows(*(str(tmp_path / name) for name in files), "--levels", "1,4", "--prefixes", "500,2000")
    assert [(row["kind"], row["first"], row["level"], row["text"], row["files"]) for row in found] == [
        ("text", count, level, None, 1) for count in (500, 2000) for level in (1, 4)
    ]
    assert all(row["mean ratio"] == row["worst"] == round(row["with"] / row["without"], 4) < 0.95 for row in found)


def test_dictionaries_for_files_with_an_ending(tmp_path: Path) -> None:
    for folder, seeds in (("samples", range(20)), ("measured", range(20, 23))):
        (tmp_path / folder).mkdir()
        for seed in seeds:
            (tmp_path / folder / f"{seed}.txt").write_bytes(inputs.words(1_500, seed))
            (tmp_path / folder / f"{seed}.log").write_bytes(inputs.random_bytes(1_500, seed))
    words = ["--train", str(tmp_path / "samples"), "--folder", str(tmp_path / "measured"), "--ending", ".txt"]
    found = rows(*words, "--levels", "4", "--prefixes", "1000")
    assert [(row["kind"], row["text"], row["files"]) for row in found] == [
        ("*.txt", size, 3) for size in (0, 112 << 10, 1 << 20)
    ]
    assert all(row["with"] < row["without"] for row in found)
