"""Packed folders of pytorch_model.bin: transformers loads them as what was packed, our commands say what to do."""

import json

import pytest
import torch
from safetensors.torch import load_file

import squeeze
from squeeze.errors import DamagedError, FormatError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.packing import container
from tests.makers.command import fails
from tests.makers.hf_models import IDS, tiny_model

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("squeeze.integrations.transformers")
load = transformers.AutoModelForCausalLM.from_pretrained


@pytest.fixture(params=["whole", "in shards"])
def folder(request, tmp_path):
    """Make a model in torch's own files."""
    made = tiny_model(tmp_path / "model", tied=False)
    index = made / "model.safetensors.index.json"
    shards = sorted(made.glob("*.safetensors"))
    if request.param == "whole":
        torch.save({name: x for shard in shards for name, x in load_file(shard).items()}, made / "pytorch_model.bin")
    else:
        named = {
            shard.name: shard.name.replace("model", "pytorch_model", 1)[: -len(".safetensors")] + ".bin"
            for shard in shards
        }
        for shard in shards:
            torch.save(load_file(shard), made / named[shard.name])
        told = json.loads(index.read_text())
        told["weight_map"] = {name: named[shard] for name, shard in told["weight_map"].items()}
        (made / "pytorch_model.bin.index.json").write_text(json.dumps(told))
    for path in (index, *shards):
        path.unlink()
    return made


@pytest.mark.parametrize("level", ["runtime", "archive"])
def test_transformers_loads_what_was_packed(folder, tmp_path, level):
    squeeze.pack(folder, tmp_path / "packed", level=level)
    assert any(container.is_packed(container.tensorfile.read(path)) for path in (tmp_path / "packed").glob("*.bin"))
    for dtype in ("auto", torch.float32):
        models = [load(path, dtype=dtype) for path in (folder, tmp_path / "packed")]
        assert models[0].dtype == models[1].dtype
        with torch.no_grad():
            assert torch.equal(*(model(IDS).logits for model in models))


def test_without_a_type_in_the_configuration(folder, tmp_path):
    squeeze.pack(folder, tmp_path / "packed")
    path = tmp_path / "packed" / "config.json"
    described = json.loads(path.read_text())
    described.pop("dtype", None)
    path.write_text(json.dumps(described))
    assert load(tmp_path / "packed", dtype="auto").dtype == torch.bfloat16


def test_a_flipped_bit_is_told(folder, tmp_path):
    squeeze.pack(folder, tmp_path / "packed")
    path = max((tmp_path / "packed").glob("*.bin"), key=lambda path: path.stat().st_size)
    tensor = max(container.read(path).file.tensors, key=lambda tensor: tensor.size)
    hurt = bytearray(path.read_bytes())
    hurt[tensor.begin + tensor.size // 2] ^= 1
    path.write_bytes(hurt)
    with pytest.raises(DamagedError, match=path.name):
        load(tmp_path / "packed")


def test_a_difference_is_unpacked_first(folder, tmp_path):
    squeeze.pack(folder, tmp_path / "packed", base=folder)
    with pytest.raises(SqueezeError, match=r"is packed as a difference: use `squeeze unpack` first$"):
        load(tmp_path / "packed")


def test_our_own_commands_say_what_to_do(folder, tmp_path):
    squeeze.pack(folder, tmp_path / "packed")
    with pytest.raises(FormatError, match=r"is a PyTorch file in a packed folder: use `squeeze unpack` first$"):
        load_model(tmp_path / "packed")
    told = fails("quantize", tmp_path / "packed", tmp_path / "out")
    assert told.endswith("use `squeeze unpack` first\n") and told.count("\n") == 1
