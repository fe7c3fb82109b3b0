"""Architectures that GGUF files are written and read of: what llama.cpp has otherwise in each."""

from dataclasses import dataclass

__all__ = ["FAMILIES", "FULL", "LOCAL", "Family"]

FULL, LOCAL = "full_attention", "sliding_attention"
_GELU = "gelu_pytorch_tanh"


@dataclass(frozen=True)
class Family:
    """How llama.cpp has an architecture. name: of its network in the gguf package; interleaved: rotary pairs are
    neighbouring rows of queries and keys; experts: whether there are any; activations: names of the only one that it
    runs; shifted: a checkpoint's norms are stored less one, and a file's are not; windowed: it may have a window in all
    blocks, of which llama.cpp knows nothing; period: the last of so many blocks attends to all tokens, and the others
    to those in a window; local_base: of rotary angles in these, where it is another; capped: logits are, and those of
    attention; by_width: with so many blocks queries are scaled by the width over the heads, not by their size; tied:
    the head is always the embedding."""

    name: str
    interleaved: bool = False
    experts: bool = False
    activations: tuple[str, ...] = ("silu",)
    shifted: bool = False
    windowed: bool = False
    period: int = 0
    local_base: float | None = None
    capped: bool = False
    by_width: int = 0
    tied: bool = False


FAMILIES = {  # by config.json's model_type
    "llama": Family("LLAMA", interleaved=True),
    "mistral": Family("LLAMA", interleaved=True, windowed=True),
    "mixtral": Family("LLAMA", interleaved=True, experts=True, windowed=True),
    "qwen2": Family("QWEN2"),
    "qwen3": Family("QWEN3"),
    "qwen3_moe": Family("QWEN3MOE", experts=True),
    "gemma": Family(
        "GEMMA", activations=(_GELU, "gelu"), shifted=True, tied=True
    ),  # "gelu" is what its first folders say
    "gemma2": Family("GEMMA2", activations=(_GELU,), shifted=True, period=2, capped=True, by_width=46, tied=True),
    "gemma3_text": Family("GEMMA3", activations=(_GELU,), shifted=True, period=6, local_base=10000.0, by_width=62),
}
