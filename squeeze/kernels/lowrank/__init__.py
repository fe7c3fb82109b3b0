"""Products with low-rank factors, and with pivoted matrices on the CPU.

`reference_multiply` defines the product of a pair. On a GPU a Triton kernel multiplies few rows if it is faster.
`multiply_pivoted` is a compiled loop for one row of a small matrix, for which the overhead of torch's calls costs as
much as the products. Large matrices are left to torch, which spreads them over its threads.
"""

from functools import partial

import numpy as np
import torch
from torch.nn import functional

from squeeze.kernels import choices
from squeeze.numerics.jit import lossy_kernel

__all__ = ["can_multiply_pivoted", "multiply", "multiply_pivoted", "reference_multiply"]

_FEW_ROWS = 16  # for more, two products of cuBLAS are as fast
_SMALL = 1 << 21  # values times threads: above this torch is as fast


def multiply(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply activations by the low-rank matrix `left @ right`.

    Args:
        x: activations [T, I].
        left: factor [O, R].
        right: factor [R, I].

    Returns:
        The product [T, O].
    """
    if x.device.type == "cpu" or len(x) > _FEW_ROWS or torch.is_grad_enabled():
        return reference_multiply(x, left, right)
    from squeeze.kernels.lowrank import kernel  # triton is optional

    products = {
        "torch": partial(reference_multiply, x, left, right),
        "kernel": partial(kernel.multiply, x, left, right),
    }
    weight = f"pair {len(left)}x{x.shape[1]} of rank {len(right)}"
    return products[choices.fastest(x, weight, products, "kernel", "torch")]()


def reference_multiply(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply as `multiply` does, in plain torch: the definition."""
    return functional.linear(functional.linear(x, right), left)


def can_multiply_pivoted(x: torch.Tensor, base: torch.Tensor, coefficients: torch.Tensor) -> bool:
    """Return whether `multiply_pivoted` takes this: one row of bfloat16, a small matrix, no gradient."""
    if len(x) != 1 or x.device.type != "cpu" or not x.dtype == base.dtype == coefficients.dtype == torch.bfloat16:
        return False
    is_small = (base.numel() + coefficients.numel()) * torch.get_num_threads() <= _SMALL
    learns = torch.is_grad_enabled() and (x.requires_grad or base.requires_grad or coefficients.requires_grad)
    return is_small and not learns and not torch.compiler.is_compiling()


def multiply_pivoted(
    x: torch.Tensor, base: torch.Tensor, coefficients: torch.Tensor, pivots: np.ndarray, others: np.ndarray
) -> torch.Tensor:
    """Multiply one row by a matrix whose rows are `base` and linear combinations of it, on the CPU.

    Sums are float32, and rounded to bfloat16 after each of the two products.

    Args:
        x: activations bfloat16 [1, I].
        base: the pivot rows bfloat16 [R, I].
        coefficients: the other rows as combinations of the pivot rows, bfloat16 [O - R, R].
        pivots: int64 [R], the output channels that the pivot rows are.
        others: int64 [O - R], the output channels of the other rows.

    Returns:
        The product bfloat16 [1, O].
    """
    out = torch.empty(1, len(pivots) + len(others), dtype=x.dtype)
    _multiply_bfloat16(_bits(x), _bits(base), _bits(coefficients), pivots, others, _bits(out))
    return out


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """Return a bfloat16 tensor as uint16 numbers in numpy."""
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous().view(torch.uint16).numpy()


_compiled = lossy_kernel(fastmath={"reassoc", "contract", "nsz"})


@_compiled
def _multiply_bfloat16(x, base, coefficients, pivots, others, out):  # type: ignore[no-untyped-def]
    """Multiply as `multiply_pivoted` does; all floats are bfloat16 given as uint16."""
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
def _widen(halves, r, bits):  # type: ignore[no-untyped-def]
    """Write row r of bfloat16 numbers, uint16 [R, I], as the bits of float32 numbers."""
    for i in range(halves.shape[1]):
        bits[i] = np.uint32(halves[r, i]) << np.uint32(16)


@_compiled
def _rounded(bits):  # type: ignore[no-untyped-def]
    """Round the bits of a float32 to bfloat16, to nearest, ties to even."""
    return (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
