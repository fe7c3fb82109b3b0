"""Trellis codes in a folder: written, loaded as layers, expanded, and refused where they are damaged."""

import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import squeeze
from squeeze.cli import main
from squeeze.errors import FormatError, OptionError
from squeeze.integrations.load_model import load_model
from squeeze.quant.rtn import RTN
from squeeze.quant.trellis.method import Trellis
from squeeze.quant.trellis.stored import LEAVES, TrellisLinear, read, tensors_of

pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (6, 32), generator=torch.Generator().manual_seed(1))


def logits(folder):
    with torch.inference_mode():
        return load_model(folder)(TOKENS).logits


@pytest.fixture(scope="module")
def made(folders, tmp_path_factory):
    out = tmp_path_factory.mktemp("trellis") / "out"
    report = squeeze.quantize(folders("llama"), "trellis", rate=3.5, calibration=TOKENS, out=out, format="squeeze")
    return out, report


def test_a_folder_loads_as_layers_and_expands(made, tmp_path):
    out, report = made
    assert {layer.method for layer in report.layers} == {"trellis"}
    assert isinstance(load_model(out).model.layers[0].mlp.up_proj, TrellisLinear)
    squeeze.densify(out, tmp_path / "dense")
    wanted, found = logits(tmp_path / "dense"), logits(out)
    assert ((wanted - found).norm(dim=-1) / wanted.norm(dim=-1)).median() < 0.02  # dense weights are in bf16
    codes = sum(tensor.nbytes for name, tensor in stored(out).items() if name.rpartition(".")[2] in LEAVES[:2])
    assert sum(layer.bits * layer.shape[0] * layer.shape[1] for layer in report.layers) == pytest.approx(8 * codes)


def stored(folder):
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    return tensors


def test_packed_it_gives_the_same(made, tmp_path):
    squeeze.pack(made[0], tmp_path / "packed")
    assert torch.equal(logits(tmp_path / "packed"), logits(made[0]))


def test_transposed_weights_load_and_densify_alike(folders, tmp_path):
    squeeze.quantize(folders("gpt2"), Trellis(rate=4), out=tmp_path / "out", format="squeeze", calibration=TOKENS)
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    wanted, found = logits(tmp_path / "dense"), logits(tmp_path / "out")
    assert ((wanted - found).norm(dim=-1) / wanted.norm(dim=-1)).median() < 0.02


def test_a_newer_version_is_refused(made, tmp_path):
    copied = tmp_path / "newer"
    squeeze.pack(made[0], tmp_path / "packed")
    squeeze.unpack(tmp_path / "packed", copied)
    config = json.loads((copied / "config.json").read_text())
    config["quantization_config"]["version"] = 2
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match="unknown version 2 of trellis codes: use a newer squeeze"):
        squeeze.densify(copied, tmp_path / "dense")


def layer(outputs=48, inputs=64):
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))
    tensor = Trellis(rate=2.25).compress(weight).tensor
    leaves = {name.removeprefix("m."): one for name, one in tensors_of("m", tensor).items()}
    return leaves, tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_a_layer_multiplies_by_its_weight(rows, dtype):
    leaves, tensor = layer()
    x, bias = torch.randn(2, rows, 64).to(dtype), torch.randn(48).to(dtype)
    linear = TrellisLinear(64, 48, leaves, bias)
    expected = torch.nn.functional.linear(x.float(), tensor.dequantize(), bias.float())
    found = linear(x)
    assert found.dtype == dtype
    assert torch.allclose(found.float(), expected, atol=1e-4 if dtype == torch.float32 else 0.2)
    assert torch.equal(linear.weight, tensor.dequantize(torch.float16))


def test_gradients_reach_inputs():
    leaves, tensor = layer()
    x = torch.randn(2, 64, requires_grad=True)
    TrellisLinear(64, 48, leaves, None)(x).sum().backward()
    assert torch.allclose(x.grad, tensor.dequantize().sum(0).expand(2, -1), atol=1e-4)


@pytest.mark.parametrize(
    ("leaf", "value", "message"),
    [
        ("trellis_codes", None, "m: has no trellis_codes"),
        ("trellis_grid", torch.zeros(2), "m: expected a trellis_grid of three integers"),
        ("trellis_grid", torch.tensor([48, 64, 65]), "m: expected a rate of 16 to 64 sixteenths of a bit, got 65"),
        ("trellis_scales", torch.zeros(47), "m: expected trellis_scales of 48 floats"),
        ("trellis_codes", torch.zeros(64, 3, dtype=torch.uint8), "expected trellis_codes of 64 columns of 48 rows"),
    ],
)
def test_tensors_that_contradict_each_other(leaf, value, message):
    leaves = {**layer()[0], leaf: value}
    with pytest.raises(FormatError, match=message):
        read("m", {name: one for name, one in leaves.items() if one is not None})


def test_what_cannot_hold_it_is_refused(folders, tmp_path):
    given = {"out": tmp_path / "out", "calibration": TOKENS}
    with pytest.raises(FormatError, match="the format gptq does not hold trellis codes: use squeeze, or dense"):
        squeeze.quantize(folders("llama"), "trellis", format="gptq", **given)
    with pytest.raises(OptionError, match="the format gguf needs a method on a grid, got trellis"):
        squeeze.quantize(folders("llama"), Trellis(), format="gguf", **given)
    with pytest.raises(OptionError, match="a scheme needs a method on a grid, got trellis"):
        squeeze.quantize(folders("llama"), "trellis", scheme="w4a16", **given)
    other = {"model.layers.0.mlp.up_proj": RTN()}
    with pytest.raises(FormatError, match="expected one kind of codes in a folder"):
        squeeze.quantize(folders("llama"), "trellis", format="squeeze", methods=other, **given)
    command = ["quantize", str(folders("llama")), str(tmp_path / "out"), "--method", "trellis", "--rate"]
    ran = CliRunner().invoke(main, [*command, "2.25"])
    assert ran.exit_code == 1
    assert "the format compressed-tensors does not hold trellis codes: use squeeze, or dense" in ran.output
    ran = CliRunner().invoke(main, [*command, "2.3", "--format", "squeeze"])
    assert ran.exit_code == 1
    assert "Error: expected a rate that is a multiple of 1/16 bit, got 2.3" in ran.output
    assert not (tmp_path / "out").exists()
