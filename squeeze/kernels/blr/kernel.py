"""Products with Monarch matrices in Triton.

A program computes some outputs of one row of blocks and keeps the product of the inner factor in registers.
"""

import torch
import triton
import triton.language as tl

_ROWS, _OUTPUTS, _RANKS, _STEP = 16, 64, 32, 32


@triton.jit  # type: ignore[untyped-decorator]
def _inner_product(  # type: ignore[no-untyped-def]
    x, inner, t, r, rows, ranks, inputs, x_stride, T: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Multiply x [T, inputs] by rows r of an inner block [R, inputs] to [T, R]."""
    z = tl.zeros((T, R), tl.float32)
    for start in range(0, inputs, K):
        i = start + tl.arange(0, K)
        xs = tl.load(x + t[:, None] * x_stride + i, mask=(t < rows)[:, None] & (i < inputs), other=0)
        part = tl.load(inner + r[:, None] * inputs + i, mask=(r < ranks)[:, None] & (i < inputs), other=0)
        z += tl.dot(xs, tl.trans(part), input_precision="ieee")
    return z


@triton.jit  # type: ignore[untyped-decorator]
def _monarch(  # type: ignore[no-untyped-def]
    out, x, outer, inner, rows, p_count, q_count, outputs, inputs, ranks,
    T: tl.constexpr, N: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    p, t = tl.program_id(1), tl.program_id(0) * T + tl.arange(0, T)
    o = tl.program_id(2) * N + tl.arange(0, N)
    y = tl.zeros((T, N), tl.float32)
    for q in range(0, q_count):
        for start in range(0, ranks, R):
            r = start + tl.arange(0, R)
            block = inner + (q * p_count + p) * ranks * inputs
            z = _inner_product(x + q * inputs, block, t, r, rows, ranks, inputs, q_count * inputs, T, R, K)
            offset = (p * outputs + o[:, None]) * (q_count * ranks) + q * ranks + r
            tile = tl.load(outer + offset, mask=(o < outputs)[:, None] & (r < ranks), other=0)
            y += tl.dot(z.to(tile.dtype), tl.trans(tile), input_precision="ieee")
    offset = t[:, None] * (p_count * outputs) + p * outputs + o
    tl.store(out + offset, y.to(out.dtype.element_ty), mask=(t < rows)[:, None] & (o < outputs))


_TILES = {"T": _ROWS, "N": _OUTPUTS, "R": _RANKS, "K": _STEP}


def monarch(x: torch.Tensor, outer: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """Multiply as `reference_monarch` does."""
    (p, o, _), (q, pr, i) = outer.shape, inner.shape
    out = torch.empty((len(x), p * o), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(len(x), _ROWS), p, triton.cdiv(o, _OUTPUTS))
    sizes = (len(x), p, q, o, i, pr // p)
    with torch.cuda.device_of(out):
        _monarch[grid](out, x.contiguous(), outer.contiguous(), inner.contiguous(), *sizes, **_TILES)
    return out
