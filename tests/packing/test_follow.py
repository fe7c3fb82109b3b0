"""A training run that is packed while it goes: what is whole, chains, retention, stops."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import squeeze
from squeeze.errors import SqueezeError
from squeeze.packing import codings, follow as following, training_run
from squeeze.packing.chain import history
from squeeze.packing.follow import DAMAGED, LEFT, PACKED, Follow
from squeeze.packing.training_run import NAME, group, order
from tests.makers.checkpoints import same, write
from tests.makers.command import SQUEEZE, call, usage_error
from tests.makers.followed import FAST, checkpoint, damage, restored, run, values

pytestmark = pytest.mark.usefixtures("in_folder")


def test_names_are_sorted_by_their_numbers():
    names = ["checkpoint-1000", "checkpoint-900", "a-2-3", "a-2-10", "a-10-1", "final"]
    assert sorted(names, key=order) == ["a-2-3", "a-2-10", "a-10-1", "checkpoint-900", "checkpoint-1000", "final"]
    assert group("checkpoint-900") == group("checkpoint-1000") != group("final")


def test_each_checkpoint_is_the_difference_from_the_one_before():
    names = [checkpoint(step).name for step in (900, 1000, 1100)]
    assert run() == [(PACKED, name) for name in names]
    assert all(map(restored, names))
    assert [link.path.name for link in history("packed/checkpoint-1100")] == names[::-1]
    checkpoint(1200)
    assert run() == [(PACKED, "checkpoint-1200")]  # and nothing again
    assert len(list(history("packed/checkpoint-1200"))) == 4 and restored("checkpoint-1200")
    assert {path.name for path in Path("packed").iterdir()} == {*names, "checkpoint-1200", NAME}


def test_a_note_tells_that_a_chain_ended():
    for step in (1, 2, 3):
        checkpoint(step)
    events = list(Follow(source=Path("run"), target=Path("packed"), max_chain=1, **FAST).run())
    assert [event.base for event in events] == ["", "checkpoint-1", ""]
    assert events[2].totals.notes == (
        "run/checkpoint-3: packed without the base, which ends a chain of 1 differences (1 are allowed)",
    )
    said = call("pack", "run/checkpoint-3", "third", "--base", "packed/checkpoint-2", "--max-chain", 1).stderr
    assert said == f"Note: {events[2].totals.notes[0]}\n"


def test_single_files_are_chains_by_their_names():
    Path("run").mkdir()
    for step in (1, 2):
        write(f"run/model-{step}.safetensors", {"w": ("BF16", (200, 200), values(step).tobytes())})
        torch.save({"m": torch.from_numpy(values(step).astype(np.float32))}, f"run/step-{step}.pt")
    torch.save({"arguments": 1}, "run/training_args.bin")
    Path("run/log.txt").write_text("text")
    events = list(Follow(source=Path("run"), target=Path("packed"), **FAST).run())
    assert {event.name: event.base for event in events if event.kind == PACKED} == {
        **{"model-1.safetensors": "", "model-2.safetensors": "model-1.safetensors"},
        **{"step-1.pt": "", "step-2.pt": "step-1.pt"},
    }
    assert len(events) == 4
    cut = damage(Path("run/step-1.pt"))
    Path("run/step-1.pt").rename("run/step-3.pt")
    events = list(Follow(source=Path("run"), target=Path("packed"), **FAST).run())
    assert [(e.kind, e.name, e.why) for e in events] == [(LEFT, "step-3.pt", "not a whole file of torch.save")]
    Path("run/step-3.pt").write_bytes(cut)
    assert run() == [(PACKED, "step-3.pt")]
    for name in ("model-2.safetensors", "step-2.pt"):
        squeeze.unpack(f"packed/{name}", "back", overwrite=True)
        assert same("back", f"run/{name}")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("trainer_state.json", "has no trainer_state.json yet"),
        ("model.safetensors", "model.safetensors: the file ends"),
        ("optimizer.pt", "optimizer.pt: not a whole file"),
    ],
)
def test_an_incomplete_checkpoint_waits(name, reason):
    path = checkpoint(1) / name
    whole_one = path.read_bytes()
    if name == "trainer_state.json":
        path.unlink()
    else:
        damage(path)
    events = list(Follow(source=Path("run"), target=Path("packed"), **FAST).run())
    assert [(event.kind, event.name) for event in events] == [(LEFT, "checkpoint-1")]
    assert events[0].why.startswith(reason)
    path.write_bytes(whole_one)
    assert run() == [(PACKED, "checkpoint-1")] and restored("checkpoint-1")


def test_distributed_checkpoints_and_shards_wait_for_their_last_file(tmp_path):
    (tmp_path / "step-1/model").mkdir(parents=True)
    torch.save(torch.ones(9), tmp_path / "step-1/model/__0_0.distcp")
    assert training_run.why_incomplete(tmp_path / "step-1") == "has no .metadata next to model/__0_0.distcp yet"
    (tmp_path / "step-1/model/.metadata").touch()
    assert training_run.why_incomplete(tmp_path / "step-1") == ""
    write(tmp_path / "step-1/a.safetensors", {})
    (tmp_path / "step-1/model.safetensors.index.json").write_text('{"weight_map": {"w": "b.safetensors"}}')
    assert "the shard b.safetensors is missing" in training_run.why_incomplete(tmp_path / "step-1")


def test_other_folders_and_links_are_ignored():
    checkpoint(1)
    Path("run/logs").mkdir()
    Path("run/logs/events.txt").touch()
    Path("run/latest").symlink_to("checkpoint-1")
    Path("run/tmp-checkpoint-2").mkdir()
    shutil.copy("run/checkpoint-1/model.safetensors", "run/tmp-checkpoint-2")
    assert run() == [(PACKED, "checkpoint-1")]


def test_a_checkpoint_that_is_being_written_waits():
    """Slowly: what is written to is not packed before it rests."""
    Path("run").mkdir()
    made = [checkpoint(step, "made") for step in (1, 2, 3)]

    def write_all() -> None:
        for path in made:
            target = Path("run", path.name)
            target.mkdir()
            for file in sorted(path.iterdir(), key=lambda one: one.name == "trainer_state.json"):
                data = file.read_bytes()
                with (target / file.name).open("wb", buffering=0) as out:
                    for start in range(0, len(data), 30_000):
                        out.write(data[start : start + 30_000])
                        time.sleep(0.002)

    writer = threading.Thread(target=write_all)
    writer.start()
    found = list(Follow(source=Path("run"), target=Path("packed"), interval=0.05, until_idle=1.5).run())
    writer.join()
    assert [(event.kind, event.name) for event in found] == [(PACKED, path.name) for path in made]
    assert all(restored(path.name) for path in made)


def flip(path: Path) -> None:
    """Change one bit in the last payload."""
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)


FAULTS = {
    "a payload": lambda path: flip(path / "model.safetensors"),
    "a header": lambda path: damage(path / "model.safetensors", 0.9),
    "a manifest and all": lambda path: [file.unlink() for file in path.iterdir()],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_packed_form_does_not_end_the_chain(fault):
    """Also where the last one is a difference from it."""
    for step in (1, 2):
        checkpoint(step)
    assert run() == [(PACKED, "checkpoint-1"), (PACKED, "checkpoint-2")]
    FAULTS[fault](Path("packed/checkpoint-1"))
    for step in (3, 4):
        checkpoint(step)
    events = list(Follow(source=Path("run"), target=Path("packed"), **FAST).run())
    assert [(event.kind, event.name, event.base) for event in events] == [
        (DAMAGED, "checkpoint-2", ""),
        (PACKED, "checkpoint-3", ""),
        (PACKED, "checkpoint-4", "checkpoint-3"),
    ]
    assert restored("checkpoint-3") and restored("checkpoint-4")
    if fault != "a manifest and all":
        assert "packed/checkpoint-1/model.safetensors" in events[0].why


def test_a_damaged_packed_form_gives_one_line():
    checkpoint(1)
    run()
    flip(Path("packed/checkpoint-1/model.safetensors"))
    checkpoint(2)
    done = call("pack", "--follow", "run", "packed", "--quiet", "--interval", 0.02, "--until-idle", 0.1)
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: checkpoint-1: its packed form does not decode; the next checkpoint is packed whole: "
        "packed/checkpoint-1/model.safetensors: tensor 'w': its checksum differs: the file is damaged\n",
    )
    assert restored("checkpoint-2")
    assert run() == []


def test_a_run_continues_without_the_last_note_of_its_journal():
    for step in (1, 2):
        checkpoint(step)

    def stopped(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(following.Journal, "note", stopped)
        run()
    before = Path("packed/checkpoint-1/model.safetensors").stat().st_mtime_ns
    assert run() == [(PACKED, "checkpoint-1"), (PACKED, "checkpoint-2")]
    assert Path("packed/checkpoint-1/model.safetensors").stat().st_mtime_ns == before


def test_refuses_a_target_that_is_something_else():
    checkpoint(1)
    Path("packed/checkpoint-1").mkdir(parents=True)
    Path("packed/checkpoint-1/mine").touch()
    done = call("pack", "--follow", "run", "packed", "--interval", 0.02, "--until-idle", 0.1)
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: checkpoint-1: packed/checkpoint-1 exists and is not the packed form of checkpoint-1: move it away\n",
    )
    assert Path("packed/checkpoint-1/mine").exists()


def test_a_checkpoint_that_the_run_deletes_meanwhile_is_skipped(monkeypatch):
    for step in (1, 2):
        checkpoint(step)
    real = codings.encode_in_memory

    def encode(*arguments):
        shutil.rmtree("run/checkpoint-1", ignore_errors=True)
        return real(*arguments)

    monkeypatch.setattr(codings, "encode_in_memory", encode)
    assert run() == [(PACKED, "checkpoint-2")]
    assert sorted(path.name for path in Path("packed").iterdir()) == [NAME, "checkpoint-2"]


def test_equal_checkpoints_do_not_become_each_others_base():
    for step in (900, 1000, 1100, 1200):
        shutil.copytree(checkpoint(1, "made"), f"run/checkpoint-{step}")
        shutil.rmtree("made")
    assert [kind for kind, _ in run()] == [PACKED] * 4
    for step in (900, 1000, 1100, 1200):
        assert restored(f"checkpoint-{step}")
    assert [link.path.name for link in history("packed/checkpoint-1200")] == ["checkpoint-1200", "checkpoint-900"]


def test_refuses_a_second_process_in_the_same_folder():
    checkpoint(1)
    first = Follow(source=Path("run"), target=Path("packed"), **FAST).run()
    next(first)
    with pytest.raises(SqueezeError, match=r"^packed: another process already follows a run into it: "):
        run()
    first.close()
    assert run() == []


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 1}', '{"format": 1, "packed": [7]}', '{"format": 2, "packed": []}']
)
def test_refuses_a_damaged_journal(text):
    checkpoint(1)
    Path("packed").mkdir()
    Path("packed", NAME).write_text(text)
    with pytest.raises(SqueezeError, match=r"^packed/\.squeeze-follow\.json: is damaged: .*: delete it"):
        run()


def test_refuses_folders_that_cannot_be_followed():
    checkpoint(1)
    Path("file").touch()
    for source, target, words in (
        ("file", "packed", "^file: not a folder: name the folder of the run$"),
        ("run", "run/packed", "the output cannot be in the input folder"),
        ("run", "no/packed", "the folder no does not exist"),
        ("run", "file", "exists and is a file"),
    ):
        with pytest.raises(SqueezeError, match=words):
            run(source, target)


def test_the_command_prints_a_line_or_a_record_for_each_event():
    checkpoint(1)
    checkpoint(2)
    shown = call("pack", "--follow", "run", "packed", "--interval", 0.02, "--until-idle", 0.1)
    lines = shown.stderr.splitlines()
    assert lines[0].startswith("checkpoint-1: ") and lines[0].endswith(", whole")
    assert lines[1].endswith(" %), difference from checkpoint-1") and shown.exit_code == 0
    shutil.rmtree("packed")
    shown = call("pack", "--follow", "run", "packed", "--interval", 0.02, "--until-idle", 0.1, "--json")
    records = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(one["event"], one["checkpoint"], one.get("base")) for one in records] == [
        ("packed", "checkpoint-1", None),
        ("packed", "checkpoint-2", "checkpoint-1"),
    ]
    assert records[1]["coded_size"] < records[1]["raw_size"] and shown.stderr == ""
    assert usage_error("pack", "run", "packed", "--keep", 3).endswith("--remove-source go with --follow")
    for option in (["--force"], ["--base", "run"]):
        assert "leave out --base and --force" in usage_error("pack", "--follow", "run", "packed", *option)


def test_an_interrupt_tells_what_is_kept():
    checkpoint(1)
    command = [*SQUEEZE, "pack", "--follow", "run", "packed", "--interval", "0.05"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr.readline().startswith("checkpoint-1: ")
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert said.splitlines()[0] == "Stopped: 1 checkpoints are packed in packed; the same command continues from there."
    assert process.returncode == -signal.SIGINT
    squeeze.verify("packed/checkpoint-1")
    assert run() == []
