"""S3, as the server of moto speaks it on loopback: uploads in parts, their ends, and refused credentials."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import squeeze
from squeeze.cluster import engine as engines
from squeeze.errors import SqueezeError
from squeeze.system import files, storage
from squeeze.system.remote_path import RemotePath, read_together
from squeeze.system.s3_objects import first_bytes
from squeeze.system.unchanged import stamp_of
from tests.makers.checkpoints import model_folder
from tests.makers.command import TEXT, call, fails, run
from tests.makers.faulty import Faulty
from tests.makers.inline import Inline, shorten_calls
from tests.makers.s3 import body, keys, uploads
from tests.makers.s3_server import listening, stores

pytestmark = [pytest.mark.usefixtures("in_folder"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
DATA = np.random.default_rng(0).bytes(12_000_000)


def test_files_there_and_back(s3):
    s3.put_object(Bucket="bucket", Key="tree/note.txt", Body=TEXT)
    run("compress", "-1", "-r", "s3://bucket/tree")
    assert keys(s3) == ["tree/note.txt", "tree/note.txt.sqz"]
    assert squeeze.decompress(body(s3, "tree/note.txt.sqz")) == TEXT
    run("test", "s3://bucket/tree/note.txt.sqz")
    with squeeze.open("s3://bucket/tree/note.txt.sqz") as file:
        file.seek(10)
        assert file.read(20) == TEXT[10:30]
    assert "already exists" in fails("compress", "-1", "s3://bucket/tree/note.txt")


def test_objects_by_the_workers_of_a_cluster(s3, monkeypatch):
    monkeypatch.setattr(engines, "connect", lambda address: Inline())
    s3.put_object(Bucket="bucket", Key="tree/note.txt", Body=TEXT)
    s3.put_object(Bucket="bucket", Key="tree/more/note.txt", Body=TEXT[::-1])
    etags = {s3.head_object(Bucket="bucket", Key=key)["ETag"] for key in keys(s3)}
    run("compress", "-1", "-q", "-r", "--cluster", "local", "--rm", "s3://bucket/tree")
    assert keys(s3) == ["tree/more/note.txt.sqz", "tree/note.txt.sqz"]
    assert squeeze.decompress(body(s3, "tree/more/note.txt.sqz")) == TEXT[::-1]
    run("test", "-q", "--cluster", "local", "--manifest", ".squeeze-compress.jsonl", "s3://bucket/tree")
    told = [json.loads(line) for line in Path(".squeeze-compress.jsonl").read_text().splitlines()]
    assert {one["version"] for one in told if "source" in one} == etags
    run("compress", "-1", "-q", "-r", "--cluster", "local", "s3://bucket/tree")  # and all is done


def test_small_objects_go_into_shards(s3):
    contents = {f"tree/sub/{number:02d} [a]*?.txt": TEXT[:number] for number in range(20)}
    for key, data in contents.items():
        s3.put_object(Bucket="bucket", Key=key, Body=data)
    run("compress", "-1", "-r", "s3://bucket/tree", "--shards", "20K", "-o", "s3://bucket/out/part-{}.tar.sqz")
    shards = [f"s3://bucket/{key}" for key in keys(s3) if key.endswith(".tar.sqz")]
    found = {}
    for shard in shards:
        with squeeze.open(shard) as file:
            found |= {f"tree/{name}": file.member(name).read() for name in file.members()}
    assert found == contents and len(shards) > 1 and not uploads(s3)
    member = run("decompress", shards[0], "--member", "sub/07 [a]*?.txt")
    assert member.stdout_bytes == TEXT[:7]


ODD = ("a.txt", "/a.txt", "b//c", "b/c", "d/../e", "x::y.txt", "q?versionId=3", "a#b", "star*", "[1]", "%41", "dir/")


@pytest.fixture
def odd(s3):
    contents = {f"odd/{key}": f"{number:04d} {key}".encode() * 9 for number, key in enumerate(ODD)}
    for key, data in contents.items():
        s3.put_object(Bucket="bucket", Key=key, Body=data)
    s3.put_object(Bucket="bucket", Key="odd/empty/", Body=b"")
    return contents


@pytest.mark.parametrize("cluster", [pytest.param((), marks=pytest.mark.slow), ("--cluster", "local")])
def test_keys_of_any_kind(s3, monkeypatch, odd, cluster):
    """Objects are read under any key, except empty ones whose key ends in a slash."""
    monkeypatch.setattr(engines, "connect", lambda address: Inline())
    said = fails("compress", "-1", "-q", "-r", *cluster, "s3://bucket/odd")
    assert said == "Error: s3://bucket/odd/dir/: has no name, since its key ends in a slash: rename it\n"
    made = {key.removesuffix(".sqz"): body(s3, key) for key in keys(s3) if key.endswith(".sqz")}
    assert {key: squeeze.decompress(data) for key, data in made.items()} == {
        key: data for key, data in odd.items() if not key.endswith("/")
    }
    for key in made:
        s3.delete_object(Bucket="bucket", Key=key)
    run("test", "-r", "-q", *cluster, "s3://bucket/odd")
    run("decompress", "-r", "-q", "--rm", *cluster, "s3://bucket/odd")
    assert {key: body(s3, key) for key in keys(s3)} == odd | {"odd/empty/": b""}


def test_keys_that_are_no_paths_are_not_put_into_shards(s3, odd):
    said = fails("compress", "-1", "-q", "-r", "--shards", "1M", "s3://bucket/odd", "-o", "part-{}.tar.sqz")
    assert sorted(line.split(": ")[1] for line in said.splitlines()) == [
        "s3://bucket/odd//a.txt",
        "s3://bucket/odd/b//c",
        "s3://bucket/odd/d/../e",
        "s3://bucket/odd/dir/",
        "s3://bucket/odd/x::y.txt",  # a chain of file systems, where it is read as a path
    ]
    with squeeze.open("part-0.tar.sqz") as shard:
        found = {f"odd/{name}": shard.member(name).read() for name in shard.members()}
    refused = ("//", "..", "::")
    assert found == {
        key: data for key, data in odd.items() if key[-1] != "/" and not any(part in key for part in refused)
    }


@pytest.fixture
def small(s3):
    """Objects as they are listed, and what they hold."""
    contents = {name: name.encode() * 9 for name in ("a", "b c.txt", "deep/d", "e [x]*?%41", "f")} | {"empty": b""}
    for name, data in contents.items():
        s3.put_object(Bucket="bucket", Key=f"tree/{name}", Body=data, ACL="public-read")
    return list(storage.remote(storage.path_of("s3://bucket/tree")).walk()), [contents[k] for k in sorted(contents)]


def test_small_objects_come_together(small):
    paths, contents = small
    assert read_together(paths) == contents


def test_small_objects_are_left_to_s3fs_where_obstore_is_missing(small, monkeypatch):
    paths, contents = small
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert read_together(paths) == contents
    assert first_bytes(paths[0]._place[0], ["bucket/tree/a"], [9]) == [None]


@pytest.mark.parametrize(
    "settings",
    [{}, {"anon": True}, {"key": "a", "secret": "b"}, {"key": "a", "secret": "b", "token": "c"}],
    ids=["of-the-environment", "anonymous", "keys", "keys-of-a-role"],
)
def test_obstore_gets_what_has_a_plain_name(small, settings):
    import fsspec

    pytest.importorskip("obstore")
    fs = fsspec.filesystem("s3", **settings)
    paths = [f"bucket/tree/{name}" for name in ("a", "none", "b c.txt", "e [x]*?%41", "f")]
    assert first_bytes(fs, paths, [5, 5, 100, 100, 9]) == [b"a" * 5, None, b"b c.txt" * 9, None, b"f" * 9]


def test_settings_that_are_not_plain_are_left_to_s3fs(small):
    import fsspec

    assert first_bytes(fsspec.filesystem("s3", requester_pays=True), ["bucket/tree/a"], [9]) == [None]
    assert first_bytes(fsspec.filesystem("memory"), ["/tree/a"], [9]) == [None]


def test_small_objects_that_are_gone_or_changed_have_an_error_each(s3, small):
    paths, contents = small
    s3.delete_object(Bucket="bucket", Key="tree/a")
    s3.put_object(Bucket="bucket", Key="tree/f", Body=b"longer than it was")
    gone, *rest, changed = read_together(paths)
    assert isinstance(gone, FileNotFoundError) and "replaced after it was listed" in str(changed)
    assert rest == contents[1:-1]


def test_nothing_to_sign_with_is_an_error_for_each_object(small, monkeypatch):
    import s3fs

    paths, _ = small
    for name in [name for name in os.environ if name.startswith("AWS_") and "KEY" in name]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")
    s3fs.S3FileSystem.clear_instance_cache()
    anew = [RemotePath(*path.url_and_key) for path in paths]
    for path, listed in zip(anew, paths, strict=True):
        path._info = listed._info
    found = read_together(anew)
    assert all(isinstance(one, PermissionError) for one in found if one != b"")


def test_large_objects_are_sent_in_parts(s3):
    with files.replacing(storage.path_of("s3://bucket/large")) as file:
        file.write(DATA)
        assert len(uploads(s3)) == 1 and keys(s3) == []
    assert body(s3, "large") == DATA and not uploads(s3)
    with storage.path_of("s3://bucket/large").open() as file:
        assert file.read() == DATA


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_fails_is_aborted(s3, error):
    with pytest.raises(error), files.replacing(storage.path_of("s3://bucket/large")) as file:
        file.write(DATA)
        raise error
    assert not keys(s3) and not uploads(s3)


def test_what_came_meanwhile_is_kept(s3):
    with (
        pytest.raises(SqueezeError, match="s3://bucket/new already exists"),
        files.replacing(storage.path_of("s3://bucket/new"), overwrite=False) as file,
    ):
        file.write(b"ours")
        s3.put_object(Bucket="bucket", Key="new", Body=b"theirs")
    assert body(s3, "new") == b"theirs"


def test_an_object_that_changes_while_it_is_read_is_an_error(s3):
    s3.put_object(Bucket="bucket", Key="x", Body=DATA[:1_000_000])
    with storage.path_of("s3://bucket/x").open() as file:
        file.read(10)
        s3.put_object(Bucket="bucket", Key="x", Body=DATA[1:1_000_001])
        with pytest.raises(OSError, match="it was replaced while it was read"):
            file.seek(500_000)
            file.read(10)


def test_checkpoints_there_and_back(s3):
    model_folder("model")
    run("pack", "model", "s3://bucket/packed")
    run("verify", "s3://bucket/packed")
    run("unpack", "s3://bucket/packed", "s3://bucket/back")
    before = {path.relative_to("model").as_posix(): path.read_bytes() for path in Path("model").rglob("*.*")}
    assert {key.removeprefix("back/"): body(s3, key) for key in keys(s3) if key.startswith("back/")} == before
    with squeeze.safe_open("s3://bucket/packed/model-00001-of-00002.safetensors", framework="np") as file:
        assert file.get_tensor("half").shape == (64, 100)


def test_what_is_missing_or_refused_is_one_line(s3, monkeypatch):
    import s3fs

    assert fails("test", "s3://bucket/none.sqz") == "Error: s3://bucket/none.sqz: No such file or directory\n"
    for name in [name for name in os.environ if name.startswith("AWS_") and "KEY" in name]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")
    s3fs.S3FileSystem.clear_instance_cache()
    message = fails("test", "s3://bucket/none.sqz")
    assert message.startswith("Error: s3://bucket/none.sqz: access was refused") and message.count("\n") == 1


def test_a_listing_tells_the_stamp_that_an_open_object_has(s3):
    s3.put_object(Bucket="bucket", Key="corpus/a", Body=b"data")
    (found,) = storage.remote(storage.path_of("s3://bucket/corpus")).walk()
    with found.open() as opened:
        assert stamp_of(found.lstat()) == stamp_of(found.stat()) == stamp_of(files.status(opened))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_storage_that_fails_at_random(s3, monkeypatch, seed):
    """500 and 503, and connections that break before, after and amid: the same objects, and nothing else."""
    monkeypatch.setattr(engines, "connect", lambda address: Inline())
    shorten_calls(monkeypatch, 0.05)
    monkeypatch.setattr("squeeze.cluster.run.PAUSE", 0.0)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")  # of botocore, which waits for seconds before the fifth
    sources = {f"corpus/{number}.txt": TEXT[:3000] + bytes([number]) for number in range(3)}
    sources["corpus/large"] = np.random.default_rng(0).integers(97, 110, 200_000, np.uint8).tobytes()
    for key, data in sources.items():
        s3.put_object(Bucket="bucket", Key=key, Body=data)
    command = ("-r", "-q", "--rm", "--cluster", "local", "s3://bucket/corpus")
    with listening(Faulty(stores(), 0.15, seed)) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        done = call("compress", "-1", "--block-size", "64K", *command)
    assert done.exit_code == 0, done.stderr
    made = {key: body(s3, key) for key in keys(s3)}
    expected = {f"{key}.sqz": squeeze.compress(data, 1, block_size=1 << 16) for key, data in sources.items()}
    assert made == expected
