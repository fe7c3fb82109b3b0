"""Make untrained networks of two blocks, of architectures with unusual shapes and names."""

from pathlib import Path
from typing import Any

import torch

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}
GATED = {**SIZES, "intermediate_size": 96, "num_key_value_heads": 2}
EXPERTS = {**GATED, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", GATED),
    "qwen2": ("Qwen2Config", {**GATED, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {**GATED, "head_dim": 16}),
    "mistral": ("MistralConfig", {**GATED, "sliding_window": 8}),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 64}),
    "qwen2_moe": ("Qwen2MoeConfig", {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 64}),
    "mixtral": ("MixtralConfig", {**GATED, "num_local_experts": 4, "num_experts_per_tok": 2}),
}

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {  # whose modules transformers touches while it loads a folder
    "falcon": ("FalconConfig", SIZES),
    "gpt_bigcode": ("GPTBigCodeConfig", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300}),
    "llama4": ("Llama4TextConfig", {**GATED, "head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 96}),
    "mamba": ("MambaConfig", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 300}),
}


def save(kind: str, folder: Path) -> Path:
    """Save a network of one of KINDS or OTHERS in bf16 as a folder of several shards."""
    import transformers

    name, sizes = (KINDS | OTHERS)[kind]
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**sizes)).to(torch.bfloat16)
    for key, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data *= 4  # so that logits are far from uniform
        elif "norm" in key:
            parameter.data += torch.rand(parameter.shape)
    model.save_pretrained(folder, max_shard_size="60KB")
    return folder


def save_seeing(folder: Path) -> Path:
    """Save a Gemma 3 with vision, whose tensors have other names in transformers than in its checkpoints."""
    import transformers

    text = {**GATED, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**text),
        vision_config=transformers.SiglipVisionConfig(**vision, image_size=16, patch_size=8),
        **{"mm_tokens_per_image": 4, "image_token_index": 290, "boi_token_index": 291, "eoi_token_index": 292},
    )
    torch.manual_seed(4)
    model = transformers.Gemma3ForConditionalGeneration(config).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= 4
    model.save_pretrained(folder)
    return folder


def peaked_llama(layers: int) -> torch.nn.Module:
    """Return a network whose logits are far from uniform. Matrices have 32 inputs and 16, 32 or 48 outputs."""
    import transformers

    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48}
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=layers, vocab_size=64)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= 4
    return model


def linear_names(model: torch.nn.Module) -> list[str]:
    """Return the names of the linear modules in a model's blocks."""
    return [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and "layers" in name]
