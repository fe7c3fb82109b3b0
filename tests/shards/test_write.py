"""Shards of a folder: which files share one, what of a corpus is held at once, and what goes wrong."""

import io
import tarfile
from pathlib import Path

import pytest

import squeeze
from squeeze.errors import OptionError, SqueezeError, VerifyError
from squeeze.shards import reading, write
from squeeze.shards.reading import Source
from squeeze.shards.template import Template
from squeeze.shards.write import listed, write_shards

OPTIONS = {"level": 1, "verify": True}


def written(files, folder, size=20480, failed=None, **options):
    """Shards of files in memory, written to a folder; the names in each."""
    root = folder / "root"
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    out = Template(folder / "part-{}.tar.sqz")
    sources = listed((root / name for name in files), root, refuse)
    shards = list(write_shards(sources, out, size, failed=failed or refuse, **OPTIONS, **options))
    return [list(squeeze.open(shard.path).members()) for shard in shards]


def refuse(path, error):
    raise error


def contents(path):
    with tarfile.open(fileobj=io.BytesIO(squeeze.decompress(path.read_bytes()))) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}


def test_samples_stay_together(tmp_path):
    files = {f"{number}.{kind}": b"x" * 3000 for number in range(4) for kind in ("jpg", "json")}
    found = written(files, tmp_path)
    assert found == [["0.jpg", "0.json", "1.jpg", "1.json"], ["2.jpg", "2.json", "3.jpg", "3.json"]]
    again = {**contents(tmp_path / "part-0.tar.sqz"), **contents(tmp_path / "part-1.tar.sqz")}
    assert again == files
    for number in range(2):
        assert len(squeeze.decompress((tmp_path / f"part-{number}.tar.sqz").read_bytes())) <= 20480


def test_a_sample_larger_than_a_shard_is_cut(tmp_path):
    files = {f"log.{number}": bytes(7000) for number in range(5)} | {"one": bytes(100_000), "two": b""}
    assert written(files, tmp_path) == [["log.0", "log.1"], ["log.2", "log.3"], ["log.4"], ["one"], ["two"]]


def test_the_same_files_give_the_same_bytes(tmp_path):
    files = {f"{number}.txt": b"%d " % number * 200 for number in range(20)}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        written(files, tmp_path / name, block_size=4096, threads=1 if name == "first" else 2)
    names = [path.name for path in sorted((tmp_path / "first").glob("part*"))]
    assert len(names) > 2
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_large_files_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_LARGE", 1000)
    monkeypatch.setattr(reading, "_PIECE", 300)
    files = {"large": bytes(range(256)) * 10, "small": b"x", "zlast": b"y" * 1000}
    assert written(files, tmp_path) == [["large", "small", "zlast"]]
    assert contents(tmp_path / "part-0.tar.sqz") == files


@pytest.mark.parametrize("longer", [b"", b"x" * 5000])
def test_a_large_file_that_changes_ends_the_run_and_leaves_nothing(tmp_path, monkeypatch, longer):
    monkeypatch.setattr(reading, "_LARGE", 1000)
    monkeypatch.setattr(reading, "_PIECE", 300)
    right = reading._pieces

    def changing(path, file, size):
        path.write_bytes(longer)
        yield from right(path, file, size)

    monkeypatch.setattr(reading, "_pieces", changing)
    with pytest.raises(VerifyError, match="changed while it was read"):
        written({"large": b"x" * 2000}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_what_cannot_be_read_is_told_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_LARGE", 1000)
    said = []
    root = tmp_path / "root"
    gone = [Source(root / "gone", "gone", 5), Source(root / "large", "large", 5000)]
    kept = root / "kept"
    root.mkdir()
    kept.write_bytes(b"kept")
    sources = [*gone, *listed([root / "broken", kept], root, lambda path, error: said.append((path.name, "listed")))]
    out = Template(tmp_path / "part-{}.tar.sqz")
    failed = lambda path, error: said.append((path.name, type(error).__name__))  # noqa: E731
    (shard,) = write_shards(sources, out, 1 << 20, failed=failed, **OPTIONS)
    assert said == [("broken", "listed"), ("gone", "FileNotFoundError"), ("large", "FileNotFoundError")]
    assert contents(shard.path) == {"kept": b"kept"} and shard.members == 1


def test_few_files_are_listed_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_BATCH_FILES", 10)
    monkeypatch.setattr(reading, "_AHEAD", 3)
    asked = 0
    (tmp_path / "one").write_bytes(b"few bytes")

    def sources():
        nonlocal asked
        for asked in range(1, 501):
            yield Source(tmp_path / "one", f"{asked:04d}", 9)

    shards = write_shards(sources(), Template(tmp_path / "part-{}"), 10240, failed=refuse, **OPTIONS)
    assert next(shards).members == 9
    assert asked < 60
    shards.close()


def test_an_index_has_a_largest_size(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "MAX_TEXT", 300)
    files = {f"{number}": b"" for number in range(8)}
    assert [len(names) for names in written(files, tmp_path, size=1 << 20)] == [4, 4]


def test_nothing_is_replaced(tmp_path):
    (tmp_path / "part-0.tar.sqz").write_bytes(b"mine")
    with pytest.raises(SqueezeError, match="already exists; use -f"):
        written({"a": b"b"}, tmp_path)
    assert written({"a": b"b"}, tmp_path, overwrite=True) == [["a"]]


def test_names_of_shards():
    assert Template(Path("out/part-{}.tar.sqz")).path(12) == Path("out/part-12.tar.sqz")
    assert Template(Path("part-{:06d}.tar")).path(12) == Path("part-000012.tar")
    assert Template(Path("part-{}.tar.sqz")).dictionary == Path("part-dictionary.sqzp")
    for name in ("part.tar.sqz", "{}-{}", "{x}", "{}/part"):
        with pytest.raises(OptionError, match=r"holds \{\} where its number goes"):
            Template(Path(name))
