"""Rotary position embeddings undone and done again, so that keys can be coded as they were before them."""

from functools import lru_cache

import torch
from torch import nn

__all__ = ["frequencies_of", "turn"]


def turn(keys: torch.Tensor, frequencies: torch.Tensor, start: int, back: bool = False) -> torch.Tensor:
    """Keys [..., T, D] turned as a token at position start, start + 1, ... is, or `back`.

    frequencies: float32 [n], radians a position; pairs are channels i and i + n of the first 2 n, as in Llama.
    Positions count tokens in the cache: padding before a text shifts them all alike, which does no harm here.
    """
    half = frequencies.numel()
    cos, sin = _angles(frequencies, start, keys.shape[-2], keys.device)
    sin = -sin if back else sin
    first, second, rest = keys.split([half, half, keys.shape[-1] - 2 * half], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


@lru_cache(maxsize=16)  # all heads and layers turn by the same
def _angles(
    frequencies: torch.Tensor, start: int, count: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [count, n]."""
    place = torch.arange(start, start + count, device=device, dtype=torch.float32)
    angle = place[:, None] * frequencies.to(device)
    return angle.cos(), angle.sin()


def frequencies_of(model: nn.Module) -> torch.Tensor | None:
    """The inverse frequencies that a model turns by; None where it has none, or several."""
    buffers = [getattr(module, "inv_freq", None) for module in model.modules()]
    found = [buffer for buffer in buffers if isinstance(buffer, torch.Tensor)]
    return found[0].detach().to(torch.float32).clone() if len(found) == 1 else None
