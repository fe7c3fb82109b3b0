"""What a linear recurrence is, in plain torch operations: h[t] = a[t] * h[t - 1] + b[t], elementwise."""

import torch
from torch import Tensor


def scan(decay: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """All states, by combining what lies 1, 2, 4, ... steps apart (as in minGRU, Feng et al. 2024, arXiv:2410.01201).

    decay, update: [batch, time, width]. start: [batch, width], the state before. Returns [batch, time, width].
    """
    update = torch.cat([update[:, :1] + decay[:, :1] * start[:, None], update[:, 1:]], 1)
    distance = 1
    while distance < decay.shape[1]:
        before_decay, before_update = decay[:, :-distance], update[:, :-distance]
        later = decay[:, distance:]
        update = torch.cat([update[:, :distance], update[:, distance:] + later * before_update], 1)
        decay = torch.cat([decay[:, :distance], later * before_decay], 1)
        distance *= 2
    return update
