"""Which files are weights: safetensors in the folder itself; links out of it, paths and programs are refused."""

import json
import os
import shutil

import pytest
from click.testing import CliRunner

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.other_files import copy_other_files
from squeeze.checkpoint.weight_files import INDEX, WEIGHTS, weight_files
from squeeze.cli import main
from squeeze.errors import FormatError, ModelError
from squeeze.lm.loading import load
from tests.makers import tiny_models


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_models.byte_level()


@pytest.fixture
def folder(tmp_path, tokenizer, monkeypatch):
    """A folder whose index names one shard."""
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "cache"))
    made = tiny_models.write_folder(tmp_path / "model", tokenizer, vocab_size=400)
    (made / WEIGHTS).rename(made / "a.safetensors")
    point(made, "a.safetensors")
    return made


def point(folder, name):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))


def test_a_shard_in_the_folder(folder):
    assert weight_files(folder) == [folder / "a.safetensors"]
    assert "lm_head.weight" in Checkpoint.open(folder).files
    assert load(folder).config.layers == 2


def refused(folder, message):
    with pytest.raises(FormatError, match=message):
        Checkpoint.open(folder)
    with pytest.raises(ModelError, match=message):
        load(folder)
    done = CliRunner().invoke(main, ["pack", str(folder), str(folder.with_name("packed"))])
    assert done.exit_code == 1 and done.output.count("\n") == 1, done.output


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "x/../../outside.safetensors", "/outside", "", ".", "a\0b", 300 * "a"]
)
def test_shards_elsewhere(folder, name):
    shutil.copyfile(folder / "a.safetensors", folder.parent / "outside.safetensors")
    point(folder, str(folder.parent / "outside.safetensors") if name == "/outside" else name)
    refused(folder, "the shard .* is (not in the folder|missing)")


def test_links_out_of_the_folder(folder):
    (folder / "a.safetensors").rename(folder.parent / "outside.safetensors")
    (folder / "a.safetensors").symlink_to(folder.parent / "outside.safetensors")
    with pytest.raises(FormatError, match="is a link out of the folder: put the file itself there"):
        Checkpoint.open(folder)
    with pytest.raises(ModelError, match="is a link out of the folder"):
        load(folder)
    (folder / "a.safetensors").unlink()
    (folder.parent / "outside.safetensors").rename(folder / "a.safetensors")
    (folder.parent / "secret").write_text("secret")
    (folder / "notes.txt").symlink_to(folder.parent / "secret")
    (folder.parent / "out").mkdir()
    with pytest.raises(FormatError, match=r"notes\.txt is a link out of the folder"):
        copy_other_files(folder, folder.parent / "out")


def test_links_within_it_and_those_of_a_hub_cache(folder):
    (folder / "b.safetensors").symlink_to("a.safetensors")
    point(folder, "b.safetensors")
    assert Checkpoint.open(folder).files
    snapshot = folder.parent / "hub" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (folder.parent / "hub" / "blobs").mkdir()
    for name in ("config.json", "a.safetensors"):
        shutil.copyfile(folder / name, folder.parent / "hub" / "blobs" / name)
    (snapshot / "config.json").symlink_to("../../blobs/config.json")
    (snapshot / WEIGHTS).symlink_to("../../blobs/a.safetensors")
    assert Checkpoint.open(snapshot).files


WRONG = {
    "a list": {"weight_map": ["a.safetensors"]},
    "a text": {"weight_map": "a.safetensors"},
    "nothing": {},
    "empty": {"weight_map": {}},
    "numbers": {"weight_map": {"model.norm.weight": 1}},
    "lists": {"weight_map": {"model.norm.weight": ["a.safetensors"]}},
    "null": {"weight_map": None},
}


@pytest.mark.parametrize("fault", WRONG)
def test_maps_of_wrong_shape(folder, fault):
    (folder / INDEX).write_text(json.dumps(WRONG[fault]))
    refused(folder, "its weight_map is not a table")


def test_tensors_that_are_missing_or_in_two_shards(folder):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x\ud800\x1b": "a.safetensors"}}))
    with pytest.raises(FormatError, match=r"tensor 'x\\ud800\\x1b' is in no shard$"):
        Checkpoint.open(folder)
    os.link(folder / "a.safetensors", folder / "b.safetensors")
    entries = {"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": entries}))
    with pytest.raises(FormatError, match="too, and no index says which counts"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_programs_are_not_read(folder, name):
    (folder / INDEX).unlink()
    (folder / "a.safetensors").unlink()
    (folder / name).write_bytes(b"\x80\x02not looked at")
    text = folder.parent / "text"
    text.write_text("x")
    for command in (["eval", folder, "--text", text], ["quantize", folder, folder.with_name("out")]):
        done = CliRunner().invoke(main, [*map(str, command)])
        assert done.exit_code == 1 and done.output.count("\n") == 1, done.output
        assert f"{name}: PyTorch files can hold programs, so they are not read; convert it first" in done.output
