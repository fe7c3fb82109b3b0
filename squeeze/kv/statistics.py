"""What a model's keys and values are like, and what errors in them cost. observe.py measures it on a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from squeeze.errors import PolicyError
from squeeze.kv.base import Coder
from squeeze.kv.rotary import apply_rotary

__all__ = ["KVStatistics", "costs_of"]


@dataclass(frozen=True)
class KVStatistics:
    """Of the keys (before their rotary embedding) and values of one layer, float64: index 0 keys, 1 values.

    mean [2][H, D], moment [2][H, D, D]: E[x x^T]. fisher [2][H, D, D]: E[g g^T], g = dLoss/dx as far as tokens
    outside the window see x, loss in nats summed over a window, of tokens drawn from the model's own predictions.
    sample [2]: [1, H, T, D], the states of one window as the cache is given them.
    """

    mean: list[torch.Tensor]
    moment: list[torch.Tensor]
    fisher: list[torch.Tensor]
    sample: list[torch.Tensor]


def costs_of(
    coder: Coder, statistics: KVStatistics, kind: int, block: int, start: int, frequencies: torch.Tensor | None
) -> torch.Tensor:
    """float64 [H]: what coding a token of each head costs in the mean, in nats; kind 0 is of keys, 1 of values.

    start: tokens that are not coded, the sinks. frequencies: of the rotary embedding that keys have. Raises
    PolicyError where the sample holds no block.
    """
    states = statistics.sample[kind][:, :, start:].float()
    count = states.shape[2] // block
    if not count:
        raise PolicyError(f"the calibration's windows hold no block of {block} tokens")
    blocks: torch.Tensor = states[:, :, : count * block].unflatten(2, (count, block))
    error = (coder.decode(coder.encode(blocks, start), start, torch.float32) - blocks).flatten(2, 3)
    if kind == 0 and frequencies is not None:  # Fisher information is of keys before their rotary embedding
        error = apply_rotary(error, frequencies, start, inverse=True)
    errors = error[0].double()
    return ((errors @ statistics.fisher[kind]) * errors).sum(-1).mean(-1) / 2
