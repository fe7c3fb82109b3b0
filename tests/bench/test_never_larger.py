"""The benchmark that looks for files that are larger than with xz."""

from bench.__main__ import parser
from bench.measure import load
from bench.measures import never_larger
from bench.shared.made_numbers import generate
from tests.makers import inputs


def rows(*words):
    measure = load("never-larger")
    return list(measure.rows(parser("never-larger", measure).parse_args([*map(str, words)])))


def test_a_larger_file_is_named_and_counted(tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(inputs.words(500))
    monkeypatch.setattr(never_larger, "size", lambda data, level: 10_000 * level)
    named, _, total = rows(tmp_path / "a.txt", tmp_path / "b.txt", "--count", 0, "--made", 0, "--levels", 1)
    assert (named["file"], named["bytes"]) == (str(tmp_path / "a.txt"), 10_000)
    assert (total["kind"], total["files"], total["larger"]) == ("given", 2, 2)
    assert total["worst"] == 10_000 - named["xz -9e"]


def test_files_are_chosen_below_each_folder_and_none_is_too_long(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for i, size in enumerate((100, 900, 5000)):
            (tmp_path / folder / f"{i}.txt").write_bytes(inputs.words(size)[:size])
    folders = f"{tmp_path}/one:{tmp_path}/two:{tmp_path}/none"
    (total,) = rows("--folders", folders, "--count", 4, "--most", 1000, "--made", 0, "--levels", 1)
    assert (total["kind"], total["files"], total["raw"]) == ("of the machine", 4, 2000)


def test_made_files_are_always_the_same():
    assert list(generate(3)) == list(generate(3))
    assert len({data for _, data in generate(44)}) == 44
