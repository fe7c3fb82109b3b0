"""`squeeze compress --shards` that goes on after a stop, and by the workers of a cluster: the same bytes as at once."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import squeeze
from squeeze.cluster import engine as engines
from squeeze.cluster.manifest import Manifest
from squeeze.codecs.shards import write
from tests.makers.command import SQUEEZE, call, fails, run, usage_error
from tests.makers.inline import Inline
from tests.makers.inputs import random_bytes
from tests.makers.remote import Store

pytestmark = pytest.mark.usefixtures("in_folder")
FILES = {f"sub/{number:03d}.txt": b"%03d" % number * 300 + random_bytes(300, number) for number in range(40)}
CLUSTER = ("--cluster", "local")
MANIFEST = "out/part-manifest.jsonl"


def command(out="out", *more):
    return ("compress", "-1", "-r", "tree", "--shards", "10K", "-o", f"{out}/part-{{}}.tar.sqz", *more)


TRAINED = ["compress", "-4", "-r", "tree", "--shards", "30K", "--block-size", "4K", "--train-dictionary", "-q", "-o"]


@pytest.fixture(autouse=True)
def tree(in_folder):
    write_tree()


def write_tree():
    for name, data in FILES.items():
        path = Path("tree", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    Path("out").mkdir()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the shards of a run that nothing stops."""
    return made_by(tmp_path_factory, *command())


@pytest.fixture(scope="module")
def whole_trained(tmp_path_factory):
    """Return the shards of a run that trains a dictionary, and the dictionary."""
    return made_by(tmp_path_factory, *TRAINED, "out/part-{}.tar.sqz")


def made_by(folders, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folders.mktemp("whole"))
        write_tree()
        done = call(*arguments)  # which may say that it compiles
        assert done.exit_code == 0, done.stderr
        return content("out")


@pytest.fixture
def engine(monkeypatch):
    made = Inline()
    monkeypatch.setattr(engines, "connect", lambda address: made)
    monkeypatch.setattr("squeeze.cluster.run.PAUSE", 0.0)
    return made


def content(folder):
    """Return all files but the manifest."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if ".sqz" in path.suffix}


def members(folder="out"):
    found = {}
    for path in sorted(Path(folder).glob("*.tar.sqz")):
        with squeeze.open(path) as shard:
            for name in shard.members():
                assert name not in found
                found[name] = shard.member(name).read()
    return found


def stop_after(monkeypatch, count, error=KeyboardInterrupt):
    """Let a run end after N noted shards."""
    note, noted = Manifest.note, []

    def stops(self, record):
        note(self, record)
        noted.append(record.source == record.output)
        if sum(noted) == count:
            monkeypatch.setattr(Manifest, "note", note)
            raise error

    monkeypatch.setattr(Manifest, "note", stops)


@pytest.mark.parametrize("by", [(), CLUSTER])
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(whole, engine, monkeypatch, by):
    assert len(whole) == 20
    stop_after(monkeypatch, 3)
    stopped = call(*command(), *by)
    assert stopped.exit_code == 1
    assert f"Finished shards are noted in {MANIFEST}; the same command continues" in stopped.stderr
    before = {path: path.stat().st_mtime_ns for path in Path("out").glob("part-[012].tar.sqz")}
    said = call(*command(), *by)
    assert said.exit_code == 0 and said.stderr.endswith("12 files were done before.\n"), said.stderr
    assert content("out") == whole and {path: path.stat().st_mtime_ns for path in before} == before
    run("test", "-q", "--manifest", MANIFEST)
    assert call(*command(), *by).stderr.endswith("40 files were done before.\n") and content("out") == whole


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(whole):
    running = subprocess.Popen([*SQUEEZE, *command()], env=os.environ | {"PYTHONPATH": os.fspath(squeeze_folder())})
    while running.poll() is None and not Path("out/part-2.tar.sqz").exists():
        time.sleep(0.001)
    running.send_signal(signal.SIGKILL)
    running.wait()
    mark = json.loads(Path(MANIFEST).read_text().splitlines()[0])["session"]
    Path(f"out/.part-9.tar.sqz.abcdefgh.squeeze-{mark}.tmp").write_bytes(b"half")
    Path("out/part-9.tar.members.sqz").write_bytes(b"of a shard that did not come")
    Path("out/.part-9.tar.sqz.abcdefgh.other.tmp").write_bytes(b"not ours")
    done = call(*command())
    assert done.exit_code == 0, done.stderr
    assert content("out") == whole
    assert [path.name for path in Path("out").glob(".*")] == [".part-9.tar.sqz.abcdefgh.other.tmp"]
    run("test", "-q", "--manifest", MANIFEST)


def squeeze_folder():
    return Path(squeeze.__file__).parents[1]


def test_a_cluster_writes_what_one_machine_writes_in_whatever_order(whole, engine):
    lost = []

    def breaks(call):
        if len(lost) < 5:
            lost.append(call)
            raise RuntimeError("killed")

    engine.breaks = breaks
    result = call(*command("out", *CLUSTER, "--json", "--report", "page.html"))
    assert result.exit_code == 0 and engine.closed, result.stderr
    assert content("out") == whole
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted(line["output"] for line in lines) == sorted(map(str, Path("out").glob("*.tar.sqz")))
    assert sum(line["members"] for line in lines) == len(FILES) and lines[0]["level"] == 1
    assert "40 files in 10 shards, 48,000 bytes raw" in result.stderr and "on 1 cores" in result.stderr
    page = Path("page.html").read_text()
    assert "40 files: 48,000 bytes raw" in page and "calls whose worker was lost" in page
    run("test", "-q", *CLUSTER, "--manifest", MANIFEST)


@pytest.mark.parametrize("by", [pytest.param((), marks=pytest.mark.slow), CLUSTER])
def test_a_file_that_changes_is_reported_and_taken_anew(engine, monkeypatch, by):
    path = Path("tree/sub/007.txt")
    right = write.make_shard

    def changing(target, *arguments, **options):
        if target.name == "part-1.tar.sqz" and path.read_bytes() == FILES["sub/007.txt"]:
            path.write_bytes(b"changed")
        return right(target, *arguments, **options)

    monkeypatch.setattr("squeeze.cluster.shards.make_shard", changing)
    said = fails(*command(), "-q", *by)
    assert said == f"Error: {path}: it changed while it was read: run again when nothing writes to it\n"
    assert set(members()) == FILES.keys() - {"sub/007.txt"}
    assert "its run has unfinished files" in fails("test", "-q", "--manifest", MANIFEST)
    before = content("out")
    run(*command(), "-q", *by)
    assert members() == FILES | {"sub/007.txt": b"changed"}
    assert content("out").items() > before.items() and len(content("out")) == len(before) + 2
    run("test", "-q", "--manifest", MANIFEST)


def test_what_cannot_be_read_stops_nothing_and_costs_little_when_the_run_goes_on(engine):
    Path("tree/sub/003.txt").unlink()
    Path("tree/sub/003.txt").symlink_to("missing")
    before = {}
    for _ in range(2):
        said = fails(*command(), "-q", "-f")
        assert said == "Error: tree/sub/003.txt: No such file or directory\n"
        assert not before or content("out") == before
        before = content("out")
    assert set(members()) == FILES.keys() - {"sub/003.txt"}


def test_a_file_that_changes_when_it_is_in_a_shard_is_told(engine):
    run(*command())
    Path("tree/sub/007.txt").write_bytes(b"changed")
    Path("tree/sub/039x.txt").write_bytes(b"new")
    said = fails(*command(), "-q")
    assert said == (
        "Error: tree/sub/007.txt: it changed since it went into out/part-1.tar.sqz: delete that shard and run again\n"
    )
    assert members()["sub/039x.txt"] == b"new" and members()["sub/007.txt"] == FILES["sub/007.txt"]
    Path("out/part-1.tar.sqz").unlink()
    run(*command(), "-q")
    assert members() == FILES | {"sub/007.txt": b"changed", "sub/039x.txt": b"new"}
    run("test", "-q", "--manifest", MANIFEST)
    before = content("out")
    Path("out/part-2.tar.sqz").unlink()
    run(*command(), "-q")
    assert content("out") == before


def test_a_shard_that_fails_stops_no_other_of_a_cluster(whole, engine, monkeypatch):
    right = write.write_shard

    def failing(target, *arguments, **options):
        if target.name == "part-4.tar.sqz":
            raise OSError(5, "Input/output error", str(target))
        return right(target, *arguments, **options)

    monkeypatch.setattr("squeeze.codecs.shards.write.write_shard", failing)
    assert fails(*command(), "-q", *CLUSTER) == "Error: out/part-4.tar.sqz: Input/output error\n"
    assert content("out").keys() == whole.keys() - {"part-4.tar.sqz", "part-4.tar.members.sqz"}
    assert "part-4.tar.sqz: Input/output error" in fails("test", "-q", "--manifest", MANIFEST)
    monkeypatch.setattr("squeeze.codecs.shards.write.write_shard", right)
    run(*command(), "-q", *CLUSTER)
    assert content("out") == whole
    run("test", "-q", "--manifest", MANIFEST)


def test_a_shard_that_somebody_else_wrote_is_kept(whole, engine):
    Path("out/part-4.tar.sqz").write_bytes(b"somebody else's")
    said = fails(*command(), "-q", *CLUSTER)
    assert said == "Error: out/part-4.tar.sqz: out/part-4.tar.sqz already exists; use -f to overwrite\n"
    assert Path("out/part-4.tar.sqz").read_bytes() == b"somebody else's"
    run(*command(), "-q", "-f", *CLUSTER)
    assert content("out") == whole


def test_the_manifest_proves_all_members():
    run(*command())
    index = Path("out/part-1.tar.members.sqz")
    data = index.read_bytes()
    index.unlink()
    assert "out/part-1.tar.sqz: there is no index of members" in fails("test", "-q", "--manifest", MANIFEST)
    index.write_bytes(Path("out/part-2.tar.members.sqz").read_bytes())
    assert "is that of another shard" in fails("test", "-q", "--manifest", MANIFEST)
    index.write_bytes(data)
    text = Path(MANIFEST).read_text()
    digits = next(json.loads(line)["checksum"] for line in text.splitlines() if "007.txt" in line)
    Path(MANIFEST).write_text(text.replace(digits, "0" * 16))
    said = fails("test", "-q", "--manifest", MANIFEST)
    assert said.startswith("Error: tree/sub/007.txt: out/part-1.tar.sqz has other content for it than ")
    Path(MANIFEST).write_text(text.replace("sub/007.txt", "sub/007.other"))
    assert fails("test", "-q", "--manifest", MANIFEST).endswith("out/part-1.tar.sqz does not contain it\n")
    Path(MANIFEST).write_text(text)
    Path("out/part-3.tar.sqz").unlink()
    said = fails("test", "-q", "--manifest", MANIFEST)
    assert said == "Error: out/part-3.tar.sqz: its output out/part-3.tar.sqz is missing\n"


def test_one_machine_begins_and_a_cluster_goes_on(whole, engine, monkeypatch):
    stop_after(monkeypatch, 4)
    assert call(*command(), "-q").exit_code == 1
    run(*command(), "-q", "-T", "2", *CLUSTER)
    assert content("out") == whole
    assert "is of a run with other options" in fails(*command(), "--block-size", "4K")


@pytest.mark.parametrize("by", [pytest.param((), marks=pytest.mark.slow), CLUSTER])
def test_the_dictionary_of_a_stopped_run_is_used_again(whole_trained, engine, monkeypatch, by):
    stop_after(monkeypatch, 1)
    assert call(*TRAINED, "out/part-{}.tar.sqz", *by).exit_code == 1
    monkeypatch.setattr("squeeze.codecs.stream.training.train", None)
    run(*TRAINED, "out/part-{}.tar.sqz", *by)
    assert content("out") == whole_trained and "part-dictionary.sqzp" in whole_trained
    run("test", "-q", "--manifest", MANIFEST, "-D", "out/part-dictionary.sqzp")


def test_a_run_from_a_store_to_a_store_goes_on(whole, engine):
    Store.reset()
    for name, data in FILES.items():
        Store.put(f"bucket/tree/{name}", data)
    Store.requests.clear()
    url = ("compress", "-1", "-r", "fake://bucket/tree", "--shards", "10K", "-q", *CLUSTER)
    run(*url, "-o", "fake://bucket/out/part-{}.tar.sqz", "--manifest", "other.jsonl")
    read = [request[0] for request in Store.requests if request[1].startswith("bucket/tree/sub/")]
    assert read.count("get") == read.count("head") == len(FILES)  # each is opened once, and not asked what it is
    made = {key.rpartition("/")[2]: data for key, data in Store.objects.items() if key.startswith("bucket/out")}
    assert made == whole and not Path("part-manifest.jsonl").exists()
    run("test", "-q", "--manifest", "other.jsonl", "fake://bucket/out")
    Store.put("bucket/tree/sub/007.txt", b"changed")
    said = fails(*url, "-o", "fake://bucket/out/part-{}.tar.sqz", "--manifest", "other.jsonl")
    assert "it changed since it went into fake://bucket/out/part-1.tar.sqz" in said


def test_a_manifest_in_the_folder_is_none_of_its_files(engine):
    run(*command(), "--manifest", "tree/sub/008.jsonl")
    assert members() == FILES
    assert call(*command(), "--manifest", "tree/sub/008.jsonl").stderr == "40 files were done before.\n"
    assert "--cluster" in usage_error(*command("out", "--backend", "llamacpp", *CLUSTER))


def test_what_a_run_left_that_noted_nothing_goes_with_the_next():
    """It was killed in its first shard, so that no manifest names it."""
    for name in ("part-0.tar.sqz", "part-0.tar.members.sqz"):
        Path(f"out/.{name}.abcdefgh.squeeze-0123abcd.tmp").write_bytes(b"half")
    mine = Path("out/.part-0.tar.sqz.abcdefgh.tmp")
    mine.write_bytes(b"mine")
    run(*command())
    assert list(Path("out").glob(".*")) == [mine]
