"""Models whose small tensors share payloads load in transformers and diffusers as others do."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import squeeze
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError
from squeeze.integrations.bundled import later_members
from squeeze.integrations.load_model import load_model
from squeeze.packing import bundling, container
from tests.makers.hf_models import IDS, tiny_model

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("squeeze.integrations.transformers")

DTYPES = (("a", torch.float32), ("b", torch.bfloat16))
pytestmark = [pytest.mark.usefixtures("in_folder"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    monkeypatch.setattr(bundling, "_LEAST", 0)
    monkeypatch.setattr(bundling, "_LEAST_SHARE", 1 << 30)


def bundled(folder: str) -> set[str]:
    found = set()
    for path in Path(folder).glob("*.safetensors"):
        packed = container.read(path)
        pairs = zip(packed.file.tensors, packed.description.records, strict=True)
        found |= {tensor.name for tensor, record in pairs if record.coding.is_member}
    return found


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


@pytest.mark.parametrize("base", [False, True])
def test_transformers(base):
    tiny_model(Path("model"), tied=False)
    transformers.AutoModelForCausalLM.from_pretrained("model").save_pretrained("whole")
    options = {}
    if base:
        squeeze.pack("whole", "base")
        options = {"base": "base"}
        model = transformers.AutoModelForCausalLM.from_pretrained("whole")
        for parameter in model.parameters():
            parameter.data[..., :1] *= 1.01
        model.save_pretrained("whole")
    squeeze.pack("whole", "packed", **options)
    assert len(bundled("packed")) > 1
    expected = transformers.AutoModelForCausalLM.from_pretrained("whole")
    found, about = transformers.AutoModelForCausalLM.from_pretrained("packed", output_loading_info=True)
    assert not any(about.values())
    assert torch.equal(logits(found), logits(expected))


def test_first_tensors_have_payloads_even_if_a_bundle_before_is_empty(tmp_path):
    found = {
        f"{kind}.{k}": torch.zeros((0, 3) if kind == "a" else (9,), dtype=dtype)
        for kind, dtype in DTYPES
        for k in "xyz"
    }
    save_file(found, tmp_path / "a.safetensors")
    squeeze.pack(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    named = tensorfile.read(tmp_path / "b.safetensors").by_name
    assert len(named) == 2 and not named.keys() & later_members([str(tmp_path / "b.safetensors")]).keys()
    assert len(later_members([str(tmp_path / "b.safetensors")])) == 4


def test_experts_whose_scales_are_in_a_bundle_are_found(tmp_path):
    mixture = pytest.importorskip("squeeze.integrations.compressed_tensors").Mixture
    scales = {f"model.layers.0.mlp.experts.{k}.up_proj.weight_scale": torch.ones(4, 1) for k in range(8)}
    save_file({"model.layers.0.input_layernorm.weight": torch.ones(9), **scales}, tmp_path / "a.safetensors")
    squeeze.pack(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert list(tensorfile.read(tmp_path / "b.safetensors").by_name) == ["model.layers.0.input_layernorm.weight"]
    assert mixture.of([str(tmp_path / "b.safetensors")]) is not None


def test_shards_with_an_index():
    tiny_model(Path("model"), tied=False)
    transformers.AutoModelForCausalLM.from_pretrained("model").save_pretrained("shards", max_shard_size="100KB")
    squeeze.pack("shards", "packed")
    assert Path("packed/model.safetensors.index.json").is_file() and len(bundled("packed")) > 1
    assert torch.equal(logits(load_model("packed")), logits(load_model("shards")))


def test_a_damaged_bundle_is_told():
    tiny_model(Path("model"), tied=False)
    squeeze.pack("model", "packed")
    name = min(bundled("packed"))
    path = next(path for path in Path("packed").glob("*.safetensors") if name in container.read(path).file.by_name)
    data = bytearray(path.read_bytes())
    data[container.read(path).file.by_name[name].end - 120] ^= 2
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="tensor '"):
        transformers.AutoModelForCausalLM.from_pretrained("packed")


@pytest.mark.parametrize("shard", ["10GB", "100KB"])
def test_diffusers(shard):
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    pytest.importorskip("squeeze.integrations.diffusers")
    from tests.integrations import test_diffusers as models

    model = models.transformer(torch.bfloat16)
    model.save_pretrained("model", max_shard_size=shard)
    squeeze.pack("model", "packed")
    assert len(bundled("packed")) > 2
    found = type(model).from_pretrained("packed")
    assert torch.equal(models.image_of(found), models.image_of(model))
