"""Shards of a folder: files that share one, memory that a corpus takes, and errors."""

import io
import tarfile
from pathlib import Path

import pytest

import squeeze
from squeeze.codecs.shards import plan, reading
from squeeze.codecs.shards.plan import Template
from squeeze.codecs.shards.reading import Source
from squeeze.codecs.shards.write import list_sources
from squeeze.errors import OptionError, SqueezeError
from squeeze.system.storage import path_of
from tests.makers.shards import write_shards

OPTIONS = {"level": 1, "verify": True}
CHANGED = "it changed while it was read: run again when nothing writes to it"


def written(files, folder, size=20480, failed=None, **options):
    """Write shards of files in memory to a folder, and return the names in each."""
    root = folder / "root"
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    out = Template(folder / "part-{}.tar.sqz")
    sources = list_sources((root / name for name in files), root, refuse)
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
def test_a_large_file_that_changes_is_left_out(tmp_path, monkeypatch, longer):
    monkeypatch.setattr(reading, "_LARGE", 1000)
    monkeypatch.setattr(reading, "_PIECE", 300)
    right, said = reading._pieces, []

    def changing(source, file, opened):
        if source.name == "large":
            source.path.write_bytes(longer)
        yield from right(source, file, opened)

    monkeypatch.setattr(reading, "_pieces", changing)
    files = {"first": b"1" * 3000, "large": b"x" * 2000, "last": b"3"}
    found = written(files, tmp_path, failed=lambda source, reason: said.append((source.name, str(reason))))
    assert found == [["first", "last"]] and said == [("large", CHANGED)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part-0.tar.members.sqz", "part-0.tar.sqz", "root"]


@pytest.mark.parametrize("large", [1, 1 << 20])
def test_a_file_that_changed_since_it_was_listed_is_left_out(tmp_path, monkeypatch, large):
    monkeypatch.setattr(reading, "_LARGE", large)
    said, root = [], tmp_path / "root"
    root.mkdir()
    for name in "abc":
        (root / name).write_bytes(b"x" * 3000)
    sources = list(list_sources(sorted(root.iterdir()), root, refuse))
    (root / "b").write_bytes(b"y" * 4000)
    out, failed = Template(tmp_path / "part-{}.tar.sqz"), lambda source, reason: said.append((source.name, str(reason)))
    (shard,) = write_shards(sources, out, 1 << 20, failed=failed, **OPTIONS)
    assert said == [("b", CHANGED)] and sorted(contents(shard.path)) == ["a", "c"]


def test_a_shard_of_which_nothing_can_be_read_is_not_written(tmp_path):
    said = []
    gone = [Source(tmp_path / "gone", "gone", 15_000), Source(tmp_path / "large", "large", 5 << 20)]
    failed = lambda source, reason: said.append(source.name)  # noqa: E731
    assert not list(write_shards(gone, Template(tmp_path / "part-{}"), 20480, failed=failed, **OPTIONS))
    assert said == ["gone", "large"] and not list(tmp_path.iterdir())


def test_unreadable_files_are_reported_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_LARGE", 1000)
    said = []
    root = tmp_path / "root"
    gone = [Source(root / "gone", "gone", 5), Source(root / "large", "large", 5000)]
    kept = root / "kept"
    root.mkdir()
    kept.write_bytes(b"kept")
    sources = [
        *gone,
        *list_sources([root / "broken", kept], root, lambda path, error: said.append((path.name, "list_sources"))),
    ]
    out = Template(tmp_path / "part-{}.tar.sqz")
    failed = lambda source, reason: said.append((source.name, type(reason).__name__))  # noqa: E731
    (shard,) = write_shards(sources, out, 1 << 20, failed=failed, **OPTIONS)
    assert said == [("broken", "list_sources"), ("gone", "FileNotFoundError"), ("large", "FileNotFoundError")]
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
    monkeypatch.setattr(plan, "MAX_TEXT", 300)
    files = {f"{number}": b"" for number in range(8)}
    assert [len(names) for names in written(files, tmp_path, size=1 << 20)] == [4, 4]


def test_an_existing_shard_is_not_replaced(tmp_path):
    (tmp_path / "part-0.tar.sqz").write_bytes(b"mine")
    with pytest.raises(SqueezeError, match="already exists; use `overwrite=True`"):
        written({"a": b"b"}, tmp_path)
    assert written({"a": b"b"}, tmp_path, overwrite=True) == [["a"]]


def test_refuses_names_without_exactly_one_number():
    assert Template(Path("out/part-{}.tar.sqz")).path(12) == Path("out/part-12.tar.sqz")
    assert Template(Path("part-{:06d}.tar")).path(12) == Path("part-000012.tar")
    assert Template(Path("part-{}.tar.sqz")).dictionary == Path("part-dictionary.sqzp")
    assert Template(Path("out/part-{}.tar.sqz")).manifest == Path("out/part-manifest.jsonl")
    assert Template(path_of("s3://bucket/part-{}.tar.sqz")).manifest == Path("part-manifest.jsonl")
    for name in ("part.tar.sqz", "{}-{}", "{x}", "{}/part"):
        with pytest.raises(OptionError, match=r"needs exactly one \{\} for their number"):
            Template(Path(name))
