"""Architectures that GGUF files are written for and read from, with what llama.cpp does differently in each."""

from dataclasses import dataclass

__all__ = ["FAMILIES", "FULL", "LOCAL", "Family"]

FULL, LOCAL = "full_attention", "sliding_attention"
_GELU = "gelu_pytorch_tanh"


@dataclass(frozen=True)
class Family:
    """An architecture as llama.cpp runs it.

    `name` is that of its network in the gguf package. `interleaved` means that rotary pairs are neighbouring rows of
    queries and keys; `experts`, that there are some. `activations` are the names of the only one that it runs.
    `shifted` norms are stored less 1 in a checkpoint and not in a file. A `windowed` model may have a sliding window in
    all blocks, which llama.cpp ignores. With a `period` of N, every Nth block attends to all tokens and the others to a
    window; `local_base` is the rotary base in those, if it differs. `capped` models cap logits and attention scores.
    With `by_width` blocks, queries are scaled by width / heads and not by head size. `tied` models use the embedding as
    head.
    """

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
