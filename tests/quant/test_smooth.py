"""Smoothing: the network computes what it did, large inputs become smaller, and rounding errs less."""

import pytest
import torch

import squeeze
from squeeze.checkpoint.architectures import NORM_BEFORE
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.forward import input_squares
from squeeze.errors import ModelError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.quant.rtn import RTN
from squeeze.quant.smooth import SmoothedCheckpoint

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 100, (4, 24), generator=torch.Generator().manual_seed(1))
SIZES = {
    **{"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"vocab_size": 100, "intermediate_size": 64},
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, attention_bias=True),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "gpt2": lambda: transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=100, n_positions=32),
}


def folder_of(path, kind):
    """A model in which a few inputs are large, and one is always 0."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind]())
    for name, parameter in model.named_parameters():
        if "layernorm" in name:
            parameter.data[:3] = torch.tensor([40.0, -25.0, 0.0])
    model.save_pretrained(path)
    return path


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(TOKENS).logits


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_the_function_stays_and_large_inputs_shrink(tmp_path, kind):
    source = folder_of(tmp_path / "model", kind)
    made = {"calibration": TOKENS, "format": "dense", "ignore": ["proj"], "smooth": 0.4}
    report = squeeze.quantize(source, RTN(bits=8), out=tmp_path / "out", **made)
    assert report.settings["smooth"] == 0.4
    torch.testing.assert_close(logits(source), logits(tmp_path / "out"), rtol=1e-3, atol=1e-4)
    before, after = (input_squares(Checkpoint.open(folder), TOKENS) for folder in (source, tmp_path / "out"))
    for name, square in before.items():
        if name.endswith(("o_proj", "down_proj")):
            torch.testing.assert_close(after[name], square, rtol=1e-3, atol=1e-6)
        else:
            assert after[name][:2].sum() / after[name].sum() < 0.9 * square[:2].sum() / square.sum()


def test_rounding_errs_less(tmp_path):
    checkpoint = Checkpoint.open(folder_of(tmp_path / "model", "llama"))
    squares = input_squares(checkpoint, TOKENS)
    smoothed, method = SmoothedCheckpoint.of(checkpoint, squares, 0.25), RTN(bits=4, group_size=48)
    for leaf in ("self_attn.k_proj", "mlp.gate_proj"):
        name = f"model.layers.1.{leaf}"
        norm = f"model.layers.1.{NORM_BEFORE[leaf]}.weight"
        weight, scaled = (found.load([f"{name}.weight"])[f"{name}.weight"] for found in (checkpoint, smoothed))
        before = method.apply(weight).dequantize() - weight
        after = (method.apply(scaled).dequantize() - scaled) / smoothed.factors[norm]
        assert (after.square() * squares[name]).sum() < (before.square() * squares[name]).sum()


def test_what_cannot_be_smoothed(tmp_path):
    source = folder_of(tmp_path / "model", "gpt2")
    with pytest.raises(ModelError, match="architecture 'gpt2' cannot be smoothed; llama, mistral, qwen2, qwen3 can"):
        SmoothedCheckpoint.of(Checkpoint.open(source), {}, 0.2)
    with pytest.raises(SqueezeError, match="rotation and smoothing exclude each other"):
        options = {"calibration": TOKENS, "smooth": 0.2, "rotate": True}
        squeeze.quantize(folder_of(tmp_path / "llama", "llama"), RTN(), out=tmp_path / "out", **options)
