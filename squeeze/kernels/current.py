"""Triton launches on the current device, and a model may lie on another one."""

from contextlib import AbstractContextManager

import torch

__all__ = ["device_of"]


def device_of(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """Makes the GPU of a tensor the current device; for one that is on none it does nothing."""
    found: AbstractContextManager[None] = torch.cuda.device_of(tensor)
    return found
