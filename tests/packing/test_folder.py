"""Packed folders: shards, index and manifest come back, and everything wrong has a named error."""

import errno
import io
import json
import os
import socket
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import squeeze
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, FormatError, SqueezeError, TruncatedError
from squeeze.packing import codings, folder, manifest
from squeeze.packing.record import Record
from tests.makers.checkpoints import content, model_folder, write
from tests.makers.command import call, fails, names, run

pytestmark = pytest.mark.usefixtures("in_folder")


def test_folders_are_restored_byte_for_byte():
    model_folder("model")
    totals = squeeze.pack("model", "packed")
    assert totals.coded == sum(map(len, content("packed").values()))
    assert squeeze.unpack("packed", "back") == totals
    assert content("back") == content("model")
    assert squeeze.verify("packed") == totals
    assert names() == ["back", "model", "packed"]


def test_folders_of_diffusion_models_are_restored_and_adapted():
    """Diffusers has a model in each of some folders, of which transformers loads the text encoder.

    The folders with weights say how these are coded.
    """
    random = np.random.default_rng(1)
    parts = {
        "transformer": {"_class_name": "FluxTransformer2DModel"},
        "vae": {"_class_name": "AutoencoderKL"},
        "text_encoder": {"model_type": "clip_text_model"},
        "scheduler": {"_class_name": "FlowMatchEulerDiscreteScheduler"},
        "tokenizer": {"model_type": "clip"},
    }
    for name, config in parts.items():
        Path("model", name).mkdir(parents=True)
        Path("model", name, "config.json").write_text(json.dumps(config))
    for name in ("transformer", "vae", "text_encoder"):
        values = random.standard_normal((64, 96)).astype(np.float16)
        save_file({"weight": values, "conv": values.reshape(8, 12, 8, 8)}, f"model/{name}/model.safetensors")
    Path("model/model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    totals = squeeze.pack("model", "packed")
    assert totals.coded < totals.raw
    assert squeeze.verify("packed") == totals
    changed = [name for name in content("model") if content("packed")[name] != content("model")[name]]
    adapted = [f"{name}/config.json" for name in ("text_encoder", "transformer", "vae")]
    assert sorted(name for name in changed if name.endswith(".json")) == adapted
    for name in adapted:
        found = json.loads(Path("packed", name).read_text())
        assert found["quantization_config"] == {"quant_method": "squeeze", "dtype": "float16"}
    assert squeeze.unpack("packed", "back") == totals
    assert content("back") == content("model")
    weights = squeeze.load("packed/transformer/model.safetensors")
    assert sorted(weights) == ["conv", "weight"] and weights["conv"].shape == (8, 12, 8, 8)


def test_the_index_of_a_packed_folder_has_the_size_of_the_payloads():
    model_folder("model")
    squeeze.pack("model", "packed")
    index = json.loads(Path("packed/model.safetensors.index.json").read_text())
    sizes = 0
    for name, shard in index["weight_map"].items():
        sizes += tensorfile.read(Path("packed") / shard).by_name[name].size
    assert index["metadata"]["total_size"] == sizes
    config = json.loads(Path("packed/config.json").read_text())
    assert config.pop("quantization_config") == {"quant_method": "squeeze", "dtype": "bfloat16"}
    assert config == json.loads(Path("model/config.json").read_text())


def test_a_folder_can_be_the_base_of_a_folder():
    model_folder("base", seed=1)
    model_folder("tuned", seed=1)
    squeeze.pack("tuned", "delta", base="base")
    assert sum(map(len, content("delta").values())) < 0.6 * sum(map(len, content("tuned").values()))
    squeeze.unpack("delta", "back", base="base")
    assert content("back") == content("tuned")


def test_folders_with_faults_have_named_errors():
    root = model_folder("model")
    (root / "model-00002-of-00002.safetensors").rename("elsewhere")
    with pytest.raises(FormatError, match=r"the shard model-00002-of-00002.safetensors is missing"):
        squeeze.pack("model", "packed")
    write(root / "model-00002-of-00002.safetensors", {})
    with pytest.raises(FormatError, match=r"tensor '.*' is not in model-00002"):
        squeeze.pack("model", "packed")
    Path("elsewhere").replace(root / "model-00002-of-00002.safetensors")
    os.truncate(root / "model-00002-of-00002.safetensors", 5_000)
    with pytest.raises(TruncatedError, match=r"model-00002-of-00002.safetensors: the file ends"):
        squeeze.pack("model", "packed")
    assert names() == ["model"]


def test_refuses_a_packed_folder_that_was_changed():
    model_folder("model")
    squeeze.pack("model", "packed")
    Path("packed/tokenizer.json").write_text("{ }")
    with pytest.raises(DamagedError, match=r"tokenizer.json: the restored file has another SHA-256"):
        squeeze.unpack("packed", "back")
    Path("packed/tokenizer.json").unlink()
    with pytest.raises(DamagedError, match=r"tokenizer.json is missing"):
        squeeze.verify("packed")
    assert names() == ["model", "packed"]


@pytest.mark.parametrize("name", ["/etc/evil", "../evil", "a/../../evil", "", "a//b", "."])
def test_a_manifest_cannot_write_outside_its_folder(name):
    model_folder("model")
    squeeze.pack("model", "packed")
    manifest = json.loads(Path("packed/squeeze.json").read_text())
    manifest["files"][name] = "0" * 64
    Path("packed/squeeze.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match="is damaged"):
        squeeze.unpack("packed", "back")


def test_overwrite_replaces_a_folder():
    model_folder("model")
    squeeze.pack("model", "packed")
    before = content("packed")
    with pytest.raises(SqueezeError, match="already exists"):
        squeeze.pack("model", "packed")
    Path("packed/more").write_text("left over")
    squeeze.pack("model", "packed", overwrite=True)
    assert content("packed") == before


def test_refuses_a_manifest_of_another_format():
    model_folder("model")
    squeeze.pack("model", "packed")
    path = Path("packed") / folder.MANIFEST
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(FormatError, match="format 2 is unknown: use a newer squeeze"):
        squeeze.verify("packed")


@pytest.fixture
def packed():
    model_folder("model")
    squeeze.pack("model", "packed")
    return Path("packed/squeeze.json")


NAMES = ["/etc/evil", "../evil", "a/../../evil", "", "a//b", ".", "a\0b", "a" * 256, "a/" * 2100 + "a", "\ud800"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_refuses_names_that_lead_out_of_the_folder(packed, name):
    manifest = json.loads(packed.read_text())
    manifest["files"][name] = "0" * 64
    packed.write_text(json.dumps(manifest))
    for read in (squeeze.verify, lambda source: squeeze.unpack(source, "back")):
        with pytest.raises(DamagedError, match=r"^packed/squeeze.json: is damaged"):
            read("packed")
    assert sorted(path.name for path in Path().iterdir()) == ["model", "packed"]


CHANGES = {
    "files no table": lambda manifest: manifest.update(files=[]),
    "kept no table": lambda manifest: manifest.update(kept=[]),
    "kept missing": lambda manifest: manifest.pop("kept"),
    "kept of no file": lambda manifest: manifest["kept"].update(more=manifest["kept"]["config.json"]),
    "kept no text": lambda manifest: manifest["kept"].update({"config.json": 1}),
    "kept cut off": lambda manifest: manifest["kept"].update({"config.json": manifest["kept"]["config.json"][:8]}),
    "hash no text": lambda manifest: manifest["files"].update({"config.json": 1}),
    "hash of another kind": lambda manifest: manifest["files"].update({"config.json": "0" * 40}),
    "word unknown": lambda manifest: manifest.update(more=1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_refuses_manifests_that_no_writer_makes(packed, name):
    manifest = json.loads(packed.read_text())
    CHANGES[name](manifest)
    packed.write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match=r"^packed/squeeze.json: is damaged"):
        squeeze.verify("packed")


def test_refuses_a_file_that_is_named_twice(packed):
    text = packed.read_text()
    packed.write_text(text.replace('"tokenizer.json"', '"sub/notes.txt"'))
    with pytest.raises(FormatError, match=r"^packed/squeeze.json: has 'sub/notes.txt' twice$"):
        squeeze.verify("packed")


@pytest.mark.parametrize("version", [True, 1.0, "1", None, [1]])
def test_refuses_a_manifest_whose_format_is_not_an_integer(packed, version):
    manifest = json.loads(packed.read_text()) | {"format": version}
    packed.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=r"^packed/squeeze.json: format .* is unknown: use a newer squeeze$"):
        squeeze.verify("packed")


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/tmp/outside.safetensors", "a\0b", 7, None, []])
def test_refuses_an_index_with_shards_outside_its_folder(shard):
    model_folder("model")
    path = Path("model/model.safetensors.index.json")
    index = json.loads(path.read_text())
    index["weight_map"]["scalar"] = shard
    path.write_text(json.dumps(index))
    for read in (lambda source: squeeze.pack(source, "packed"), squeeze.load):
        with pytest.raises(FormatError, match=r"the shard '.*' is not in the folder$|its weight_map is not a table of"):
            read("model")


def test_refuses_an_index_without_a_weight_map():
    model_folder("model")
    Path("model/model.safetensors.index.json").write_text('{"weight_map": [1, 2]}')
    with pytest.raises(FormatError, match=r"index.json: its weight_map is not a table of tensors and the files .*$"):
        squeeze.pack("model", "packed")


def test_names_that_are_not_utf_8_are_restored():
    model_folder("model")
    try:
        Path("model", "caf\udce9.txt").write_bytes(b"x")
    except OSError:
        pytest.skip("this file system takes no such names")
    squeeze.pack("model", "packed")
    squeeze.unpack("packed", "back")
    assert Path("back", "caf\udce9.txt").read_bytes() == b"x"


@pytest.fixture
def small():
    """A model's folder `model`, and another that nothing may touch."""
    Path("model").mkdir()
    save_file({"a": np.arange(64, dtype=np.float32)}, Path("model/a.safetensors"))
    Path("victim").mkdir()
    Path("victim/precious").write_text("mine")


def plant():
    """Return what a packed folder does not restore."""
    Path("model/below/empty").mkdir(parents=True)
    os.mkfifo("model/pipe")
    Path("model/gone").symlink_to("nowhere")
    Path("model/linked").symlink_to("../victim")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("model/socket")
    Path("model/notes").symlink_to("../victim/precious")  # a file as any other


LEFT = (
    "model/below/empty: is an empty folder",
    "model/gone: is a link to nowhere, which is not there",
    "model/linked: is a link to a folder",
    "model/pipe: is not a regular file",
    "model/socket: is not a regular file",
)


def test_the_result_lists_what_is_left_out(small):
    plant()
    done = call("pack", "model", "packed")
    assert (done.exit_code, done.stderr.splitlines()) == (0, [f"Warning: {line}; left out" for line in LEFT])
    assert run("pack", "-qf", "model", "packed").stdout == ""
    assert tuple(json.loads(run("pack", "-qf", "--json", "model", "packed").stdout)["left_out"]) == LEFT
    assert squeeze.pack("model", "packed", overwrite=True).left_out == LEFT
    squeeze.unpack("packed", "back")
    assert sorted(path.name for path in Path("back").iterdir()) == ["a.safetensors", "notes"]


def test_strict_refuses_to_leave_anything_out(small):
    said = f"{LEFT[1]}, which would be left out: move it away, or pack without --strict"
    run("pack", "--strict", "model", "packed")
    plant()
    Path("model/below/empty").rmdir()
    Path("model/below").rmdir()
    assert fails("pack", "--strict", "model", "other") == f"Error: {said}\n"
    with pytest.raises(SqueezeError, match="which would be left out"):
        squeeze.pack("model", "other", strict=True)
    assert not Path("other").exists()


def test_an_unreadable_folder_is_an_error(small, monkeypatch):
    real = os.scandir
    Path("model/locked").mkdir()

    def scan(path):
        if str(path) == "model/locked":
            raise PermissionError(13, "Permission denied", "model/locked")
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert fails("pack", "model", "packed") == "Error: model/locked: Permission denied\n"


def test_messages_escape_names(small):
    Path("model/\x1b[31m").mkdir()
    assert call("pack", "model", "packed").stderr == "Warning: model/\\x1b[31m: is an empty folder; left out\n"


def test_refuses_a_work_folder_of_something_else(small):
    Path(".packed.packing").symlink_to("victim")
    said = fails("pack", "model", "packed")
    assert said.endswith("/.packed.packing exists and was not made by squeeze: move or delete it\n")
    assert Path("victim/precious").read_text() == "mine"


@pytest.mark.parametrize("source", ["model", "model/a.safetensors"])
@pytest.mark.parametrize("way", ["pack", "unpack"])
def test_an_output_that_appears_meanwhile_is_kept(small, monkeypatch, source, way):
    squeeze.pack(source, "packed")
    place, name = (codings, "encode_in_memory") if way == "pack" else (Record, "decode")
    real = getattr(place, name)

    def meanwhile(*args):
        if source == "model":
            Path("other").mkdir(exist_ok=True)
            Path("other/theirs").touch()
        else:
            Path("other").write_text("theirs")
        return real(*args)

    monkeypatch.setattr(place, name, meanwhile)
    arguments = (source, "other") if way == "pack" else ("packed", "other")
    assert fails(way, *arguments) == "Error: other already exists; use -f to overwrite\n"
    assert Path("other/theirs").exists() if source == "model" else Path("other").read_text() == "theirs"
    run(way, "-f", *arguments)
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_a_dangling_link_counts_as_an_existing_target(small):
    Path("packed").symlink_to("nothing")
    with pytest.raises(SqueezeError, match="packed exists and is a file"):
        folder.check_target(Path("model"), Path("packed"), False)
    Path("packed.safetensors").symlink_to("nothing")
    with pytest.raises(SqueezeError, match="already exists; use `overwrite=True` to overwrite"):
        squeeze.pack("model/a.safetensors", "packed.safetensors")
    squeeze.pack("model/a.safetensors", "packed.safetensors", overwrite=True)
    assert not Path("packed.safetensors").is_symlink()


@pytest.fixture
def as_a_user(monkeypatch):
    """Files that are read-only cannot be opened to write, as root can open them."""
    real = io.open

    def opened(path, mode="r", *rest, **options):
        is_there = isinstance(path, str | Path) and Path(path).exists()
        if set(mode) & set("wa+") and is_there and not Path(path).stat().st_mode & 0o200:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, mode, *rest, **options)

    monkeypatch.setattr(io, "open", opened)


@pytest.mark.parametrize("stopped", ["nowhere", "with all copied", "before its last name"])
def test_read_only_files_keep_permissions_and_times(as_a_user, stopped):
    """They are packed, too, after a stop as well, and come back with their permissions and times."""
    paths = [path for path in model_folder("model").rglob("*") if path.is_file()]
    for path in paths:
        path.chmod(0o444)
        os.utime(path, ns=(10**18, 10**18))
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        if stopped == "with all copied":
            patch.setattr(manifest, "write", interrupt)
        elif stopped == "before its last name":
            patch.setattr(Path, "replace", interrupt)
        squeeze.pack("model", "packed")
    if stopped != "nowhere":
        assert names() == [".packed.packing", "model"]
        squeeze.pack("model", "packed")
    squeeze.unpack("packed", "back")
    assert content("back") == content("model")
    for path in paths:
        status = Path("back", path.relative_to("model")).stat()
        assert (status.st_mode & 0o777, status.st_mtime_ns) == (0o444, 10**18)


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_full_disk_gives_a_message_of_one_line(small, monkeypatch):
    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(manifest, "write", full)
    assert fails("pack", "model", "packed") == (
        "Error: no space is left on the disk; nothing was replaced; finished work is kept in "
        f"{Path.cwd()}/.packed.packing: repeat the command to resume\n"
    )
    assert not Path("packed").exists()
