"""The benchmark that looks for levels that make files larger than the next lower level."""

import pytest

from bench.__main__ import parser
from bench.measure import load
from bench.measures import monotone
from tests.makers import inputs


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "long.txt", tmp_path / "short.txt"]
    for path, count in zip(paths, (3000, 900), strict=True):
        path.write_bytes(inputs.python_text(count))
    return paths


def rows(paths, encoded):
    measure, words = load("monotone"), ["--levels", "2,1", "--first", "2000", "--encoded", str(encoded)]
    return list(measure.rows(parser("monotone", measure).parse_args([*map(str, paths), *words])))


def test_the_longest_files_are_encoded_too(files):
    plain, encoded = rows(files, 1)
    assert (plain["file"], encoded["file"]) == ("all 2", "all 2, 3 encoded")
    assert (encoded["lower"], encoded["higher"], encoded["monotone"]) == (1, 2, True)
    assert rows(files, 0) == [plain]


def test_an_encoded_file_that_grows_is_named(files, monkeypatch):
    monkeypatch.setattr(monotone, "size", lambda data, level: 9000 * level if data.startswith(b"2222") else 100)
    files[0].write_bytes(b'"' * 3000)
    found = rows(files, 1)
    assert [row["file"] for row in found if "raw" in row] == [f"{files[0]} in hexadecimal"]
    assert sum(row.get("larger", 0) for row in found) == 1


def test_an_encoding_keeps_all_bytes_apart():
    data = bytes(range(256))
    for encode in monotone._ENCODINGS.values():
        assert len({encode(bytes([byte])) for byte in data}) == 256


def test_rows_of_files_and_of_encoded_ones_are_counted_together(files):
    (row,) = monotone.by_pair(rows(files, 1))
    assert (row["files"], row["larger"]) == (5, 0)
