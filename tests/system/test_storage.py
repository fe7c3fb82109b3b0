"""Paths that are URLs: what is one, what is said where a store fails, and how much of an object is read."""

import builtins
import io
import os
import pickle
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest

from squeeze.errors import PackageError, SqueezeError, StorageError
from squeeze.system import files, remote_errors, storage, unchanged
from squeeze.system.remote_file import will_read
from squeeze.system.remote_info import status_of
from squeeze.system.upload import staged
from tests.makers.remote import PART, Object, Store

DATA = np.random.default_rng(0).bytes(1_000_000)
LEAST = 1 << 16


@pytest.fixture(autouse=True)
def store(in_folder, monkeypatch):
    monkeypatch.setattr(remote_errors, "_WAITS", (0.0, 0.0, 0.0))
    Store.reset()
    Store.put("bucket/x", DATA)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("s3://bucket/x", True), ("memory://x", True), ("simplecache::s3://bucket/x", True), ("gs+a://x", True)),
        *(("sqz://a::file:///b", True), ("a/b", False), ("s3:/x", False), ("://x", False), ("./s3://x", False)),
        *(("1s://x", False), ("", False), (Path("s3://x"), False)),
    ],
)
def test_what_is_a_url(name, expected):
    assert storage.is_url(name) is expected


def test_local_urls_are_paths():
    for name, path in (("file:///a/b", "/a/b"), ("local:///a", "/a"), ("a/b", "a/b"), (Path("a"), "a")):
        assert storage.path_of(name) == Path(path)
        assert storage.remote(storage.path_of(name)) is None
    assert storage.local_path("file:///a/b") == Path("/a/b")
    with pytest.raises(SqueezeError, match=r"^'s3://b/x' is a URL, and this takes a path: fetch the file first$"):
        storage.local_path("s3://b/x")
    url = storage.path_of("fake://bucket/x")
    assert storage.path_of(url) is url and storage.remote(url) is url
    with pytest.raises(SqueezeError, match=r"^s3://: the URL has no path: name an object$"):
        storage.path_of("s3://")


def test_names_of_objects():
    path = storage.path_of("fake://bucket/folder/x.txt.sqz")
    assert (path.name, path.suffix, str(path.parent)) == ("x.txt.sqz", ".sqz", "fake://bucket/folder")
    assert str(files.restored_name(path)) == "fake://bucket/folder/x.txt"
    assert str(files.compressed_name(path)) == "fake://bucket/folder/x.txt.sqz.sqz"
    assert str(path.parent / "sub/y") == "fake://bucket/folder/sub/y"
    assert path.relative_to(path.parent.parent).as_posix() == "folder/x.txt.sqz"
    assert path.is_relative_to(path.parent) and not path.parent.is_relative_to(path)
    chained = storage.path_of("sqz://x::fake://bucket/x.sqz")
    assert str(chained.with_name("y")) == "sqz://y::fake://bucket/x.sqz"
    assert storage.path_of("https://host/a.sqz?token=b/c").name == "a.sqz"


@pytest.mark.parametrize("key", ["a//b", "/a/b", "a/b/", "a::b", "a?versionId=3", "a#b", "a/../b", "a/./b", "a%2Fb"])
def test_keys_below_a_prefix_are_taken_as_they_are(key):
    Store.put(f"bucket/tree/{key}", b"data")
    root = storage.remote(storage.path_of("fake://bucket/tree/"))
    found = root / key
    again = pickle.loads(pickle.dumps(found))
    for path in (found, again, found.with_name(found.name)):
        assert str(path) == f"fake://bucket/tree/{key}" and path == found
        assert path.filesystem()[1] == path._place[1] == f"bucket/tree/{key}"
    assert str(found.parent) == f"fake://bucket/tree/{key}".rpartition("/")[0]
    assert root in found.parents


def test_a_url_keeps_its_empty_parts():
    path = storage.path_of("fake://bucket//a///b")
    assert [str(one) for one in path.parents] == [
        "fake://bucket//a//",
        "fake://bucket//a/",
        "fake://bucket//a",
        "fake://bucket/",
        "fake://bucket",
    ]
    assert str(path.with_name("c")) == "fake://bucket//a///c"
    for key in ("a//b", "./a", "a/../b", "a/"):
        with pytest.raises(
            SqueezeError, match=r"its key has an empty part, '.' or '..', so that it is not a path: rename"
        ):
            (path / key).relative_to(path)


def test_what_chains_no_urls_says_so():
    with pytest.raises(
        SqueezeError, match=r"^fake://b/x::y: fake does not support chained URLs \('::'\): name its prefix"
    ):
        storage.path_of("fake://b/x::y").exists()
    assert not storage.path_of("simplecache::memory://none").exists()
    with pytest.raises(SqueezeError, match="scheme is unknown"):
        storage.path_of("nothing://b/x::y").exists()


def test_files_and_prefixes():
    for key in ("bucket/folder/b", "bucket/folder/a/c", "bucket/folder/a/d"):
        Store.put(key, b"123")
    folder = storage.path_of("fake://bucket/folder/")
    assert folder.is_dir() and folder.exists() and not folder.is_file()
    assert [str(path).removeprefix("fake://bucket/folder/") for path in folder.rglob("*")] == ["a/c", "a/d", "b"]
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
    assert (folder / "b").is_file() and (folder / "b").stat().st_size == 3
    assert not (folder / "none").exists()
    with pytest.raises(FileNotFoundError) as caught:
        (folder / "none").stat()
    assert caught.value.filename == "fake://bucket/folder/none"


def test_an_object_reads_like_a_file():
    with storage.path_of("fake://bucket/x").open() as file:
        generator, whole = np.random.default_rng(1), io.BytesIO(DATA)
        for _ in range(100):
            place, size = generator.integers(0, len(DATA) + 10), int(generator.integers(0, 200_000))
            assert file.seek(int(place)) == whole.seek(int(place))
            assert file.read(size) == whole.read(size)
            assert file.tell() == whole.tell() or place > len(DATA)
        assert file.seek(-5, os.SEEK_END) == len(DATA) - 5
        assert file.read() == DATA[-5:] and file.read(1) == b""
        with pytest.raises(ValueError, match="before the start"):
            file.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


def test_a_range_is_read_with_little_else():
    with storage.path_of("fake://bucket/x").open() as file:
        file.seek(300_000)
        file.read(10)
        file.read(10)
        file.seek(600_000)
        file.read(200_000)
        file.seek(-8, os.SEEK_END)
        file.read(8)
        file.seek(-100, os.SEEK_END)
        file.read(90)
    size = len(DATA)
    assert Store.ranges() == [(300_000, 300_000 + LEAST), (600_000, 800_000), (size - LEAST, size)]


def test_what_is_announced_comes_in_one_request():
    with storage.path_of("fake://bucket/x").open() as file:
        file.seek(1_000)
        will_read(file, 500_000)
        pieces = [file.read(100_000) for _ in range(5)]
    assert b"".join(pieces) == DATA[1_000:501_000]
    assert Store.ranges() == [(1_000, 501_000)]
    will_read(io.BytesIO(), 5)


def test_reading_from_end_to_end_takes_few_requests():
    with storage.path_of("fake://bucket/x").open() as file:
        assert b"".join(iter(lambda: file.read(1_000), b"")) == DATA
    sizes = [end - begin for begin, end in Store.ranges()]
    assert sizes[:4] == [LEAST, 2 * LEAST, 4 * LEAST, 8 * LEAST] and len(sizes) == 5 and sum(sizes) == len(DATA)


def test_an_object_that_changes_while_it_is_read_is_an_error():
    path = storage.path_of("fake://bucket/x")
    with path.open() as file:
        opened = files.status(file)
        assert not unchanged.has_changed(path, opened)
        Store.put("bucket/x", DATA)
        assert unchanged.has_changed(path, opened)
        with pytest.raises(OSError, match="the connection broke: The file has changed"):
            file.read(1)
    Store.objects.clear()
    assert unchanged.has_changed(path, opened)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (ConnectionResetError("reset by peer"), OSError, "the connection broke: reset by peer"),
        (RuntimeError("several\nlines"), OSError, "the connection broke: several lines"),
        (ValueError("no key"), SqueezeError, "fake://bucket/x: no key"),
        (TimeoutError(), OSError, "the connection broke: TimeoutError"),
        (PermissionError("no"), PermissionError, "access was refused (no): check the credentials"),
        (RuntimeError("Unable to locate credentials"), PermissionError, "access was refused (Unable to locate"),
        (OSError("403 Forbidden"), PermissionError, "access was refused (403 Forbidden): check the credentials"),
        (FileNotFoundError("bucket/x"), FileNotFoundError, "No such file or directory"),
        (NotImplementedError("read-only"), SqueezeError, "fake://bucket/x: the store does not support this: read-only"),
    ],
)
def test_what_a_store_says_is_one_line(error, kind, said):
    Store.fail("get", error)
    with storage.path_of("fake://bucket/x").open() as file, pytest.raises(kind) as caught:
        file.read(1)
    told = caught.value.strerror if isinstance(caught.value, OSError) else str(caught.value)
    assert told.startswith(said) and "\n" not in told
    assert kind is SqueezeError or caught.value.filename == "fake://bucket/x"


def test_an_object_that_comes_short_is_an_error(monkeypatch):
    monkeypatch.setattr("tests.makers.remote.Object._fetch_range", lambda self, start, end: b"few")
    with storage.path_of("fake://bucket/x").open() as file, pytest.raises(OSError, match="3 of 65,536 bytes came"):
        file.read(1)


def test_requests_that_break_are_made_again(monkeypatch):
    path = storage.path_of("fake://bucket/x")
    for kind in ("get", "head"):
        Store.fail(kind, ConnectionResetError("reset"), times=3)
        assert path.read_bytes() == DATA
        Store.fail(kind, ConnectionResetError("reset"), times=4)
        with pytest.raises(StorageError, match=r"^fake://bucket/x: the connection broke: reset; run again$"):
            path.read_bytes()
    Store.failing.clear()
    Store.fail("list", ConnectionResetError("reset"), times=3)
    assert [one.name for one in storage.path_of("fake://bucket").iterdir()] == ["x"]
    Store.fail("list", ConnectionResetError("reset"), times=3)
    assert [one.name for one in storage.path_of("fake://bucket").rglob("*")] == ["x"]
    Store.fail("list", ConnectionResetError("reset"))
    with pytest.raises(StorageError):  # and not a folder of fewer files
        storage.path_of("fake://bucket").rglob("*")
    whole, answers = Object._fetch_range, iter([b"few", b""])
    monkeypatch.setattr(Object, "_fetch_range", lambda self, *place: next(answers, None) or whole(self, *place))
    assert path.read_bytes() == DATA


def test_what_lasts_is_not_asked_again():
    with storage.path_of("fake://bucket/x").open() as file:
        Store.fail("get", PermissionError("no"), times=1)
        with pytest.raises(PermissionError):
            file.read(1)
        assert file.read(1) == DATA[:1]


def test_versions_of_objects():
    facts = {"type": "file", "size": 1}
    served = status_of(facts | {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"})
    assert served.st_mtime == 1_445_412_480
    others = [status_of(facts | more) for more in ({}, {"ETag": "a"}, {"ETag": "b"}, {"LastModified": 5})]
    assert len({status.st_ino for status in (served, *others)}) == 5


def test_packages_and_schemes_that_are_missing(monkeypatch):
    with pytest.raises(SqueezeError, match=r"^nothing://a: the scheme is unknown to fsspec$"):
        storage.path_of("nothing://a").exists()
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("fsspec"):
            raise ModuleNotFoundError("No module named 'fsspec'", name="fsspec")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        PackageError, match=r"^fake://a: No module named 'fsspec': pip install 'squeeze-neural\[cloud\]'"
    ):
        storage.path_of("fake://a").exists()


def write(target, data, overwrite=True):
    with files.replacing(storage.path_of(target), overwrite=overwrite) as file:
        for start in range(0, len(data), 10_000):
            file.write(memoryview(data)[start : start + 10_000])


@pytest.mark.parametrize("size", [0, 10, 3 * PART, len(DATA)])
def test_an_object_is_written_in_parts(size):
    write("fake://bucket/new", DATA[:size], overwrite=False)
    assert Store.objects["bucket/new"] == DATA[:size] and not Store.uploads
    write("fake://bucket/new", b"other")
    assert Store.objects["bucket/new"] == b"other"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SqueezeError])
@pytest.mark.parametrize("size", [0, 10, 5 * PART])
def test_what_fails_leaves_nothing(error, size):
    with pytest.raises(error), files.replacing(storage.path_of("fake://bucket/new")) as file:
        file.write(DATA[:size])
        assert "bucket/new" not in Store.objects
        raise error
    assert set(Store.objects) == {"bucket/x"} and not Store.uploads


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_an_upload_aborts_it(monkeypatch, number):
    sent, right = [], Object._upload_chunk

    def send(file, final=False):
        sent.append(final)
        if len(sent) == 3:
            os.kill(os.getpid(), number)
        return right(file, final)

    monkeypatch.setattr(Object, "_upload_chunk", send)
    with pytest.raises(KeyboardInterrupt), files.interruptible():
        write("fake://bucket/new", DATA)
    files.interrupted.clear()
    assert len(sent) == 3 and set(Store.objects) == {"bucket/x"} and not Store.uploads


@pytest.mark.parametrize(("kind", "after"), [("put", 0), ("put", 3), ("complete", 0)])
def test_an_upload_that_breaks_leaves_nothing(kind, after):
    Store.fail(kind, ConnectionResetError("reset by peer"), after)
    with pytest.raises(OSError, match="the connection broke: reset by peer"):
        write("fake://bucket/new", DATA)
    assert set(Store.objects) == {"bucket/x"} and not Store.uploads


def test_nothing_is_overwritten_without_leave():
    with pytest.raises(SqueezeError, match=r"^fake://bucket/x already exists; use `overwrite=True` to overwrite$"):
        files.check_target(storage.path_of("fake://bucket/x"), [], False)
    with (
        pytest.raises(SqueezeError, match="fake://bucket/y already exists"),
        files.replacing(storage.path_of("fake://bucket/y"), overwrite=False) as file,
    ):
        file.write(b"ours")
        Store.put("bucket/y", b"theirs")
    assert Store.objects["bucket/y"] == b"theirs" and not Store.uploads
    with pytest.raises(SqueezeError, match="the same file"):
        files.check_target(storage.path_of("fake://bucket/x"), [storage.path_of("fake://bucket/x")], True)


def make(local, names):
    local.mkdir()
    for name in names:
        (local / name).parent.mkdir(exist_ok=True)
        (local / name).write_text(name)


def test_a_folder_appears_when_all_of_it_is_there(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(Path.cwd()))
    Store.put("bucket/out/stale", b"")
    names = ["a", "sub/b", "sub/c"]
    with pytest.raises(SqueezeError, match="already exists"), staged(storage.path_of("fake://bucket/out"), False):
        pass
    for kind, after in (("put", 1), ("complete", 1)):
        Store.fail(kind, ConnectionResetError("reset"), after)
        with pytest.raises(OSError, match="reset"), staged(storage.path_of("fake://bucket/new"), False) as local:
            make(local, names)
        Store.failing.clear()
        assert not Store.uploads and not [key for key in Store.objects if key.startswith("bucket/new")]
    with staged(storage.path_of("fake://bucket/out"), True) as local:
        make(local, names)
        assert "bucket/out/a" not in Store.objects
    assert {key: Store.objects[key].decode() for key in Store.objects if key.startswith("bucket/out/")} == {
        f"bucket/out/{name}": name for name in names
    }
    assert not list(Path.cwd().iterdir())


def test_a_file_of_a_folder_is_sent_again():
    names = ["a", "b", "c"]
    Store.fail("put", ConnectionResetError("reset"), after=1, times=2)
    with staged(storage.path_of("fake://bucket/new"), False) as local:
        make(local, names)
    made = {key: data.decode() for key, data in Store.objects.items() if key.startswith("bucket/new/")}
    assert made == {f"bucket/new/{name}": name for name in names}
    assert not Store.uploads and Store.failures["put"] == 0


def test_memory_holds_nothing_back():
    import fsspec

    memory = fsspec.filesystem("memory")
    with pytest.raises(RuntimeError), files.replacing(storage.path_of("memory://storage-test/x")) as file:
        file.write(b"half")
        raise RuntimeError
    assert not memory.exists("/storage-test/x")
    write("memory://storage-test/x", b"whole", overwrite=False)
    assert memory.cat("/storage-test/x") == b"whole"
    memory.rm("/storage-test", recursive=True)
