"""Gated linear recurrences for training: h[t] = a[t] * h[t - 1] + b[t], over whole sequences at once.

On a CPU the loop over time is compiled, and costs little more than reading its operands; elsewhere it is a scan in
log2(T) steps of plain torch operations (Blelloch 1990; as in minGRU, Feng et al. 2024, arXiv:2410.01201).
"""

import numpy as np
import torch
from torch import Tensor

from squeeze.numerics.jit import lossy_kernel


def scan(decay: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """All states h[t] = decay[t] * h[t - 1] + update[t].

    decay, update: [batch, time, width] float32. start: [batch, width], the state before. Returns [batch, time, width].
    """
    if decay.device.type == "cpu":
        states: Tensor = _Loop.apply(decay, update, start)  # type: ignore[no-untyped-call]
        return states
    return _doubling(decay, torch.cat([update[:, :1] + decay[:, :1] * start[:, None], update[:, 1:]], 1))


def _doubling(decay: Tensor, update: Tensor) -> Tensor:
    """The scan from a state of zeros, by combining what lies 1, 2, 4, ... steps apart."""
    distance = 1
    while distance < decay.shape[1]:
        before_decay, before_update = decay[:, :-distance], update[:, :-distance]
        later = decay[:, distance:]
        update = torch.cat([update[:, :distance], update[:, distance:] + later * before_update], 1)
        decay = torch.cat([decay[:, :distance], later * before_decay], 1)
        distance *= 2
    return update


class _Loop(torch.autograd.Function):
    """The compiled loop, and its derivative: the same recurrence from the end to the beginning."""

    @staticmethod
    def forward(context, decay, update, start):  # type: ignore[no-untyped-def]
        states = torch.empty_like(update, memory_format=torch.contiguous_format)
        arrays = (decay.contiguous(), update.contiguous(), start.contiguous(), states)
        _forward(*(x.detach().numpy() for x in arrays))
        context.save_for_backward(decay, start, states)
        return states

    @staticmethod
    def backward(context, gradient):  # type: ignore[no-untyped-def]
        decay, start, states = context.saved_tensors
        of_decay, of_update = torch.empty_like(states), torch.empty_like(states)
        of_start = torch.empty(start.shape)
        arrays = (decay.contiguous(), states, start.contiguous(), gradient.contiguous(), of_decay, of_update, of_start)
        _backward(*(x.detach().numpy() for x in arrays))
        return of_decay, of_update, of_start


@lossy_kernel(fastmath=False)
def _forward(decay, update, start, states):  # type: ignore[no-untyped-def]
    batch, time, width = update.shape
    for row in range(batch):
        state = start[row].copy()
        for t in range(time):
            for i in range(width):
                state[i] = decay[row, t, i] * state[i] + update[row, t, i]
                states[row, t, i] = state[i]


@lossy_kernel(fastmath=False)
def _backward(decay, states, start, gradient, of_decay, of_update, of_start):  # type: ignore[no-untyped-def]
    batch, time, width = states.shape
    for row in range(batch):
        carried = np.zeros(width, np.float32)
        for t in range(time - 1, -1, -1):
            for i in range(width):
                total = gradient[row, t, i] + carried[i]
                of_update[row, t, i] = total
                of_decay[row, t, i] = total * (states[row, t - 1, i] if t > 0 else start[row, i])
                carried[i] = total * decay[row, t, i]
        for i in range(width):
            of_start[row, i] = carried[i]
