"""Layers and whole models whose weights stay quantised compute what the dense ones do."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from squeeze.errors import FormatError
from squeeze.quant.formats import FORMATS, Grid, QuantizationSpec, read
from squeeze.quant.linear import QuantLinear
from tests.makers.hf_models import IDS, tiny_model
from tests.makers.quantised import dense_model, matrix, others, rounded, write

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
quantised = pytest.importorskip("squeeze.integrations.quantised")
pytest.importorskip("squeeze.integrations.transformers")  # registers what loads folders of our own

GRIDS = {
    "4 bits": Grid(4, 32),
    "3 bits, asymmetric": Grid(3, 32, False),
    "2 bits, outliers": Grid(2, 64, False, outliers=True),
    "8 bits, a channel": Grid(8, -1),
    "5 bits, asymmetric": Grid(5, 32, False),
    "6 bits, outliers": Grid(6, 64, outliers=True),
    "7 bits, short groups": Grid(7, 13, False),
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
def test_a_layer_of_codebooks_multiplies_by_its_weight(name):
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
    layer, x = QuantLinear.of(first), matrix(1, 64, 3)
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
    "5 to 7 bits": QuantizationSpec(
        6,
        32,
        modules={"model.layers.0.mlp.up_proj": Grid(5, 32, False), "model.layers.1.self_attn.q_proj": Grid(7, -1)},
        ignored=("lm_head",),
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


@pytest.mark.parametrize("format", sorted(FORMATS.keys() - {"bitsandbytes"}))
def test_every_format_loads_with_our_layers(tmp_path, format):
    source = tiny_model(tmp_path / "model", torch.float32, tied=False)
    modules = {"model.layers.1.mlp.up_proj": Grid(8, -1, format == "gptq")}
    spec = QuantizationSpec(3, 32, format == "gptq", modules=modules, ignored=("lm_head",), dtype=torch.float32)
    if format == "awq":
        spec = QuantizationSpec(4, 32, False, ignored=("lm_head",), dtype=torch.float16)
    weights = write(source, tmp_path / "quantised", format, spec)
    model = quantised.load(tmp_path / "quantised")
    assert isinstance(model.model.layers[0].self_attn.q_proj, QuantLinear) and model.dtype == torch.float32
    with torch.no_grad():
        assert near(model(IDS).logits, dense_model(source, weights, torch.float32)(IDS).logits, 1e-3)


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
    with pytest.raises(FormatError, match=r"gate_proj: expected 360 output channels, got 352"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "quantised", intermediate_size=360)


def test_transposed_weights_of_gpt2_load(tmp_path):
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


def test_experts_are_expanded_into_the_tensor_that_holds_them_all(tmp_path):
    config = transformers.MixtralConfig(
        vocab_size=997, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(6)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path / "model")
    spec = QuantizationSpec(4, 32, ignored=("lm_head",), dtype=torch.float32)
    experts = ("w1.weight", "w2.weight", "w3.weight")
    weights = write(tmp_path / "model", tmp_path / "quantised", "squeeze", spec, ("_proj.weight", *experts))
    assert any("experts.3.w2" in name for name in weights)
    dense = dict(read(tmp_path / "quantised").dense())
    (tmp_path / "dense").mkdir()
    save_file(dense, tmp_path / "dense" / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "dense" / "config.json").write_bytes((tmp_path / "model" / "config.json").read_bytes())
    load = transformers.AutoModelForCausalLM.from_pretrained
    found, expected = load(tmp_path / "quantised").eval(), load(tmp_path / "dense").eval()
    assert isinstance(found.model.layers[0].self_attn.q_proj, QuantLinear)
    with torch.no_grad():
        assert near(found(IDS).logits, expected(IDS).logits, 1e-3)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 9, r"m\.codes: expected shape \[9, 8\], got \[8, 8\]"),
        (1, 33, r"m\.codes: expected shape \[8, 5\], got \[8, 8\]"),
        (1, 63, "m: expected a matrix of 8 x 64, got 8 x 63"),
        (2, 1, "1 bits: choose from"),
        (2, 5, r"m\.codes: expected shape \[8, 10\], got \[8, 8\]"),
        (2, 9, "9 bits: choose from"),
        (3, 16, "m: 2 groups of 16 do not make 64 inputs"),
    ],
)
def test_a_layer_refuses_a_grid_that_is_not_its_own(place, value, message):
    """In place of reading behind its buffers."""
    layer = QuantLinear.of(rounded(matrix(8, 64), Grid(4, 32, False)))
    layer._name, layer.grid[place] = "m", value
    for compute in (lambda: layer(torch.ones(1, 64)), layer.dequantize):
        with pytest.raises(FormatError, match=message):
            compute()


def test_a_cast_after_a_product_changes_the_scales():
    called, cast = (QuantLinear.of(rounded(matrix(8, 64), Grid(4, 32), torch.float32)) for _ in range(2))
    x = torch.randn(1, 64)
    called(x)
    assert torch.equal(called.to(torch.bfloat16)(x), cast.to(torch.bfloat16)(x))
