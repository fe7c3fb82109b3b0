"""Applying and undoing rotary position embeddings, so that keys can be coded as they were before."""

from functools import lru_cache

import torch
from torch import nn

from squeeze.numerics.constants import constant_on

__all__ = ["apply_rotary", "frequencies_of"]


def apply_rotary(keys: torch.Tensor, frequencies: torch.Tensor, start: int, inverse: bool = False) -> torch.Tensor:
    """Rotate keys [..., T, D] to positions start, start + 1, ..., or back from there.

    Positions count tokens in the cache. Padding before a text shifts all of them, which does no harm here.

    Args:
        keys: The keys.
        frequencies: float32 [n], radians per position. Pairs are channels i and i + n of the first 2 n, as in Llama.
        start: The position of the first token.
        inverse: Whether to undo the rotation.
    """
    half = frequencies.numel()
    table = _cos_sin.__wrapped__ if _is_recorded(keys.device) else _cos_sin
    cos, sin = table(frequencies, start, keys.shape[-2], keys.device)
    sin = -sin if inverse else sin
    first, second, unrotated = keys.split([half, half, keys.shape[-1] - 2 * half], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, unrotated], -1)


def _is_recorded(device: torch.device) -> bool:
    """Return whether a CUDA graph is being captured, in which tensors have no values yet."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@lru_cache(maxsize=16)  # all heads and layers rotate by the same
def _cos_sin(
    frequencies: torch.Tensor, start: int, count: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and sines, [count, n] each."""
    position = torch.arange(start, start + count, device=device, dtype=torch.float32)
    angle = position[:, None] * constant_on(frequencies, device)
    return angle.cos(), angle.sin()


def frequencies_of(model: nn.Module) -> torch.Tensor | None:
    """Return the inverse frequencies of a model's rotary embedding, or None if it has none or several."""
    named = (getattr(module, "inv_freq", None) for module in model.modules())
    buffers = [buffer for buffer in named if isinstance(buffer, torch.Tensor)]
    return buffers[0].detach().to(torch.float32).clone() if len(buffers) == 1 else None
