"""Tensors that lie in a file: what of them is in memory is the system's to decide."""

import tempfile

import torch

__all__ = ["on_disk"]


def on_disk(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same values, on the CPU, mapped from a file in the folder for temporary ones. It has no name any longer, and
    goes with the last tensor of it."""
    with tempfile.NamedTemporaryFile() as file:
        torch.save({name: tensor.detach().cpu() for name, tensor in tensors.items()}, file)
        file.flush()
        mapped: dict[str, torch.Tensor] = torch.load(file.name, mmap=True, weights_only=True)
    return mapped
