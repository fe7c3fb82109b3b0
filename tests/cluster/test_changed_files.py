"""Sources and parts that change, are damaged or disappear while a run reads them."""

import os
from pathlib import Path

import pytest

import squeeze
from squeeze.cluster.engine import Needs
from squeeze.cluster.operations import COMPRESS, DECOMPRESS, TEST, Task
from squeeze.cluster.run import Run
from tests.makers.cluster_runs import BLOCK, OPTIONS, listed, made, run, some_bytes
from tests.makers.inline import Inline


def same_stamp(path: Path, data: bytes) -> None:
    """Write other bytes of the same length, with the times from before."""
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_change_that_no_stamp_tells_is_found_when_parts_are_put_together(tmp_path, large):
    data, changed = large.source.read_bytes(), []

    def changes(call):
        if call.function.__name__ == "process_part" and call.arguments[0].number == 3 and not changed:
            changed.append(same_stamp(large.source, data[: 3 * BLOCK] + b"x" * BLOCK + data[4 * BLOCK :]))

    (done,) = run(Inline(breaks=changes), [large]).results([large])
    assert "the input changed while it was read" in done.error and not large.target.exists()


@pytest.mark.parametrize("place", [0, 40, -1])
def test_a_part_that_is_damaged_before_it_is_put_to_the_others(tmp_path, large, place):
    def spoils(call):
        if call.function.__name__ == "join_parts":
            (folder,) = tmp_path.glob(".large.sqz.*.parts")
            data = bytearray((folder / "00000003").read_bytes())
            data[place] ^= 0xFF
            (folder / "00000003").write_bytes(data)

    (done,) = run(Inline(breaks=spoils), [large]).results([large])
    assert "a part of the file is damaged" in done.error and not large.target.exists()


def test_of_the_source_nothing_is_read_again(tmp_path):
    file = made(tmp_path, "file", some_bytes(20 * BLOCK))

    def spoils(call):
        if call.function.__name__ == "join_parts":
            same_stamp(file.source, bytes(file.size))

    data = file.source.read_bytes()
    (done,) = run(Inline(breaks=spoils), [file]).results([file])
    assert not done.error and squeeze.decompress(file.target.read_bytes()) == data


def test_a_source_that_changes_is_read_again(tmp_path):
    file = made(tmp_path, "grows", b"short")
    changes = [b"longer", b"longer still"]

    def breaks(call):
        if changes:
            file.source.write_bytes(changes.pop())

    (done,) = run(Inline(breaks=breaks), [file]).results([file])
    assert not done.error
    assert squeeze.decompress(file.target.read_bytes()) == b"longer"


def test_a_source_that_goes_on_changing_is_reported(tmp_path):
    file, sizes = made(tmp_path, "grows", b"short"), iter(range(1, 100))
    going = run(Inline(breaks=lambda call: file.source.write_bytes(b"x" * next(sizes)) and None), [file])
    (done,) = going.results([file])
    assert "it changed while it was read" in done.error
    assert not file.target.exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "cut off"),
        (lambda path: path.write_bytes(b"nothing of ours"), "not a .sqz file"),
        (lambda path: path.unlink(), "No such file"),
    ],
)
def test_what_is_damaged_or_gone_is_reported_and_does_not_stop_the_others(tmp_path, spoil, message):
    files = []
    for name in ("a", "b", "c"):
        path = tmp_path / f"{name}.sqz"
        path.write_bytes(squeeze.compress(b"few bytes" * 100, 1))
        files.append(listed(path, tmp_path / name))
    spoil(files[1].source)
    if files[1].source.exists():
        files[1] = listed(files[1].source, files[1].target)
    engine = Inline()
    done = {one.file.source.name: one.error for one in run(engine, files, DECOMPRESS).results(files)}
    assert {name for name, error in done.items() if error} == {"b.sqz"}
    assert message in done["b.sqz"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".sqz") == ["a", "c"]


def test_a_large_file_that_is_damaged(tmp_path, large):
    coded = bytearray(squeeze.compress(large.source.read_bytes(), 1, block_size=BLOCK))
    coded[len(coded) // 2] ^= 1
    path = tmp_path / "damaged.sqz"
    path.write_bytes(coded)
    file = listed(path, tmp_path / "damaged")
    for operation in (DECOMPRESS, TEST):
        (done,) = run(Inline(), [file], operation, seconds=0.003).results([file])
        assert "damaged" in done.error
    assert not (tmp_path / "damaged").exists()


def test_what_is_gone_while_an_output_is_compared_is_said(tmp_path, large):
    large.target.write_bytes(squeeze.compress(large.source.read_bytes(), 1, block_size=BLOCK))
    gone = []

    def loses_a_part(call):
        if call.function.__name__ == "join_parts" and not gone:
            (folder,) = tmp_path.glob(".large.sqz.*.parts")
            gone.append((folder / "00000003").unlink())

    task = Task(COMPRESS, OPTIONS, ".mark", overwrite=False)
    (done,) = Run(Inline(breaks=loses_a_part), task, None, Needs(), 0.01).results([large])
    assert not done.error and gone
