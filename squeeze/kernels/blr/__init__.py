"""Products with block low-rank matrices: Triton on a GPU, torch for all else. reference.py defines them."""

from typing import Any

import torch

from squeeze.kernels.blr import reference

__all__ = ["blast", "monarch"]


def monarch(x: torch.Tensor, outer: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """x [T, Q i], outer [P, o, Q R], inner [Q, P R, i] -> [T, P o]."""
    if x.device.type == "cpu" or torch.is_grad_enabled():
        return reference.monarch(x, outer, inner)
    product: torch.Tensor = _kernel().monarch(x, outer, inner)
    return product


def blast(x: torch.Tensor, bases: torch.Tensor, mix: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """x [T, Q i], bases [P, o, R], mix [P, Q, R], inputs [Q, R, i] -> [T, P o]."""
    if x.device.type == "cpu" or torch.is_grad_enabled():
        return reference.blast(x, bases, mix, inputs)
    product: torch.Tensor = _kernel().blast(x, bases, mix, inputs)
    return product


def _kernel() -> Any:
    from squeeze.kernels.blr import kernel  # triton is optional

    return kernel
