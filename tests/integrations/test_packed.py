"""Packed weights in a model: what is decoded while it is loaded is compared with its checksum."""

import pytest

import squeeze
from squeeze.errors import DamagedError
from squeeze.packing import container

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("squeeze.integrations.transformers")


def test_a_damaged_weight_is_named(tmp_path):
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    squeeze.pack(tmp_path / "model", tmp_path / "packed")
    path = tmp_path / "packed" / "model.safetensors"
    tensor = container.read(path).file.by_name["model.layers.0.self_attn.q_proj.weight"]
    hurt = bytearray(path.read_bytes())
    hurt[tensor.begin + tensor.size // 2] ^= 0x10
    path.write_bytes(hurt)
    with pytest.raises(DamagedError, match=f"tensor '{tensor.name}'"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
