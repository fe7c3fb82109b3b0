"""One row of bfloat16 times a pivoted matrix on the CPU, in one call: in small models torch's calls cost as much as the
products. Large matrices are torch's, which shares them out among threads.
"""

import numpy as np
import torch

from squeeze.numerics.jit import lossy_kernel

__all__ = ["fits", "pivoted"]

_compiled = lossy_kernel(fastmath={"reassoc", "contract", "nsz"})
_MOST = 1 << 21  # values, times threads: from there on torch is as fast


def fits(x: torch.Tensor, base: torch.Tensor, coefficients: torch.Tensor) -> bool:
    """Whether `pivoted` takes this: one row of bfloat16 and a small matrix, without a gradient."""
    if len(x) != 1 or x.device.type != "cpu" or not x.dtype == base.dtype == coefficients.dtype == torch.bfloat16:
        return False
    small = (base.numel() + coefficients.numel()) * torch.get_num_threads() <= _MOST
    learns = torch.is_grad_enabled() and (x.requires_grad or base.requires_grad or coefficients.requires_grad)
    return small and not learns and not torch.compiler.is_compiling()


def pivoted(
    x: torch.Tensor, base: torch.Tensor, coefficients: torch.Tensor, pivots: np.ndarray, others: np.ndarray
) -> torch.Tensor:
    """x [1, I], base [R, I], coefficients [O - R, R], bfloat16 -> [1, O]. pivots, others: int64 [R] and [O - R], the
    places of the base's rows and of the others among the O. Sums are of float32, and rounded after each product."""
    out = torch.empty(1, len(pivots) + len(others), dtype=x.dtype)
    _halves(_bits(x), _bits(base), _bits(coefficients), pivots, others, _bits(out))
    return out


def _bits(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous().view(torch.uint16).numpy()


@_compiled
def _halves(x, base, coefficients, pivots, others, out):
    """Of bfloat16 as uint16."""
    inner, row = np.empty(base.shape[0], np.float32), np.empty(max(base.shape), np.float32)
    wide = np.empty(base.shape[1], np.float32)
    _widen(x, 0, wide.view(np.uint32))
    inner_bits, row_bits = inner.view(np.uint32), row.view(np.uint32)
    for r in range(base.shape[0]):
        _widen(base, r, row_bits)
        total = np.float32(0)
        for i in range(base.shape[1]):
            total += row[i] * wide[i]
        inner[r] = total
        half = _rounded(inner_bits[r])
        out[0, pivots[r]] = half
        inner_bits[r] = half << np.uint32(16)
    sums = np.empty(1, np.float32)
    sums_bits = sums.view(np.uint32)
    for r in range(coefficients.shape[0]):
        _widen(coefficients, r, row_bits)
        total = np.float32(0)
        for i in range(coefficients.shape[1]):
            total += row[i] * inner[i]
        sums[0] = total
        out[0, others[r]] = _rounded(sums_bits[0])


@_compiled
def _widen(halves, r, bits):
    for i in range(halves.shape[1]):
        bits[i] = np.uint32(halves[r, i]) << np.uint32(16)


@_compiled
def _rounded(bits):
    """The upper half of a float32's bits, to nearest, ties to even."""
    return (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
