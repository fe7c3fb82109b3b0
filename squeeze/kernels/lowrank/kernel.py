"""Products with a pair of low-rank factors in Triton, in one pass: a program takes some ranks of both factors.

Each program writes the sums over its ranks to a place of its own, and torch adds them in a fixed order, so that results
do not depend on scheduling.
"""

import torch
import triton
import triton.language as tl

_ROWS, _RANKS, _STEP = 16, 16, 64


@triton.jit  # type: ignore[untyped-decorator]
def _pair(  # type: ignore[no-untyped-def]
    out, x, left, right, rows, outputs, inputs, ranks, T: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * R + tl.arange(0, R)
    t = tl.program_id(1) * T + tl.arange(0, T)
    z = tl.zeros((T, R), tl.float32)
    for start in range(0, inputs, K):
        i = start + tl.arange(0, K)
        xs = tl.load(x + t[:, None] * inputs + i, mask=(t < rows)[:, None] & (i < inputs), other=0)
        tile = tl.load(right + r[:, None] * inputs + i, mask=(r < ranks)[:, None] & (i < inputs), other=0)
        z += tl.dot(xs, tl.trans(tile), input_precision="ieee")
    for start in range(0, outputs, K):
        o = start + tl.arange(0, K)
        tile = tl.load(left + o[:, None] * ranks + r, mask=(o < outputs)[:, None] & (r < ranks), other=0)
        y = tl.dot(z.to(tile.dtype), tl.trans(tile), input_precision="ieee")
        offset = (tl.program_id(0).to(tl.int64) * rows + t[:, None]) * outputs + o
        tl.store(out + offset, y, mask=(t < rows)[:, None] & (o < outputs))


def multiply(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply as `reference_multiply` does."""
    (rows, inputs), (outputs, ranks) = x.shape, left.shape
    splits = triton.cdiv(ranks, _RANKS)
    out = torch.empty((splits, rows, outputs), dtype=torch.float32, device=x.device)
    grid = (splits, triton.cdiv(rows, _ROWS))
    with torch.cuda.device_of(out):
        _pair[grid](
            *(out, x.contiguous(), left.contiguous(), right.contiguous(), rows, outputs, inputs, ranks),
            **{"T": _ROWS, "R": _RANKS, "K": _STEP},
        )
    return out.sum(0).to(x.dtype)
