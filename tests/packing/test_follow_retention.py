"""Retention deletes packed forms that no chain needs, and sources that are verified."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import squeeze
from squeeze.errors import SqueezeError
from squeeze.packing.follow import DROPPED, LEFT, PACKED, REMOVED, Follow
from squeeze.packing.training_run import NAME
from tests.makers.checkpoints import content, write
from tests.makers.followed import FAST, checkpoint, damage, restored, run, values

pytestmark = pytest.mark.usefixtures("in_folder")


def test_retention_keeps_bases():
    for step in range(1, 7):
        checkpoint(step)
    found = run(max_chain=2, keep=2)
    # whole: 1 and 4; the last two are differences from 4
    assert [name for kind, name in found if kind == DROPPED] == [f"checkpoint-{step}" for step in (1, 2, 3)]
    assert sorted(path.name for path in Path("packed").glob("checkpoint-*")) == [
        f"checkpoint-{step}" for step in (4, 5, 6)
    ]
    assert restored("checkpoint-6") and restored("checkpoint-5")
    assert run(max_chain=2, keep=2) == []  # what was dropped is not packed again
    checkpoint(7)
    assert run(max_chain=2, keep=1) == [(PACKED, "checkpoint-7"), *((DROPPED, f"checkpoint-{n}") for n in (4, 5, 6))]


def test_retention_keeps_bases_of_checkpoints_outside_the_journal():
    checkpoint(1)
    checkpoint(2)
    run()
    squeeze.pack("run/checkpoint-2", "packed/mine", base="packed/checkpoint-2")
    for step in (3, 4):
        checkpoint(step)
    assert DROPPED not in dict(run(max_chain=1, keep=1))  # mine needs 2, which needs 1; 4 needs 3
    squeeze.verify("packed/mine")


@pytest.mark.parametrize("name", ["checkpoint-1", "mine", "mine.safetensors"])
def test_retention_deletes_nothing_while_something_is_unreadable(name):
    """It may need what would go."""
    for step in (1, 2, 3):
        checkpoint(step)
    run(max_chain=0)
    if name == "mine":
        squeeze.pack("run/checkpoint-2", "packed/mine", base="packed/checkpoint-1")
    elif name == "mine.safetensors":
        weights = "checkpoint-1/model.safetensors"
        squeeze.pack(f"run/{weights}", f"packed/{name}", base=f"packed/{weights}")
    path = Path("packed", name)
    path = path / "model.safetensors" if path.is_dir() else path
    whole_one = damage(path)
    for step in (4, 5):
        checkpoint(step)
    found = list(Follow(source=Path("run"), target=Path("packed"), max_chain=0, keep=1, **FAST).run())
    assert DROPPED not in {event.kind for event in found}
    why = {event.why.partition(":")[0] for event in found if event.name == name}
    assert why == {"cannot be read, so no packed form is deleted"}
    path.write_bytes(whole_one)
    checkpoint(6)
    assert (DROPPED, "checkpoint-5") in run(max_chain=0, keep=1)


def test_retention_ignores_files_that_are_not_packed():
    Path("packed/notes").mkdir(parents=True)
    torch.save({"arguments": 1}, "packed/mine.bin")
    write("packed/mine.safetensors", {"w": ("BF16", (200, 200), values(1).tobytes())})
    for step in (1, 2):
        checkpoint(step)
    assert (DROPPED, "checkpoint-1") in run(max_chain=0, keep=1)


def test_sources_are_deleted_once_their_packed_form_is_verified():
    before = {}
    for step in (1, 2, 3):
        before[step] = content(checkpoint(step))
    assert run(remove_source=True) == [
        (PACKED, "checkpoint-1"),
        *((PACKED, "checkpoint-2"), (REMOVED, "checkpoint-1"), (PACKED, "checkpoint-3"), (REMOVED, "checkpoint-2")),
    ]
    assert [path.name for path in Path("run").iterdir()] == ["checkpoint-3"]  # a run goes on from it
    for step, expected in before.items():
        squeeze.unpack(f"packed/checkpoint-{step}", "back", overwrite=True)
        assert content("back") == expected


def test_sources_stay_where_anything_would_be_lost():
    for step in (1, 2, 3):
        checkpoint(step)
    run()
    Path("run/checkpoint-1/config.json").write_text("{}")
    Path("run/checkpoint-2/empty").mkdir()
    damage(Path("packed/checkpoint-3/model.safetensors"), 0.9)
    checkpoint(4)
    found = {e.name: (e.kind, e.why) for e in Follow(
        source=Path("run"), target=Path("packed"), remove_source=True, **FAST).run()}  # fmt: skip
    assert found["checkpoint-3"][0] == LEFT and found["checkpoint-3"][1].startswith(
        "its packed form cannot be trusted: packed/checkpoint-3/model.safetensors: the file ends "
    )
    shutil.rmtree("packed/checkpoint-3")
    checkpoint(5)
    found = {e.name: (e.kind, e.why) for e in Follow(
        source=Path("run"), target=Path("packed"), remove_source=True, **FAST).run()}  # fmt: skip
    assert found == {
        "checkpoint-1": (LEFT, "it has changed since it was packed"),
        "checkpoint-2": (LEFT, "run/checkpoint-2/empty: is an empty folder"),
        "checkpoint-5": (PACKED, ""),
        "checkpoint-4": (REMOVED, ""),
    }
    assert len(list(Path("run").iterdir())) == 4


@pytest.mark.parametrize(
    "names",
    [
        ["checkpoint-100/../../victim", "checkpoint-200/../../victim"],
        ["{here}/victim", "{here}/victim"],
        ["..", "../victim"],
        ["memory://victim", "victim\\\\x"],
        [".hidden-1", ".hidden-2"],
    ],
)
def test_a_journal_with_paths_outside_deletes_nothing(names):
    (Path("victim") / "below").mkdir(parents=True)
    Path("packed", ".hidden-1").mkdir(parents=True)
    before = content("victim")
    checkpoint(1)
    written = json.dumps({"format": 1, "packed": [name.format(here=Path.cwd()) for name in names]})
    Path("packed", NAME).write_text(written)
    with pytest.raises(SqueezeError, match=r"^packed/\.squeeze-follow\.json: is damaged"):
        run(keep=1)
    assert content("victim") == before and Path("packed/.hidden-1").is_dir()
    assert Path("packed", NAME).read_text() == written


@pytest.mark.parametrize("kind", ["another folder", "a file", "more than was packed", "a link"])
def test_retention_deletes_only_what_squeeze_wrote(kind):
    for step in (1, 2, 3):
        checkpoint(step)
    run(max_chain=0)
    old = Path("packed/checkpoint-1")
    if kind == "more than was packed":
        (old / "notes.txt").write_text("mine")
    else:
        old.rename("elsewhere")
        if kind == "a link":
            old.symlink_to(Path("elsewhere").absolute())
        elif kind == "another folder":
            shutil.copytree("run/checkpoint-1", old)
        else:
            names = ["notes-1", "notes-2"]
            Path("packed", names[0]).write_text("mine")
            Path("packed", names[1]).write_text("mine")
            Path("packed", NAME).write_text(json.dumps({"format": 1, "packed": names}))
            old = Path("packed", names[0])
    before = content(old) if old.is_dir() else old.read_bytes()
    checkpoint(4)
    found = run(max_chain=0, keep=1)
    assert (DROPPED, old.name) not in found
    assert (content(old) if old.is_dir() else old.read_bytes()) == before


def test_a_source_that_became_a_link_stays():
    for step in (1, 2):
        checkpoint(step)
    run()
    Path("run/checkpoint-1").rename("elsewhere")
    Path("run/checkpoint-1").symlink_to(Path("elsewhere").absolute())
    checkpoint(3)
    assert (REMOVED, "checkpoint-1") not in run(remove_source=True)
    assert Path("run/checkpoint-1").is_symlink() and content("elsewhere")
