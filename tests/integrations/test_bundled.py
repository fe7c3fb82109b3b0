"""Models whose small tensors share payloads load in transformers and diffusers as others do."""

from pathlib import Path

import pytest
import torch

import squeeze
from squeeze.errors import DamagedError
from squeeze.packing import bundling, container
from tests.makers.hf_models import IDS, tiny_model

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("squeeze.integrations.transformers")

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
