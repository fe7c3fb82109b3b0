"""Linear recurrences over whole sequences, for training: Triton on a GPU, a compiled loop on the CPU, torch elsewhere.

reference.py defines them.
"""

from types import ModuleType

import torch
from torch import Tensor

from squeeze.kernels.recurrence import cpu, reference

__all__ = ["scan"]


def scan(decay: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """All states h[t] = decay[t] * h[t - 1] + update[t], with their derivatives.

    decay, update: [batch, time, width] float32. start: [batch, width], the state before. Returns [batch, time, width].
    """
    if decay.device.type not in ("cpu", "cuda"):
        return reference.scan(decay, update, start)
    states: Tensor = _Scan.apply(decay, update, start)  # type: ignore[no-untyped-call]
    return states


def _by(device: torch.device) -> ModuleType:
    if device.type == "cpu":
        return cpu
    from squeeze.kernels.recurrence import kernel  # triton is optional

    return kernel


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(context, decay, update, start):  # type: ignore[no-untyped-def]
        states = _by(decay.device).forward(decay, update, start)
        context.save_for_backward(decay, states, start)
        return states

    @staticmethod
    def backward(context, gradient):  # type: ignore[no-untyped-def]
        decay, states, start = context.saved_tensors
        return _by(decay.device).backward(decay, states, start, gradient)
