"""Make models with random weights in Hugging Face folders."""

import pytest
import torch


def tiny_model(folder, dtype=torch.bfloat16, tied=True, kind="llama", **options):
    """Save a model with random weights as a Hugging Face folder.

    Args:
        folder: new folder
        dtype: dtype of the weights
        tied: whether embedding and head are one tensor
        kind: architecture
        options: settings of its config
    """
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(5)
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=997, hidden_size=128, intermediate_size=352, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, tie_word_embeddings=tied, attention_bias=True, **options,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(vocab_size=997, n_positions=64, n_embd=128, n_layer=2, n_head=4)
        model = transformers.GPT2LMHeadModel(config)
    model.generation_config.pad_token_id = 0
    model.to(dtype).save_pretrained(folder, max_shard_size="300KB")
    return folder


IDS = torch.randint(0, 997, (2, 40), generator=torch.Generator().manual_seed(1))
