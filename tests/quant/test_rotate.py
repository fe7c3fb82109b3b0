"""Rotations are orthogonal, and a rotated network computes what it did."""

import pytest
import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import ModelError
from squeeze.integrations.load_model import load_model
from squeeze.quant.rotate import RotatedCheckpoint, rotation
from squeeze.quant.rtn import RTN

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 200}


@pytest.mark.parametrize(("n", "block"), [(48, None), (48, 16), (10, None), (576, 32)])
def test_rotations_are_orthogonal(n, block):
    matrix = rotation(n, 1, block)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(n, dtype=torch.float64))
    assert not torch.equal(matrix, rotation(n, 2, block))
    if block:
        assert matrix[:block, block:].abs().max() == 0


def folder_of(tmp_path, config):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape) if "norm" in name or "bias" in name else 0
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("block", [None, 16])
@pytest.mark.parametrize(
    "config",
    [
        transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True),
        transformers.Qwen2Config(**SIZES),
        transformers.Qwen3Config(**SIZES, head_dim=16),
    ],
    ids=["llama", "qwen2", "qwen3"],
)
def test_the_function_stays(tmp_path, config, block):
    source = folder_of(tmp_path, config)
    squeeze.quantize(
        source, RTN(bits=8), out=tmp_path / "out", format="dense", ignore=["proj"], rotate=True, rotation_block=block
    )
    ids = torch.arange(60).reshape(2, 30)
    with torch.no_grad():
        before, after = (load_model(folder)(ids).logits for folder in (source, tmp_path / "out"))
    torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-4)
    name = "model.layers.1.mlp.gate_proj.weight"
    assert not torch.equal(load_model(tmp_path / "out").state_dict()[name], load_model(source).state_dict()[name])


def test_other_architectures_and_odd_blocks_are_refused(tmp_path):
    source = folder_of(tmp_path, transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=100))
    with pytest.raises(ModelError, match="architecture 'gpt2' cannot be rotated; llama, mistral, qwen2, qwen3 can"):
        RotatedCheckpoint.of(Checkpoint.open(source))
    with pytest.raises(ModelError, match="a rotation block that divides 48 dimensions, got 32"):
        rotation(48, 0, 32)
