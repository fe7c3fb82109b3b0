"""Copies of constant tensors on the devices that use them.

A copy to a GPU waits for everything that runs there and cannot be recorded in a CUDA graph, so each is made once.
"""

from __future__ import annotations

import torch
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["constant_on"]

_copies = WeakTensorKeyDictionary()


def constant_on(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Return a constant tensor on a device. The copy lives as long as the tensor."""
    device = torch.device(device)
    if tensor.device == device:
        return tensor
    copies: dict[torch.device, torch.Tensor] = _copies.setdefault(tensor, {})
    if device not in copies:
        with torch.inference_mode(False):  # others may ask for gradients
            copies[device] = tensor.to(device)
    return copies[device]
