"""The recurrence on a CPU: a compiled loop over time, which costs little more than reading its operands."""

import numpy as np
import torch
from torch import Tensor

from squeeze.numerics.jit import lossy_kernel


def forward(decay: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """As reference.scan."""
    states = torch.empty_like(update, memory_format=torch.contiguous_format)
    _forward(*(x.detach().numpy() for x in (decay.contiguous(), update.contiguous(), start.contiguous(), states)))
    return states


def backward(decay: Tensor, states: Tensor, start: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The derivatives by decay, update and start, of those by the states."""
    of_decay, of_update, of_start = torch.empty_like(states), torch.empty_like(states), torch.empty(start.shape)
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
