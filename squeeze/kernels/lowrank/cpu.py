"""One row times a pivoted matrix on the CPU, in one call: in small models torch's calls cost as much as the products.

Large matrices are torch's, which shares them out among threads.
"""

from typing import Any

import numba
import numpy as np
import torch

__all__ = ["fits", "pivoted"]

_FAST: Any = {"nogil": True, "cache": True, "fastmath": {"reassoc", "contract", "nsz"}}
_MOST = 1 << 21  # values, times threads: from there on torch is as fast


def fits(x: torch.Tensor, base: torch.Tensor, coefficients: torch.Tensor) -> bool:
    """Whether `pivoted` takes this: one row, without a gradient, in bfloat16, or in float32 on one thread."""
    dtype, threads = x.dtype, torch.get_num_threads()
    if len(x) != 1 or x.device.type != "cpu" or dtype is not base.dtype or dtype is not coefficients.dtype:
        return False
    if dtype is not torch.bfloat16 and (dtype is not torch.float32 or threads > 1):
        return False
    learns = torch.is_grad_enabled() and (x.requires_grad or base.requires_grad or coefficients.requires_grad)
    small = (base.numel() + coefficients.numel()) * threads <= _MOST
    return small and not learns and not torch.compiler.is_compiling()


def pivoted(
    x: torch.Tensor, base: torch.Tensor, coefficients: torch.Tensor, pivots: np.ndarray, others: np.ndarray
) -> torch.Tensor:
    """x [1, I], base [R, I], coefficients [O - R, R] -> [1, O]. pivots, others: int64 [R] and [O - R], the places of
    the base's rows and of the others among the O. Sums are of float32, and rounded after each product."""
    out = torch.empty(1, len(pivots) + len(others), dtype=x.dtype)
    array, product = (_floats_of, _floats) if x.dtype is torch.float32 else (_bits_of, _halves)
    product(array(x), array(base), array(coefficients), pivots, others, array(out))
    return out


def _floats_of(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous().numpy()


def _bits_of(tensor: torch.Tensor) -> np.ndarray:
    """Of bfloat16."""
    return _floats_of(tensor.view(torch.uint16))


@numba.njit(**_FAST)
def _floats(x, base, coefficients, pivots, others, out):
    inner = np.empty(base.shape[0], np.float32)
    for r in range(base.shape[0]):
        total = np.float32(0)
        for i in range(base.shape[1]):
            total += base[r, i] * x[0, i]
        inner[r] = total
        out[0, pivots[r]] = total
    for r in range(coefficients.shape[0]):
        total = np.float32(0)
        for i in range(coefficients.shape[1]):
            total += coefficients[r, i] * inner[i]
        out[0, others[r]] = total


@numba.njit(**_FAST)
def _halves(x, base, coefficients, pivots, others, out):
    """The same of bfloat16 as uint16."""
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


@numba.njit(**_FAST)
def _widen(halves, r, bits):
    for i in range(halves.shape[1]):
        bits[i] = np.uint32(halves[r, i]) << np.uint32(16)


@numba.njit(**_FAST)
def _rounded(bits):
    """The upper half of a float32's bits, to nearest, ties to even."""
    return (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
