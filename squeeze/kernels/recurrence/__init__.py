"""Linear recurrences over whole sequences with their derivatives, for training.

`reference_scan` defines them. A compiled loop serves CPUs, Triton serves GPUs, and torch every other device.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from squeeze.numerics.jit import lossy_kernel

__all__ = ["cpu_backward", "cpu_forward", "reference_scan", "scan"]


def scan(decay: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """Compute all states h[t] = decay[t] * h[t - 1] + update[t], differentiably.

    Args:
        decay: float32 [batch, time, width].
        update: float32 [batch, time, width].
        start: the state before the first step, [batch, width].

    Returns:
        The states [batch, time, width].
    """
    if decay.device.type not in ("cpu", "cuda"):
        return reference_scan(decay, update, start)
    states: Tensor = _Scan.apply(decay, update, start)  # type: ignore[no-untyped-call]
    return states


def reference_scan(decay: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """Scan in plain torch: the definition.

    States that lie 1, 2, 4, ... steps apart are combined, as in minGRU (Feng et al. 2024, arXiv:2410.01201).
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


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(context, decay, update, start):  # type: ignore[no-untyped-def]
        states = _implementation(decay.device).forward(decay, update, start)
        context.save_for_backward(decay, states, start)
        return states

    @staticmethod
    def backward(context, gradient):  # type: ignore[no-untyped-def]
        decay, states, start = context.saved_tensors
        return _implementation(decay.device).backward(decay, states, start, gradient)


def _implementation(device: torch.device) -> Any:
    """Return the forward and the backward function for a device."""
    if device.type == "cpu":
        return SimpleNamespace(forward=cpu_forward, backward=cpu_backward)
    from squeeze.kernels.recurrence import kernel  # triton is optional

    return kernel


def cpu_forward(decay: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """Scan on the CPU in one compiled loop over time, which costs little more than reading its operands."""
    states = torch.empty_like(update, memory_format=torch.contiguous_format)
    _forward(*(x.detach().numpy() for x in (decay.contiguous(), update.contiguous(), start.contiguous(), states)))
    return states


def cpu_backward(decay: Tensor, states: Tensor, start: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the derivatives by decay, update and start from `gradient`, those by the states."""
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
