"""A stored form is its class and a line in the registry: densify, transformers and packing follow."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

import squeeze
from squeeze.checkpoint.linear import StoredLinear
from squeeze.checkpoint.stored import Stored, StoredForm
from squeeze.errors import FormatError
from squeeze.integrations.forms import FORMS
from squeeze.integrations.load_model import load_model

IDS = torch.arange(12)[None]


class Halved:
    """A weight stored as half of itself."""

    def __init__(self, half):
        self.halves = half

    @property
    def shape(self):
        return tuple(self.halves.shape)

    def dequantize(self, dtype=torch.float32):
        return (2 * self.halves.float()).to(dtype)


class HalvedLinear(StoredLinear):
    by_dtype = True
    weight_dtype = torch.bfloat16

    def prepare(self, dtype):
        return self.dequantize(dtype)

    def multiply(self, rows, prepared):
        return functional.linear(rows, prepared)

    def dequantize(self, dtype=torch.float32):
        return Halved(self.halves).dequantize(dtype)


class ToyForm(StoredForm):
    method = "toy-halved"
    leaves = ("halves",)
    mark = "halves"

    def check(self, described):
        if described.get("version") != 1:
            raise FormatError("another version of halves")

    def open(self, checkpoint, base=None):
        described = checkpoint.config.get("quantization_config") or {}
        if described.get("quant_method") != self.method:
            return None
        self.check(described)
        modules = self.modules_of(checkpoint.files)
        return Stored(modules, torch.bfloat16, lambda module, tensors: Halved(tensors[f"{module}.halves"]))

    def weight(self, module, leaves):
        return Halved(leaves["halves"])

    def layer(self, module, shape, leaves, bias):
        return HalvedLinear(shape[1], shape[0], leaves, bias, module)


@pytest.fixture(scope="module")
def halved(folders, tmp_path_factory):
    """Make a Llama whose linear weights are stored as halves, and its source folder."""
    form = ToyForm()
    FORMS[form.method] = form
    source, out = folders("llama"), tmp_path_factory.mktemp("toy") / "halved"
    out.mkdir()
    tensors = {}
    for shard in source.glob("*.safetensors"):
        tensors |= load_file(shard)
    layered = {name for name in tensors if name.endswith("_proj.weight")}
    made = {name.replace(".weight", ".halves"): tensors[name] / 2 for name in layered}
    save_file({**{name: t for name, t in tensors.items() if name not in layered}, **made}, out / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    described = {"quant_method": form.method, "version": 1}
    (out / "config.json").write_text(json.dumps({**config, "quantization_config": described}))
    yield source, out
    del FORMS[form.method]


def logits(folder):
    with torch.inference_mode():
        return load_model(folder)(IDS).logits


def test_transformers_loads_it_as_layers(halved):
    source, out = halved
    assert isinstance(load_model(out).model.layers[0].mlp.up_proj, HalvedLinear)
    assert torch.equal(logits(out), logits(source))


def test_densify_restores_the_weights(halved, tmp_path):
    source, out = halved
    squeeze.densify(out, tmp_path / "dense")
    assert torch.equal(logits(tmp_path / "dense"), logits(source))


def test_packed_it_loads_too(halved, tmp_path):
    _, out = halved
    squeeze.pack(out, tmp_path / "packed")
    assert torch.equal(logits(tmp_path / "packed"), logits(out))


def test_a_newer_version_is_refused(halved, tmp_path):
    _, out = halved
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"]["version"] = 2
    squeeze.pack(out, tmp_path / "newer")  # a copy whose weights do not matter
    squeeze.unpack(tmp_path / "newer", tmp_path / "copy")
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match="another version of halves"):
        squeeze.densify(tmp_path / "copy", tmp_path / "dense")


def test_every_form_names_itself():
    assert all(name == form.method and form.leaves for name, form in FORMS.items())


def test_no_stored_tensor_is_called_as_an_attribute_of_its_layer():
    """Such a tensor could not be registered."""
    kinds = (StoredLinear, *StoredLinear.__subclasses__())
    leaves = {leaf for form in FORMS.values() for leaf in form.leaves}
    assert len(kinds) > 5 and not leaves & {name for kind in kinds for name in dir(kind)}
