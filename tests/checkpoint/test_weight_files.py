"""Test which files are weights: safetensors in the folder itself; links out of it, paths and programs are refused."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.other_files import copy_other_files
from squeeze.checkpoint.weight_files import INDEX, WEIGHTS, absent, own_files, snapshot_of, weight_files
from squeeze.cli import main
from squeeze.errors import FormatError, ModelError
from squeeze.lm.loading import load
from squeeze.lm.sources import open_source
from tests.makers import tiny_models
from tests.makers.checkpoints import content, model_folder, tensors, write
from tests.makers.command import call

pytestmark = pytest.mark.usefixtures("in_folder")


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
def test_shards_outside_the_folder_are_refused(folder, name):
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
def test_a_weight_map_that_is_not_a_table_is_refused(folder, fault):
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


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def row(value: float) -> tuple[str, tuple[int, ...], bytes]:
    return "F32", (64,), np.full(64, value, np.float32).tobytes()


def twice(own: str, folder: str = "model") -> Path:
    """A folder whose tensor `a` is in both shards, with other values; the index names one."""
    path = Path(folder)
    path.mkdir()
    write(path / FIRST, {"a": row(1), "b": row(3)})
    write(path / SECOND, {"a": row(2), "c": row(3)})
    places = {"a": own, "b": FIRST, "c": SECOND}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


@pytest.mark.parametrize(("own", "value"), [(FIRST, 1), (SECOND, 2)])
def test_the_index_decides(own, value):
    folder = twice(own)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.load(["a"])["a"].unique().tolist() == [value] and sorted(checkpoint.files) == ["a", "b", "c"]
    squeeze.pack(folder, "packed")
    weights = squeeze.load("packed", resident="1M")
    assert weights["a"].unique().tolist() == [value] and sorted(weights) == ["a", "b", "c"]
    squeeze.unpack("packed", "back")
    assert content("back") == content("model")


def test_what_no_index_decides_is_refused():
    for name in ("text_encoder", "text_encoder_2"):
        Path("model", name).mkdir(parents=True)
        write(Path("model", name, "model.safetensors"), {"a": row(len(name))})
    squeeze.pack("model", "packed")
    with pytest.raises(FormatError, match=r"tensor 'a' is in packed/text_encoder/model.safetensors, too, and no index"):
        squeeze.load("packed")
    assert squeeze.load("packed/text_encoder/model.safetensors")["a"][0] == len("text_encoder")


def test_an_index_that_names_a_third_file_decides_nothing():
    folder = twice(FIRST)
    with pytest.raises(FormatError, match="no index says which"):
        own_files({folder / SECOND: ["a"], folder / "other": ["a"]}, [folder / "model.safetensors.index.json"])


def test_language_models_are_read_by_the_index():
    folder = tiny_models.write_folder(Path("tiny"), tiny_models.byte_level())
    plain = folder / "model.safetensors"
    wanted = open_source(folder)
    shape = wanted.tensors["embedding"].shape
    write(folder / SECOND, {"model.embed_tokens.weight": ("F32", shape, bytes(4 * shape[0] * shape[1]))})
    wanted = {key: tensor.rows(0, 1) for key, tensor in wanted.tensors.items()}
    plain.rename(folder / FIRST)
    tensors = squeeze.safe_open(folder / FIRST, "np").keys()
    places = {"weight_map": dict.fromkeys(tensors, FIRST)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(places))
    found = open_source(folder)
    for key, rows in wanted.items():
        assert np.array_equal(found.tensors[key].rows(0, 1), rows)


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
    assert said == f"Error: cache: a folder of Hugging Face cache repositories: name one of them, such as {folder}\n"


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


def test_an_id_of_the_hub_is_told_how_to_fetch_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = "no such folder; from the hub: hf download org/My-Model.v1 --local-dir My-Model.v1"
    assert absent(Path("org/My-Model.v1")) == wanted
    with pytest.raises(FormatError, match=f"^org/My-Model.v1: {wanted}$"):
        Checkpoint.open("org/My-Model.v1")
    assert absent(tmp_path / "org" / "name") == absent(Path("a/b/c")) == absent(Path("../a")) == "no such folder"
    (tmp_path / "org").mkdir()
    assert absent(Path("org/name")) == "no such folder"


@pytest.mark.parametrize(
    "name", ["diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.fp16-00001-of-00002.safetensors"]
)
def test_a_variant_of_a_model_of_diffusers_is_named(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(FormatError, match="has only a variant of its weights, diffusion_pytorch_model"):
        weight_files(tmp_path)
