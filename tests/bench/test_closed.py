"""The benchmark that looks for files that are larger than with --no-parse."""

from bench.__main__ import parser
from bench.measure import load
from bench.measures import closed
from tests.makers import inputs, wrapped


def rows(*words):
    measure = load("closed")
    return list(measure.rows(parser("closed", measure).parse_args([*map(str, words), "--count", "0", "--level", "1"])))


def test_wrappers_make_a_file_smaller(tmp_path):
    (tmp_path / "a.zip").write_bytes(wrapped.documents()["zip"])
    (total,) = rows(tmp_path / "a.zip")
    assert (total["kind"], total["files"], total["larger"]) == ("given", 1, 0)
    assert total["bytes"] <= total["closed"]


def test_a_larger_file_is_named_and_counted(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(inputs.words(500))
    monkeypatch.setattr(closed, "size", lambda data, level: 10_000)
    named, total = rows(tmp_path / "a.txt")
    assert (named["file"], named["bytes"], total["larger"]) == (str(tmp_path / "a.txt"), 10_000, 1)
