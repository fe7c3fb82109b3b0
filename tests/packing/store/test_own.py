"""A store may come from a stranger: nothing outside is read, written or deleted, and limits bound what it restores."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from squeeze.errors import DamagedError, LimitError
from squeeze.packing.store import Store
from squeeze.system.limits import Limits
from tests.makers.checkpoints import content
from tests.makers.command import call, fails


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Make a store of a small model, and a folder outside of it."""
    monkeypatch.chdir(tmp_path)
    Path("m").mkdir()
    save_file({"a": torch.arange(4096.0).view(64, 64).bfloat16()}, "m/model.safetensors")
    Path("m/config.json").write_text('{"model_type": "x"}')
    Path("victim").mkdir()
    Path("victim/precious.txt").write_text("precious")
    Path("victim/m").write_text("{}")
    made = Store("store")
    made.add("m")
    return made


COMMANDS = [
    ("gc", "store"),
    ("list", "store"),
    ("verify", "store"),
    ("get", "store", "m", "back"),
    ("remove", "store", "m"),
    ("add", "store", "m", "--name", "m2"),
]


@pytest.mark.parametrize("place", ["models", "temporary", "objects", "lock", "store.json"])
def test_a_link_in_the_place_of_a_part_is_refused(store, place):
    part, before = Path("store", place), content("victim")
    for target in ("../victim", "../victim/new"):
        shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()
        part.symlink_to(target)
        for command in COMMANDS:
            assert f"store: {place} is a link" in fails("store", *command), command
            assert content("victim") == before


@pytest.mark.parametrize("makes", [os.mkfifo, lambda path: path.symlink_to("../../../victim/precious.txt")])
def test_an_object_that_is_a_link_or_a_pipe_is_damaged(store, makes):
    path, before = store.objects.place(store.tensor("m", "a")[0].key), content("victim")
    path.unlink()
    makes(path)
    for command in COMMANDS[:4]:
        assert "is damaged" in fails("store", *command), command
    store.add("m", "again")  # which repairs it
    store.verify()
    assert content("victim") == before


def test_a_linked_folder_of_objects_is_neither_read_nor_emptied(store):
    folder = store.objects.place(store.tensor("m", "a")[0].key).parent
    shutil.move(folder, "victim/objects")
    folder.symlink_to("../../victim/objects")
    before = content("victim")
    for command in COMMANDS:
        ended = call("store", *command)
        assert ended.exit_code in (0, 1), command
    assert content("victim") == before
    store.gc()  # after the removal of all models
    assert content("victim") == before


def test_other_names_among_the_models(store):
    Path("store/models/.hidden").write_text("{}")
    assert store.names() == ["m"]
    Path("store/models/a\nb").write_text("{}")
    for command in COMMANDS[:3]:
        ended = call("store", *command)
        assert (ended.exit_code, ended.stderr.count("\n")) == (1, 1), command


def test_the_output_is_bounded(store):
    with pytest.raises(LimitError, match="would be written"):
        Store("store", Limits(output=1000)).get("m", "back")
    assert "would be written" in fails("store", "get", "store", "m", "back", "--max-output", "1K")
    path = Path("store/models/m")
    path.chmod(0o644)
    described = json.loads(path.read_text())
    described["files"]["model.safetensors"]["size"] = 100
    path.write_text(json.dumps(described))
    with pytest.raises(DamagedError, match="larger than its 100 bytes"):
        Store("store", Limits(output=1000)).get("m", "back")
    assert not Path("back").exists()
