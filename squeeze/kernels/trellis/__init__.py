"""Decoding of trellis-coded weights: numba on the CPU, Triton on a GPU. reference.py defines the codes."""

import torch

from squeeze.kernels.trellis import cpu
from squeeze.kernels.trellis.reference import STATE_BITS, column_bytes, levels

__all__ = ["STATE_BITS", "column_bytes", "decode", "levels"]


def decode(codes: torch.Tensor, rows: int, rate: int) -> torch.Tensor:
    """Decode codes uint8 [I, bytes] to the levels of `rows` rows, float32 [O, I].

    rate: bits of a weight, in sixteenths.
    """
    if codes.device.type == "cpu":
        return cpu.decode(codes, rows, rate)
    from squeeze.kernels.trellis import kernel  # triton is optional

    return kernel.decode(codes, rows, rate)
