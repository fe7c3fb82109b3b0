"""The benchmark that looks for files that are larger than at a lower level, with xz or with --no-parse."""

from bench.__main__ import parser
from bench.measure import load
from bench.measures import never_larger
from bench.measures.never_larger import BELOW, CLOSED, ENCODINGS, XZ, made
from tests.makers import inputs


def rows(*words):
    measure = load("never-larger")
    return list(measure.rows(parser("never-larger", measure).parse_args([*map(str, words), "--made", "0"])))


def test_a_larger_file_is_named_and_counted(tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(inputs.words(500))
    monkeypatch.setattr(never_larger, "size", lambda data, level: 10_000 * level)
    files = tmp_path / "a.txt", tmp_path / "b.txt"
    found = rows(*files, "--count", 0, "--encoded", 0, "--levels", "1,2")
    named, totals = [row for row in found if "file" in row], [row for row in found if "kind" in row]
    pairs = [(1, XZ), (1, CLOSED), (2, XZ), (2, CLOSED), (2, BELOW)]
    assert [(row["level"], row["against"]) for row in named] == [*pairs, *pairs]
    assert named[0]["file"] == str(tmp_path / "a.txt") and named[0]["bytes"] == 10_000
    assert all((row["kind"], row["files"], row["larger"]) == ("given", 2, 2) for row in totals)
    assert totals[0]["worst"] == 10_000 - named[0]["theirs"]


def test_the_longest_files_are_encoded_too(tmp_path, monkeypatch):
    for name, count in (("long.txt", 900), ("short.txt", 300)):
        (tmp_path / name).write_bytes(b'"' * count)
    monkeypatch.setattr(never_larger, "size", lambda data, level: 9000 * level if data.startswith(b"2222") else 50)
    files = tmp_path / "long.txt", tmp_path / "short.txt"
    found = rows(*files, "--count", 0, "--encoded", 1, "--levels", "1,2")
    below = [row for row in found if row["against"] == BELOW]
    assert [row["file"] for row in below if "file" in row] == [f"{files[0]} in hexadecimal"]
    assert [(row["kind"], row["files"], row["larger"]) for row in below if "kind" in row] == [
        ("given", 2, 0),
        ("encoded", 3, 1),
    ]
    total = {row["against"]: row for row in never_larger.of_all_kinds([row for row in found if "kind" in row])}
    assert (total[BELOW]["files"], total[BELOW]["larger"], total[BELOW]["worst"]) == (5, 1, 9000)


def test_an_encoding_keeps_all_bytes_apart():
    data = bytes(range(256))
    for encode in ENCODINGS.values():
        assert len({encode(bytes([byte])) for byte in data}) == 256


def test_files_are_chosen_below_each_folder_and_none_is_too_long(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for i, size in enumerate((100, 900, 5000)):
            (tmp_path / folder / f"{i}.txt").write_bytes(inputs.words(size)[:size])
    folders = f"{tmp_path}/one:{tmp_path}/two:{tmp_path}/none"
    totals = rows("--folders", folders, "--count", 4, "--encoded", 0, "--most", 1000, "--levels", 1)
    assert [(row["kind"], row["against"], row["files"]) for row in totals] == [
        ("of the machine", XZ, 4),
        ("of the machine", CLOSED, 4),
    ]
    assert all(row["raw"] == 2000 and row["larger"] == 0 for row in totals)


def test_made_files_are_always_the_same():
    assert list(made(3)) == list(made(3))
    assert len({data for _, data in made(28)}) == 28
