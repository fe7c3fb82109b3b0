"""Training by AdamW with a warm-up and a cosine decay, for the models that benchmarks make."""

import math
from collections.abc import Callable, Sequence

import torch

__all__ = ["descend"]


def descend(
    weights: Sequence[torch.nn.Parameter],
    loss_of: Callable[[int], torch.Tensor],
    steps: int,
    rate: float,
    warm: int,
    decay: float = 0.0,
    least: float = 0.0,
) -> None:
    """Train weights, and print the loss now and then.

    Args:
        weights: parameters
        loss_of: function from the number of a step to the loss of its batch
        steps: number of steps
        rate: largest learning rate
        warm: steps in which the rate grows
        decay: weight decay of AdamW
        least: share of the rate at the end
    """
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.95), weight_decay=decay, fused=True)
    for step in range(steps):
        cosine = least + (1 - least) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / warm) * cosine
        loss = loss_of(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step + 1 == steps:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
