"""Folders of the Hugging Face hub's cache, and links to files that are not there: each is named for what it is."""

import shutil
from pathlib import Path

import pytest

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.hub_cache import snapshot_of
from squeeze.errors import FormatError
from tests.makers.checkpoints import content, model_folder, tensors, write
from tests.makers.command import call

pytestmark = pytest.mark.usefixtures("in_folder")


def repository(*revisions: str, main: str = "", name: str = "models--a--b") -> Path:
    """A repository of the cache: snapshots of the same files, each a link to its blob."""
    folder = Path("cache", name)
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs").mkdir()
    model_folder("model")
    for number, file in enumerate(path for path in sorted(Path("model").rglob("*")) if path.is_file()):
        shutil.copy(file, folder / "blobs" / f"{number:040x}")
        for revision in revisions:
            link = folder / "snapshots" / revision / file.relative_to("model")
            link.parent.mkdir(parents=True, exist_ok=True)
            up = "/".join([".."] * (len(link.relative_to(folder).parts) - 1))
            link.symlink_to(f"{up}/blobs/{number:040x}")
    (folder / "refs/main").write_text(main or revisions[-1])
    return folder


def test_a_repository_is_packed_as_its_snapshot():
    folder = repository("one")
    totals = squeeze.pack(folder, "packed")
    assert totals.notes == (f"{folder}: a repository of the Hugging Face cache; packed is its snapshot one",)
    assert totals.raw == sum(map(len, content("model").values())) and not totals.left_out
    squeeze.unpack("packed", "back")
    assert content("back") == content("model")


def test_the_snapshot_is_that_of_main():
    folder = repository("one", "two", main="one\n")
    assert snapshot_of(folder) == folder / "snapshots/one"
    assert call("pack", folder, "packed").stderr.endswith("packed is its snapshot one\n")


def test_of_several_snapshots_one_is_to_be_named():
    folder = repository("one", "two", main="three")
    said = call("pack", folder, "packed")
    several = f"{folder}: a repository of the Hugging Face cache with 2 snapshots: name one of them: "
    assert (said.exit_code, said.stderr) == (1, f"Error: {several}{folder}/snapshots/one, {folder}/snapshots/two\n")
    shutil.rmtree(folder / "snapshots")
    (folder / "snapshots").mkdir()
    with pytest.raises(FormatError, match="with no snapshot: download it again"):
        squeeze.pack(folder, "packed")


@pytest.mark.parametrize("command", [("quantize", "out"), ("inspect",), ("eval", "--text", "model/config.json")])
def test_other_commands_name_the_snapshot(command):
    folder = repository("one")
    said = call(command[0], folder, *command[1:])
    assert said.exit_code == 1 and said.stderr.count("\n") == 1
    assert f"it is a repository of the Hugging Face cache: name its snapshot, {folder}/snapshots/one" in said.stderr


def test_the_cache_itself_is_refused():
    folder = repository("one")
    said = call("pack", "cache", "packed").stderr
    assert said == f"Error: cache: holds repositories of the Hugging Face cache: name one of them, such as {folder}\n"


@pytest.mark.parametrize("command", [("pack", "packed"), ("quantize", "out"), ("inspect",)])
def test_a_blob_that_is_not_there_is_named(command):
    folder = repository("one")
    (folder / "refs/main").unlink()
    snapshot = folder / "snapshots/one"
    shard = "model-00002-of-00002.safetensors"
    blob = (snapshot / shard).readlink()
    (snapshot / blob).unlink()
    said = call(command[0], snapshot, *command[1:]).stderr
    assert said.endswith(f"the shard {shard} is a link to {blob}, which is not there\n")


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "config.json"])
def test_a_link_to_nothing_is_no_missing_file(name):
    Path("model").mkdir()
    write("model/model.safetensors", tensors())
    Path("model/config.json").write_text("{}")
    if "index" in name:
        Path("model/model.safetensors").unlink()
    Path("model", name).unlink(missing_ok=True)
    Path("model", name).symlink_to("../blobs/x")
    with pytest.raises(FormatError, match=f"its {name} is a link to ../blobs/x, which is not there"):
        Checkpoint.open("model")


def test_pack_names_links_to_nothing():
    Path("a.safetensors").symlink_to("x.safetensors")
    assert call("pack", "a.safetensors", "b").stderr == (
        "Error: a.safetensors: is a link to x.safetensors, which is not there\n"
    )
    Path("model").mkdir()
    Path("model/model.safetensors").symlink_to("../blobs/x")
    assert call("pack", "model", "b").stderr == (
        "Error: model/model.safetensors: is a link to ../blobs/x, which is not there\n"
    )


def test_what_is_packed_twice_is_told():
    model_folder("model")
    Path("model/consolidated.safetensors").symlink_to("model-00001-of-00002.safetensors")
    totals = squeeze.pack("model", "packed")
    link = "model/consolidated.safetensors"
    assert totals.notes == (f"{link}: is a link to model-00001-of-00002.safetensors, and packed as a file",)
    squeeze.unpack("packed", "back")
    assert content("back") == content("model")
