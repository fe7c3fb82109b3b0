"""Trellis codes as they are stored, and their levels: numba on the CPU, Triton on a GPU. reference.py defines them."""

import torch

from squeeze.kernels.trellis.reference import STATE_BITS, column_bytes, levels

__all__ = ["STATE_BITS", "column_bytes", "decode", "levels"]


def decode(codes: torch.Tensor, rows: int, rate: int) -> torch.Tensor:
    """codes uint8 [I, bytes], rate in sixteenths of a bit -> the levels of `rows` rows, float32 [O, I]."""
    if codes.device.type == "cpu":
        from squeeze.kernels.trellis import cpu

        return cpu.decode(codes, rows, rate)
    from squeeze.kernels.trellis import kernel

    return kernel.decode(codes, rows, rate)
