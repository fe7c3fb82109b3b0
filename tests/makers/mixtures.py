"""Make tiny mixtures of experts with random weights in Hugging Face folders."""

from pathlib import Path
from typing import Any

import pytest
import torch

_COMMON: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3Moe",
        {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 96},
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **{"num_key_value_heads": 4, "n_routed_experts": 6, "n_group": 2, "topk_group": 1},
            **{"num_experts_per_tok": 2, "moe_intermediate_size": 96, "first_k_dense_replace": 1, "q_lora_rank": 32},
            **{"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16},
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            **{"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 8},
            **{"layer_types": ["sliding_attention", "full_attention"]},
        },
    ),
}
KINDS = tuple(_CONFIGS)
IDS = torch.randint(3, 199, (2, 11), generator=torch.Generator().manual_seed(1))


def save(
    kind: str, folder: Path, fused: bool = False, dtype: torch.dtype = torch.bfloat16, width: int | None = None
) -> Path:
    """Save a mixture of experts as a Hugging Face folder.

    Args:
        kind: architecture
        folder: new folder
        fused: whether a layer's experts are one tensor, even if checkpoints of this kind store them separately
        dtype: dtype of the weights
        width: width of hidden states and experts, None for the default
    """
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    name, more = _CONFIGS[kind]
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size"), width) if width else {}
    sizes = {key: value for key, value in sizes.items() if key in _COMMON | more}
    config = getattr(transformers, f"{name}Config")(**{**_COMMON, **more, **sizes})
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and empty tensors, too
            parameter.normal_(std=0.05)
    model.generation_config.pad_token_id = 0
    model.to(dtype).save_pretrained(folder, save_original_format=not fused)
    return folder
