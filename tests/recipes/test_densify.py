"""Folders whose description of stored weights means harm end in one line."""

import json
import math

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.cli import main
from squeeze.errors import FormatError, LimitError
from squeeze.factor import METHOD, VERSION
from squeeze.system.limits import Limits
from tests.makers import tiny_models
from tests.makers.cases import all_slow_but

pytest.importorskip("transformers", reason="transformers is not installed")

WAYS = {"own": ["--format", "squeeze"], "gptq": ["--format", "gptq"], "standard": []}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("stored")
    model = tiny_models.write_folder(root / "model", tiny_models.byte_level(), vocab_size=400)
    for way, more in WAYS.items():
        done = CliRunner().invoke(main, ["quantize", str(model), str(root / way), "--method", "rtn", "-q", *more])
        assert done.exit_code == 0, done.output
    return {way: (root / way, json.loads((root / way / "config.json").read_text())) for way in WAYS}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "value",
    all_slow_but(["x\x1b[31m", {}, 10**30], [None, "x\x1b[31m", [1], {}, -1, 0, 10**9, 10**30, math.inf, math.nan]),
    ids=repr,
)
def test_hostile_descriptions_end_in_one_line(folders, way, value):
    folder, config = folders[way]
    described = config["quantization_config"]
    for key in [key for key in described if key != "quant_method"]:
        changed = {**config, "quantization_config": {**described, key: value}}
        (folder / "config.json").write_text(json.dumps(changed))
        done = CliRunner().invoke(main, ["densify", str(folder), str(folder.with_name("out")), "-f"])
        assert isinstance(done.exception, SystemExit | None), (key, done.exception)
        assert done.exit_code in (0, 1) and done.output.count("\n") == 1 and done.output.strip().isprintable(), key


def grown(kind):
    """Return tensors of a few kilobytes that represent a matrix [2304, 2304]."""
    count = 2304
    if kind == "train":
        core = torch.ones(1, 48, 48, 1)
        return {"cores0": core, "cores1": core}
    if kind == "sliced":
        mask = torch.zeros(count // 8, dtype=torch.uint8)
        mask[0] = 1
        size = torch.tensor([count, count], dtype=torch.int32)
        return {"core": torch.ones(1, 1), "rows": mask, "columns": mask, "size": size}
    return {"left": torch.ones(count, 1), "right": torch.ones(1, count)}


def factorised(folder, module, tensors):
    """Write a folder that declares these tensors in place of a module's weight."""
    path = folder / "model.safetensors"
    stored = {name: tensor for name, tensor in load_file(path).items() if not name.startswith(f"{module}.")}
    save_file(stored | {f"{module}.{leaf}": tensor.clone() for leaf, tensor in tensors.items()}, path)
    config = json.loads((folder / "config.json").read_text())
    described = {"quant_method": METHOD, "version": VERSION, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": described}))
    return folder


@pytest.mark.parametrize("kind", ["train", "sliced", "low rank"])
def test_a_matrix_of_another_shape_than_the_model_has(tmp_path, kind):
    folder = tiny_models.write_folder(tmp_path / "model", tiny_models.byte_level(), vocab_size=400)
    factorised(folder, "model.layers.0.self_attn.q_proj", grown(kind))
    message = r"q_proj: a matrix \[2304, 2304\] is stored, and the model has \[32, 32\]$"
    with pytest.raises(FormatError, match=message):
        squeeze.densify(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_matrix_that_takes_all_memory(tmp_path):
    folder = tiny_models.write_folder(tmp_path / "model", tiny_models.byte_level(), vocab_size=400)
    vectors = {"left": torch.ones(1 << 20, 1), "right": torch.ones(1, 1 << 20)}
    factorised(folder, "model.another", vectors)
    for limits in (None, Limits(memory=1 << 40)):
        with pytest.raises(LimitError, match=r"^model\.another: its weight needs 4,398,046,511,104 bytes of memory"):
            squeeze.densify(folder, tmp_path / "out", limits=limits)


def test_a_packed_folder_takes_no_more_than_the_limit(folders, tmp_path):
    source, config = folders["own"]
    (source / "config.json").write_text(json.dumps(config))
    squeeze.pack(source, tmp_path / "packed")
    refused = CliRunner().invoke(main, ["densify", "--memlimit", "1K", str(tmp_path / "packed"), str(tmp_path / "out")])
    assert refused.exit_code == 1 and refused.stderr.count("\n") == 1
    assert "the limit is 1,024: raise it with --memlimit" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]
    squeeze.densify(tmp_path / "packed", tmp_path / "out")


def test_refuses_sparse_weights_of_a_newer_version(tmp_path):
    folder = tiny_models.write_folder(tmp_path / "model", tiny_models.byte_level(), vocab_size=400)
    squeeze.prune(folder, "magnitude", out=tmp_path / "sparse")
    config = json.loads((tmp_path / "sparse" / "config.json").read_text())
    config["quantization_config"]["version"] = 2
    (tmp_path / "sparse" / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match="unknown version 2 of sparse weights: use a newer squeeze"):
        squeeze.densify(tmp_path / "sparse", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_packed_dense_folder_is_named(tmp_path):
    folder = tiny_models.write_folder(tmp_path / "model", tiny_models.byte_level(), vocab_size=400)
    squeeze.pack(folder, tmp_path / "packed")
    with pytest.raises(FormatError, match=r"packed: is packed, and its weights are dense: `squeeze unpack` it"):
        squeeze.densify(tmp_path / "packed", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"model", "packed"}


def test_refuses_a_sparse_form_of_another_tool(tmp_path):
    folder = tiny_models.write_folder(tmp_path / "model", tiny_models.byte_level(), vocab_size=400)
    path, module = folder / "model.safetensors", "model.layers.0.self_attn.q_proj"
    stored = {name: tensor for name, tensor in load_file(path).items() if not name.startswith(f"{module}.")}
    form = {"compressed": torch.ones(32, 16), "bitmask": torch.full((32, 4), 0x33, dtype=torch.uint8)}
    save_file(stored | {f"{module}.{leaf}": tensor for leaf, tensor in form.items()}, path)
    with pytest.raises(FormatError, match="its weights are dense or in an unknown form"):
        squeeze.densify(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
