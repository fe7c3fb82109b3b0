"""Architectures whose tensors can be changed together so that the network's function stays.

Quantising, pruning and factorising single matrices support every decoder of transformers and need nothing of this. The
architectures of the exact engine are in lm/config.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from squeeze.errors import ModelError

__all__ = [
    "ARCHITECTURES",
    "EMBEDDING",
    "HEAD",
    "LAST_NORM",
    "NORM_BEFORE",
    "SHARED_EXPERTS",
    "Architecture",
    "architecture_of",
    "head_size",
]

EMBEDDING, HEAD, LAST_NORM = "model.embed_tokens", "lm_head", "model.norm"
NORM_BEFORE = {  # the norm of a block whose output a matrix reads
    **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "input_layernorm"),
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), "post_attention_layernorm"),
}
SHARED_EXPERTS = (".shared_expert.", ".shared_experts.", ".shared_mlp.")  # in names of experts that see every token


@dataclass(frozen=True)
class Architecture:
    """A decoder with Llama's names: RMSNorm before attention and MLP, rotary positions, gated MLPs.

    Attributes:
        experts: whether its MLPs are mixtures of experts.
        normed_heads: whether queries and keys are normalised in each head, so that none of their channels can be left
            out.
    """

    experts: bool = False
    normed_heads: bool = False


ARCHITECTURES = {  # by config.json's model_type
    "llama": Architecture(),
    "mistral": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(normed_heads=True),
    "mixtral": Architecture(experts=True),
    "qwen2_moe": Architecture(experts=True),
}


def architecture_of(config: Mapping[str, Any], message: str, experts: bool = True) -> Architecture:
    """Return the architecture of a configuration.

    Args:
        config: the configuration.
        message: of the error, with {kind} and {known}.
        experts: whether mixtures of experts are supported.

    Raises:
        ModelError: the architecture is not supported.
    """
    kind = config.get("model_type")
    known = ARCHITECTURES if experts else {name: one for name, one in ARCHITECTURES.items() if not one.experts}
    if kind not in known:
        raise ModelError(message.format(kind=repr(kind), known=", ".join(known)))
    return known[str(kind)]


def head_size(config: Mapping[str, Any]) -> int:
    """Return the channels of an attention head."""
    return int(config.get("head_dim") or int(config["hidden_size"]) // int(config["num_attention_heads"]))
