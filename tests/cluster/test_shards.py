"""Manifests of shards, wherever their run was stopped."""

from pathlib import Path

import pytest

from squeeze.cluster.engine import Needs
from squeeze.cluster.manifest import Manifest, read_manifest
from squeeze.cluster.run import ATTEMPTS
from squeeze.cluster.shards import SHARDS, Noted, Result, Task, by_workers, files_of, make_in_process, note
from squeeze.codecs.shards import write
from squeeze.codecs.shards.plan import Template, plan
from squeeze.codecs.shards.write import list_sources
from squeeze.errors import StorageError
from tests.makers.inline import Inline

OPTIONS = {"level": 1, "verify": True, "threads": 1}
TASK = Task(OPTIONS, ".mark", overwrite=False)


@pytest.fixture
def shards(tmp_path):
    """Planned, of four files each."""
    root = tmp_path / "root"
    root.mkdir()
    for number in range(12):
        (root / f"{number:02d}.{number}").write_bytes(b"%d" % (number % 10) * 4000)
    return list(plan(listing(tmp_path), Template(tmp_path / "part-{}.tar.sqz"), 20480))


def listing(folder):
    root = folder / "root"
    return list(list_sources(sorted(root.iterdir()), root, print))


def noted(folder):
    return Noted(folder / "manifest", Template(folder / "part-{}.tar.sqz"))


def noting(folder, *made):
    manifest = Manifest(folder / "manifest", SHARDS, {"root": str(folder / "root")})
    for planned, result in made:
        list(note(manifest, planned, result))
    manifest.close()


def test_files_count_with_the_record_of_their_shard(tmp_path, shards):
    results = [make_in_process(planned, TASK) for planned in shards]
    noting(tmp_path, *zip(shards, results, strict=True))
    assert [result.raw for result in results] == [planned.size for planned in shards]
    known, files = noted(tmp_path), listing(tmp_path)
    assert [known.shard_of(file) for file in files] == [0] * 4 + [1] * 4 + [2] * 4
    assert not any(map(known.has_failed, files))
    lines = (tmp_path / "manifest").read_text().splitlines(keepends=True)
    (tmp_path / "manifest").write_text("".join(lines[:-1]))  # stopped before the last shard was noted as such
    known = noted(tmp_path)
    assert [known.shard_of(file) for file in files] == [0] * 4 + [1] * 4 + [None] * 4
    assert [known.is_there(planned.target) for planned in shards] == [True, True, False]
    (again,) = plan(files, Template(tmp_path / "part-{}.tar.sqz"), 20480, known)
    assert again.target == shards[2].target
    (tmp_path / "part-0.tar.sqz").write_bytes(b"another")
    shards[1].target.unlink()
    assert [noted(tmp_path).is_there(planned.target) for planned in shards] == [False] * 3


def test_a_shard_that_was_made_again_counts_for_its_own_files_alone(tmp_path, shards):
    noting(tmp_path, (shards[0], make_in_process(shards[0], TASK)))
    shards[0].target.unlink()
    files = listing(tmp_path)
    Path(files[0].path).write_bytes(b"longer" * 3000)
    files = listing(tmp_path)
    again, *_ = plan(files, Template(tmp_path / "part-{}.tar.sqz"), 20480, noted(tmp_path))
    assert again.target == shards[0].target and len(again.sources) < 4
    noting(tmp_path, (again, make_in_process(again, TASK)))
    known = noted(tmp_path)
    held = [known.shard_of(file) is not None for file in files]
    assert held == [True] * len(again.sources) + [False] * (len(files) - len(again.sources))


def test_files_that_failed_or_changed(tmp_path, shards):
    first = next(iter(shards[0].sources))
    first.path.write_bytes(b"another")
    result = make_in_process(shards[0], TASK)
    assert result.excluded == {first.name: "it changed while it was read: run again when nothing writes to it"}
    noting(tmp_path, (shards[0], result), (shards[1], Result(error="no room")))
    known = noted(tmp_path)
    files = listing(tmp_path)
    assert [known.has_failed(file) for file in files] == [True] + [False] * 11
    assert [known.shard_of(file) for file in files[:5]] == [None, 0, 0, 0, None]
    files[1].path.write_bytes(b"later")
    changed = [known.changed(file) for file in listing(tmp_path)]
    assert changed == ["", str(shards[0].target)] + [""] * 10
    failed = {record.source: record.error for record in read_manifest(tmp_path / "manifest").records if record.error}
    assert failed == {str(first.path): result.excluded[first.name], str(shards[1].target): "no room"}


def test_sizes_of_files_sum_up_to_those_of_the_shard(tmp_path, shards):
    result = make_in_process(shards[0], TASK)
    done = list(files_of(shards[0], result))
    assert sum(one.coded for one in done) == result.coded == shards[0].target.stat().st_size
    assert sum(one.raw for one in done) == 16_000 and all(one.coded > 0 for one in done)


def test_what_may_pass_is_tried_again_and_what_does_not_is_told(tmp_path, shards, monkeypatch):
    right, tried = write.write_shard, []

    def failing(target, *arguments, **options):
        tried.append(target.name)
        if target.name == "part-0.tar.sqz" and len(tried) < 3:
            raise StorageError(5, "the connection broke", str(target))
        if target.name == "part-1.tar.sqz":
            raise PermissionError(13, "Permission denied", str(target))
        return right(target, *arguments, **options)

    monkeypatch.setattr(write, "write_shard", failing)
    results = {planned.target.name: result for planned, result in by_workers(Inline(), shards, TASK, Needs())}
    assert tried.count("part-0.tar.sqz") == results["part-0.tar.sqz"].attempts > 1
    assert results["part-1.tar.sqz"].error == "Permission denied" and tried.count("part-1.tar.sqz") == 1
    assert not results["part-0.tar.sqz"].error and shards[2].target.exists()


def test_lost_workers_are_retried_and_then_reported(tmp_path, shards):
    calls = []

    def breaks(call):
        calls.append(call)
        if "part-1" in call.name or len(calls) == 1:
            raise RuntimeError("killed\nby the kernel")

    results = {
        planned.target.name: result for planned, result in by_workers(Inline(breaks=breaks), shards, TASK, Needs())
    }
    assert results["part-1.tar.sqz"].error == f"its worker was lost, {ATTEMPTS} times: killed"
    assert [(one.attempts, one.lost) for one in results.values()].count((2, 1)) == 1
    assert calls[0].name == "shard part-0.tar.sqz, 4 files" and calls[0].needs.memory > 1 << 26


def test_what_was_written_and_not_noted_is_compared(tmp_path, shards):
    before = make_in_process(shards[0], TASK)
    data = shards[0].target.read_bytes()
    again = make_in_process(shards[0], TASK)
    assert (again.checksums, again.checksum, again.index) == (before.checksums, before.checksum, before.index)
    (tmp_path / "part-1.tar.members.sqz").write_bytes(b"of a shard that did not come")
    assert not make_in_process(shards[1], TASK).error
    shards[0].target.write_bytes(data + b"x")
    (_, result), *_ = by_workers(Inline(), shards[:1], TASK, Needs())
    assert "already exists; use `overwrite=True`" in result.error and shards[0].target.read_bytes() == data + b"x"
    assert make_in_process(shards[0], Task(OPTIONS, ".mark", overwrite=True)).checksum == before.checksum
    assert shards[0].target.read_bytes() == data
