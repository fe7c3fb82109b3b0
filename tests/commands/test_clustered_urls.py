"""Commands by the workers of a cluster, on objects: the same bytes as on files, nothing left, going on, errors."""

import json
import pickle
from pathlib import Path

import pytest
import xxhash

import squeeze
from squeeze.cluster import engine as engines
from squeeze.system.remote_path import RemotePath
from tests.makers import inputs
from tests.makers.command import call, fails, names, run
from tests.makers.inline import Inline, shorten_calls
from tests.makers.remote import Object, Store

pytestmark = pytest.mark.usefixtures("in_folder")
MANIFEST = ".squeeze-compress.jsonl"
BLOCK = 1 << 16
LARGE = inputs.words(5 * BLOCK + 77)
SOURCES = {"corpus/a.txt": b"a" * 500, "corpus/b/c.txt": b"some words " * 40}
CLUSTER = ("--cluster", "local")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Inline:
    made = Inline()
    monkeypatch.setattr(engines, "connect", lambda address: made)
    monkeypatch.setattr("squeeze.cluster.run.PAUSE", 0.0)
    return made


@pytest.fixture(autouse=True)
def store(engine):
    Store.reset()
    for key, data in SOURCES.items():
        Store.put(key, data)


@pytest.fixture
def in_parts(monkeypatch):
    """Calls are so short that each block of a large object is one."""
    Store.put("corpus/large.txt", LARGE)
    shorten_calls(monkeypatch, 0.02)


def test_objects_are_compressed_and_restored_by_workers():
    done = call("compress", "-1", "-r", "--json", "--rm", *CLUSTER, "fake://corpus")
    assert done.exit_code == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["output"] for line in lines] == ["fake://corpus/a.txt.sqz", "fake://corpus/b/c.txt.sqz"]
    assert {key: squeeze.decompress(data) for key, data in Store.objects.items()} == {
        f"{key}.sqz": data for key, data in SOURCES.items()
    }
    assert names() == [MANIFEST]
    run("test", "-r", "-q", *CLUSTER, "fake://corpus")
    run("test", "-q", *CLUSTER, "--manifest", MANIFEST, "fake://corpus")
    run("decompress", "-r", "-q", "--rm", *CLUSTER, "fake://corpus")
    assert Store.objects == SOURCES and not Store.uploads


def test_a_manifest_names_what_was_read_and_written(engine):
    def changes(call):
        if engine.calls == 1:
            Store.put("corpus/a.txt", b"changed meanwhile")

    engine.breaks = changes
    run("compress", "-1", "-r", "-q", *CLUSTER, "fake://corpus")
    records = [json.loads(line) for line in Path(MANIFEST).read_text().splitlines()[1:-1]]
    coded = Store.objects["corpus/a.txt.sqz"]
    record = next(record for record in records if record["source"] == "fake://corpus/a.txt")
    assert record | {"stamp": ""} == {
        "source": "fake://corpus/a.txt",
        "size": 17,
        "stamp": "",
        "version": "2",
        "output": "fake://corpus/a.txt.sqz",
        "output_size": len(coded),
        "checksum": xxhash.xxh3_64_hexdigest(b"changed meanwhile")[8:],  # of a small file
        "attempts": 2,
        "error": "",
    }
    assert sorted(record["version"] for record in records) == ["1", "2"]


def test_manifests_without_versions_are_read(engine):
    """Return the records of a manifest as an earlier run wrote them."""
    run("compress", "-1", "-r", "-q", *CLUSTER, "fake://corpus")
    text = Path(MANIFEST).read_text()
    Path(MANIFEST).write_text(text.replace(',"version":"1"', ""))
    assert Path(MANIFEST).read_text() != text
    run("test", "-q", "--manifest", MANIFEST, "fake://corpus")
    assert "2 files were done before" in call("compress", "-1", "-r", *CLUSTER, "fake://corpus").stderr
    Path(MANIFEST).write_text(text.replace('"version":', '"unknown":'))
    assert "is not a manifest of a run, or is damaged" in fails("test", "-q", "--manifest", MANIFEST)


def test_two_buckets_in_one_working_folder_have_a_manifest_each():
    Store.put("other/a::b.txt", b"b" * 500)
    run("compress", "-1", "-r", "-q", *CLUSTER, "fake://corpus")
    run("compress", "-1", "-r", "-q", *CLUSTER, "fake://other")
    first, second = sorted(names(), key=len)
    assert first == MANIFEST and second.startswith(".squeeze-compress-")
    del Store.objects["corpus/a.txt.sqz"]
    run("test", "-q", "--manifest", second, "fake://other")
    assert "fake://corpus/a.txt: its output" in fails("test", "-q", "--manifest", first, "fake://corpus")
    said = fails("test", "-q", "--manifest", first, "fake://other")  # what the command does not name is not opened
    assert "expected a file in ., fake://other, got 'fake://corpus/a.txt.sqz'" in said


def test_large_objects_go_in_parts_to_the_same_bytes(engine, in_parts):
    run("compress", "-1", "-q", "--block-size", str(BLOCK), "-r", *CLUSTER, "fake://corpus")
    assert engine.calls > 5
    assert Store.objects["corpus/large.txt.sqz"] == squeeze.compress(LARGE, 1, block_size=BLOCK)
    del Store.objects["corpus/large.txt"]
    before, engine.calls = dict(Store.objects), 0
    run("decompress", "-q", *CLUSTER, "fake://corpus/large.txt.sqz")
    assert engine.calls > 5 and Store.objects == before | {"corpus/large.txt": LARGE}


def test_the_same_command_goes_on_with_the_parts_that_are_there(engine, in_parts):
    def stops(call):
        if "part 4" in call.name:
            raise KeyboardInterrupt

    command = ("compress", "-1", "-q", "--block-size", str(BLOCK), "-r", *CLUSTER, "fake://corpus")
    engine.breaks = stops
    assert call(*command).exit_code == 1
    parts = [key for key in Store.objects if ".parts/" in key]
    assert parts and not Store.uploads
    engine.breaks = lambda call: None
    Store.requests.clear()
    run(*command)
    assert {key for kind, key, *_ in Store.requests if kind == "complete"}.isdisjoint(parts)
    assert sorted(Store.objects) == sorted([*SOURCES, "corpus/large.txt", *(f"{key}.sqz" for key in SOURCES),
                                            "corpus/large.txt.sqz"])  # fmt: skip
    Store.put("corpus/a.txt", b"another")
    said = call(*[word for word in command if word != "-q"], "-f").stderr
    assert said.startswith("1 files, 7 bytes raw")


def test_an_object_that_changes_is_read_again(engine):
    def changes(call):
        if engine.calls == 1 and Store.versions["corpus/a.txt"] == 1:
            Store.put("corpus/a.txt", b"changed meanwhile")

    engine.breaks = changes
    run("compress", "-1", "-q", "-r", *CLUSTER, "fake://corpus")
    assert squeeze.decompress(Store.objects["corpus/a.txt.sqz"]) == b"changed meanwhile"


def test_a_store_that_names_no_versions_tells_of_a_change_by_the_size_alone(engine, monkeypatch):
    """Compare versions across processes, whose replacements differ."""
    entry = Store._entry
    monkeypatch.setattr(Store, "_entry", lambda self, key: {**entry(self, key), "ETag": None})
    monkeypatch.setattr(Object, "_fetch_range", lambda self, start, end: Store.objects[self.path][start:end])

    def works(call):
        monkeypatch.setattr("squeeze.system.remote_info._STARTED", float(engine.calls))
        if engine.calls == 1:
            Store.put("corpus/a.txt", b"another size")

    engine.breaks = works
    run("compress", "-1", "-q", "-r", "--rm", *CLUSTER, "fake://corpus")
    assert engine.calls == 2  # the second by what is there now
    assert {key: squeeze.decompress(data) for key, data in Store.objects.items()} == {
        "corpus/a.txt.sqz": b"another size",
        "corpus/b/c.txt.sqz": SOURCES["corpus/b/c.txt"],
    }
    run("test", "-r", "-q", *CLUSTER, "fake://corpus")


def test_a_store_that_fails_is_one_line():
    Store.fail("put", OSError(28, "No space left"))
    said = fails("compress", "-1", "-q", "-r", *CLUSTER, "fake://corpus")
    assert said.splitlines()[0].startswith("Error: fake://corpus/a.txt: ") and "Traceback" not in said
    assert Store.objects == SOURCES and not Store.uploads
    assert [json.loads(line)["attempts"] for line in Path(MANIFEST).read_text().splitlines()[1:]] == [4, 4]


@pytest.mark.parametrize("cluster", [(), CLUSTER])
def test_keys_with_an_empty_part_are_taken_or_reported(cluster):
    Store.put("corpus//x.txt", b"x" * 500)
    said = fails("compress", "-1", "-q", "-r", *cluster, "fake://corpus")
    assert said.startswith("Error: fake://corpus//: the storage's package lists no keys with an empty part")
    assert sorted(Store.objects) == ["corpus//x.txt", *sorted([*SOURCES, *(f"{key}.sqz" for key in SOURCES)])]
    assert "lists no keys" in fails("decompress", "-q", "-f", "-r", *cluster, "fake://corpus")
    run("compress", "-1", "-q", "-f", "-r", *cluster, "finding://corpus")
    assert squeeze.decompress(Store.objects["corpus//x.txt.sqz"]) == b"x" * 500


def test_a_path_goes_to_another_process_without_its_connection():
    path = RemotePath("fake://corpus/a.txt")
    assert path.exists()
    again = pickle.loads(pickle.dumps(path))
    assert again == path and "_place" not in vars(again) and again.read_bytes() == SOURCES["corpus/a.txt"]
