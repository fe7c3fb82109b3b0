"""Layers and whole models whose weights stay quantised compute what the dense ones do."""

import pytest
import torch

from squeeze.errors import FormatError
from squeeze.quant.formats import FORMATS, Grid, QuantizationSpec, read
from squeeze.quant.linear import QuantLinear
from tests.quantised import dense_model, matrix, rounded, write
from tests.test_transformers_integration import IDS, tiny_model
from tests.test_w4a16 import others

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("squeeze.integrations.transformers")

GRIDS = {
    "4 bits": Grid(4, 32),
    "3 bits, asymmetric": Grid(3, 32, False),
    "2 bits, outliers": Grid(2, 64, False, outliers=True),
    "8 bits, a channel": Grid(8, -1),
    "short groups": Grid(4, 7, False),
    "nf4, outliers": Grid(4, 64, codebook="nf4", outliers=True),
}


def near(found, expected, tolerance=2e-4):
    return found.shape == expected.shape and (found - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("name", GRIDS)
def test_a_layer_multiplies_by_its_weight(name, rows):
    weight = rounded(matrix(37, 192), GRIDS[name])
    bias = torch.randn(37)
    layer = QuantLinear.of(weight, bias)
    x = torch.randn(2, rows, 192)
    assert near(layer(x), x @ weight.dequantize().T + bias)
    assert torch.equal(layer.dequantize(), weight.dequantize())
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert layer(x[:, :0]).shape == (2, 0, 37)


@pytest.mark.parametrize("name", others())
def test_a_layer_of_codebooks(name):
    weight = others()[name]
    x = torch.randn(3, 40)
    assert near(QuantLinear.of(weight)(x), x @ weight.dequantize().T)


def test_gradients_reach_the_inputs():
    weight = rounded(matrix(8, 64), Grid(4, 32))
    x = torch.randn(2, 64, requires_grad=True)
    QuantLinear.of(weight)(x).sum().backward()
    assert near(x.grad, weight.dequantize().sum(0).expand(2, 64))


def test_a_layer_can_be_moved_and_loaded_anew():
    first, second = (rounded(matrix(8, 64, seed), Grid(4, 32)) for seed in (1, 2))
    layer, x = QuantLinear.of(first), torch.randn(1, 64)
    layer(x)
    layer.load_state_dict(QuantLinear.of(second).state_dict(), assign=True)
    assert near(layer(x), x @ second.dequantize().T)
    layer.load_state_dict(QuantLinear.of(first).state_dict())
    assert near(layer(x), x @ first.dequantize().T)


SPECS = {
    "4 bits": QuantizationSpec(4, 32, False, ignored=("lm_head",)),
    "mixed": QuantizationSpec(
        4,
        64,
        codebook="nf4",
        modules={
            "model.layers.0.mlp.up_proj": Grid(3, 32, False, outliers=True),
            "model.layers.1.self_attn.q_proj": Grid(8, -1),
        },
        ignored=("model.layers.2.mlp.up_proj",),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPECS)
def test_folders_load_in_transformers(tmp_path, name, dtype):
    source = tiny_model(tmp_path / "model", dtype, tied=False)
    weights = write(source, tmp_path / "quantised", "squeeze", SPECS[name])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "quantised").eval()
    layers = {name: module for name, module in model.named_modules() if isinstance(module, QuantLinear)}
    assert set(layers) == set(weights) and model.dtype == dtype
    with torch.no_grad():
        assert near(
            model(IDS).logits.float(),
            dense_model(source, weights, dtype)(IDS).logits.float(),
            1e-3 if dtype == torch.float32 else 0.02,
        )
        model.generate(IDS[:1, :7], max_new_tokens=3, do_sample=False)


def test_a_loaded_model_can_be_saved(tmp_path):
    source = tiny_model(tmp_path / "model", tied=False)
    weights = write(source, tmp_path / "quantised", "squeeze", SPECS["mixed"])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "quantised")
    model.save_pretrained(tmp_path / "again")
    again = dict(read(tmp_path / "again").weights())
    assert set(again) == set(weights)
    assert all(torch.equal(again[name].dequantize(), weight.dequantize()) for name, weight in weights.items())


def test_what_is_not_for_the_model_is_named(tmp_path):
    source = tiny_model(tmp_path / "model", tied=False)
    write(source, tmp_path / "quantised", "squeeze", SPECS["4 bits"])
    with pytest.raises(FormatError, match=r"gate_proj: has 352 output channels, but the model needs 360"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "quantised", intermediate_size=360)


def test_gpt2(tmp_path):
    import json

    from safetensors.torch import load_file, save_file

    source = tiny_model(tmp_path / "model", torch.float32, kind="gpt2")
    spec = QuantizationSpec(4, 32, ignored=("lm_head",), dtype=torch.float32)
    tensors, dense = {}, {}
    for shard in source.glob("*.safetensors"):
        for name, tensor in load_file(shard).items():
            dense[name] = tensor
            if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
                weight = rounded(tensor.T, spec, torch.float32)
                tensors |= FORMATS["squeeze"].tensors(name.removesuffix(".weight"), weight, torch.float32)
                dense[name] = weight.dequantize().T.contiguous()
            else:
                tensors[name] = tensor
    (tmp_path / "quantised").mkdir()
    save_file(tensors, tmp_path / "quantised" / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = FORMATS["squeeze"].config(spec)
    (tmp_path / "quantised" / "config.json").write_text(json.dumps(config))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "quantised").eval()
    expected = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    expected.load_state_dict(dense, strict=False)
    assert isinstance(model.transformer.h[0].mlp.c_fc, QuantLinear)
    with torch.no_grad():
        assert near(model(IDS).logits, expected(IDS).logits, 1e-3)
