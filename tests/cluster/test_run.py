"""Files by calls of an engine: planned, tried again, put together, and the same bytes as on one machine."""

from pathlib import Path

import pytest

import squeeze
from squeeze.cluster.engine import Needs
from squeeze.cluster.manifest import Manifest, read_manifest
from squeeze.cluster.operations import COMPRESS, DECOMPRESS, TEST, FileResult, Task
from squeeze.cluster.run import ATTEMPTS, Run
from tests.makers.cluster_runs import BLOCK, OPTIONS, listed, made, run, some_bytes
from tests.makers.inline import Inline


def test_parts_are_put_together_to_the_same_bytes_and_restored_in_parts(tmp_path, large):
    going = run(engine := Inline(), [large])
    (done,) = going.results([large])
    assert not done.error and engine.calls > 10
    data = large.source.read_bytes()
    assert large.target.read_bytes() == squeeze.compress(data, 1, block_size=BLOCK)
    assert (done.raw, done.coded) == (len(data), large.target.stat().st_size)
    back = listed(large.target, tmp_path / "back")
    for operation in (DECOMPRESS, TEST):
        going = run(engine := Inline(), [back], operation, seconds=0.003)
        (restored,) = going.results([back])
        assert not restored.error and engine.calls > 3, restored
        assert restored.checksum == done.checksum
    assert (tmp_path / "back").read_bytes() == data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "large", "large.sqz"]


def test_streams_after_each_other_are_restored_in_parts(tmp_path):
    pieces = [some_bytes(9 * BLOCK), b"", b"short", some_bytes(5 * BLOCK)]
    path = tmp_path / "several.sqz"
    path.write_bytes(b"".join(squeeze.compress(piece, 1, block_size=BLOCK) for piece in pieces))
    file = listed(path, tmp_path / "several")
    (done,) = run(Inline(), [file], DECOMPRESS, seconds=0.003).results([file])
    assert not done.error
    assert file.target.read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("function", ["", "process_part", "join_parts"])
def test_progress_counts_each_byte_once_and_parts_as_they_end(tmp_path, large, function):
    small, told, lost = made(tmp_path, "small", b"few bytes"), [], []

    def breaks(call):
        if call.function.__name__ == function and len(lost) < 3:
            lost.append(call)
            raise RuntimeError("killed")

    going = run(Inline(breaks=breaks), [])
    going.progress = told.append
    assert not any(done.error for done in going.results([large, small]))
    assert sum(told) == large.size + small.size and len(told) > 10 and min(told) > 0
    assert len(lost) == 3 * bool(function)


def test_small_files_go_together(tmp_path):
    files = [made(tmp_path, f"{number:03d}", b"few bytes") for number in range(40)]
    engine = Inline()
    done = list(run(engine, files, seconds=0.1).results(files))
    assert [one.file for one in done] == files
    assert 5 <= engine.calls <= 16  # a hundredth of a second each, and something; the last calls are shorter
    assert all(file.target.read_bytes() == squeeze.compress(b"few bytes", 1) for file in files)


def test_files_are_listed_when_there_is_room_for_them(tmp_path):
    files = [made(tmp_path, f"{number:03d}", b"few bytes") for number in range(30)]
    engine, asked = Inline(room=2), 0

    def listing():
        nonlocal asked
        for file in files:
            asked += 1
            yield file

    results = run(engine, files, seconds=0.0001).results(listing())
    next(results)
    assert asked < 6 and engine.most == 2
    assert len(list(results)) == 29


def test_a_call_that_is_lost_is_tried_again_each_file_alone(tmp_path):
    files = [made(tmp_path, f"{number}", b"few bytes") for number in range(6)]

    def breaks(call):
        if call.function.__name__ == "process_files" and any(file.source.name == "3" for file in call.arguments[0]):
            raise RuntimeError("killed\nby the kernel")

    going = run(engine := Inline(breaks=breaks), files, seconds=10)
    done = {one.file.source.name: one.error for one in going.results(files)}
    assert {name for name, error in done.items() if error} == {"3"}
    assert done["3"] == f"its worker was lost, {ATTEMPTS} times: killed"
    assert engine.calls == 1 + 6 + (ATTEMPTS - 2)
    assert going.failures == 1


@pytest.mark.parametrize("function", ["process_part", "join_parts"])
def test_a_part_that_is_lost_is_tried_again(tmp_path, large, function):
    lost = []

    def breaks(call):
        if call.function.__name__ == function and len(lost) < 3:
            lost.append(call)
            raise RuntimeError("killed")

    going = run(Inline(breaks=breaks), [large])
    (done,) = going.results([large])
    assert not done.error and going.lost == 3
    assert large.target.read_bytes() == squeeze.compress(large.source.read_bytes(), 1, block_size=BLOCK)


def test_a_file_whose_part_fails_fails_once(tmp_path, large):
    def breaks(call):
        if call.function.__name__ == "process_part" and call.arguments[0].number in (2, 5):
            raise RuntimeError("killed")

    (done,) = run(Inline(breaks=breaks), [large]).results([large])
    assert "killed" in done.error
    assert not large.target.exists()


def test_parts_that_are_there_are_not_made_again(tmp_path, large):
    def stops(call):
        if call.function.__name__ == "join_parts":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run(Inline(breaks=stops), [large]).results([large]))
    (folder,) = tmp_path.glob(".large.sqz.*.parts")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    cut = folder / "00000002"
    cut.write_bytes(cut.read_bytes()[:-1])  # as if the machine had stopped

    def looks(call):
        if call.function.__name__ == "join_parts":
            after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
            assert {name for name in after if after[name] != before[name]} == {"00000002"}

    (done,) = run(Inline(breaks=looks), [large]).results([large])
    assert not done.error and not folder.exists()


def test_a_manifest_knows_what_is_done(tmp_path):
    files = [made(tmp_path, name, name.encode() * 50) for name in ("a", "b")]
    path = tmp_path / "manifest.jsonl"
    task = Task(COMPRESS, OPTIONS, "")
    manifest = Manifest(path, COMPRESS, OPTIONS)
    results = Run(Inline(room=1), task, manifest, Needs(), 0.0001).results(files)
    first = next(results)
    manifest.close()
    with path.open("a") as file:
        file.write('{"source": "cut o')  # as a crash leaves it
    again = Manifest(path, COMPRESS, OPTIONS)
    known = [again.is_done(str(f.source), f.stamp, str(f.target), first.coded) for f in files]
    assert known == [True, False]
    assert not again.is_done(str(files[0].source), "another", str(files[0].target), first.coded)
    assert again.earlier == {manifest.session}
    rest = Run(Inline(), task, again, Needs(), 0.0001)
    assert len(list(rest.results(files[1:]))) == 1
    again.complete(2)
    again.close()
    told = read_manifest(path)
    records = list(told.records)
    assert (told.operation, told.done, told.files) == (COMPRESS, 2, 2)
    assert [Path(one.source).name for one in records] == ["a", "b"]
    assert {one.output_size for one in records} == {file.target.stat().st_size for file in files}


def test_an_output_that_is_there_is_kept_and_has_to_be_the_same(tmp_path, large):
    small = made(tmp_path, "small", b"few bytes")
    for file in (small, large):
        file.target.write_bytes(squeeze.compress(file.source.read_bytes(), 1, block_size=BLOCK))
    kept = Task(COMPRESS, OPTIONS, ".mark", overwrite=False)

    def done() -> dict[str, str]:
        results = Run(Inline(), kept, None, Needs(), 0.01).results([small, large])
        return {one.file.source.name: one.error for one in results}

    before = [file.target.stat().st_mtime_ns for file in (small, large)]
    assert done() == {"small": "", "large": ""}
    assert [file.target.stat().st_mtime_ns for file in (small, large)] == before
    for spoil in (lambda data: data[:-1], lambda data: data + b"x", lambda data: b"another"):
        others = [spoil(file.target.read_bytes()) for file in (small, large)]
        for file, other in zip((small, large), others, strict=True):
            file.target.write_bytes(other)
        assert all("already exists; use `overwrite=True`" in error for error in done().values())
        assert [file.target.read_bytes() for file in (small, large)] == others


def test_an_output_that_comes_meanwhile_is_kept(tmp_path):
    file = made(tmp_path, "a", b"few bytes")

    def comes(call):
        file.target.write_bytes(b"somebody else's")

    task = Task(COMPRESS, OPTIONS, ".mark", overwrite=False)
    (done,) = Run(Inline(breaks=comes), task, None, Needs()).results([file])
    assert "already exists" in done.error and file.target.read_bytes() == b"somebody else's"


@pytest.mark.parametrize(("name", "value"), [("__version__", "another"), ("to_header", lambda settings: {"level": 7})])
def test_parts_of_another_version_or_another_header_are_not_taken(tmp_path, large, monkeypatch, name, value):
    def stops(call):
        if call.function.__name__ == "join_parts":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(f"squeeze.cluster.files.{name}", value)
        list(run(Inline(breaks=stops), [large]).results([large]))
    (stale,) = tmp_path.glob(".large.sqz.*.parts")
    for part in stale.iterdir():
        part.write_bytes(b"of another header")
    (done,) = run(Inline(), [large]).results([large])
    assert not done.error
    assert large.target.read_bytes() == squeeze.compress(large.source.read_bytes(), 1, block_size=BLOCK)


def test_what_a_call_raises_is_no_lost_worker(tmp_path, monkeypatch):
    files = [made(tmp_path, f"{number}", b"few bytes") for number in range(4)]

    def fails(file, task):
        if file.source.name == "2":
            raise ValueError("no such\nnumber")
        return FileResult(file, 9, 9)

    monkeypatch.setattr("squeeze.cluster.files._process_file", fails)
    going = run(engine := Inline(), files, seconds=10)
    done = {one.file.source.name: one.error for one in going.results(files)}
    assert done == {"0": "", "1": "", "2": "ValueError: no such", "3": ""}
    assert going.lost == 0 and engine.calls == 1 + 4


def test_what_may_pass_is_waited_for_longer_each_time(tmp_path, monkeypatch):
    file, waited, now = made(tmp_path, "a", b"few bytes"), [], [0.0]
    monkeypatch.setattr("squeeze.cluster.run.PAUSE", 5.0)
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def sleeps(seconds):
        waited.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("time.sleep", sleeps)

    def broken(file, task):
        raise OSError(5, "the connection broke")

    monkeypatch.setattr("squeeze.cluster.files._process_file", broken)
    (done,) = run(Inline(), [file]).results([file])
    assert done.error == "the connection broke" and waited == [5.0, 10.0, 20.0]
