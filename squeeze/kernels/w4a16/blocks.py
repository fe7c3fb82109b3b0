"""Products with 4-bit codes in groups of 128 for many rows: as slices.py, but that warps take channels, and share the
activations, which go through shared memory in the order of codes. Inputs are split over programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from squeeze.kernels.w4a16.slices import GROUP, MAGIC, _pair

if TYPE_CHECKING:
    from squeeze.kernels.dequant import Packed

__all__ = ["Blocks", "matmul", "trials"]


@dataclass(frozen=True)
class Blocks:
    """What one program takes: `outputs` channels (16 or more a warp), `rows`, and one of `split` parts of inputs."""

    outputs: int
    warps: int
    rows: int
    split: int


@triton.jit  # type: ignore[untyped-decorator]
def _blocks(  # type: ignore[no-untyped-def]
    out, x, words, scales, zeros, rows, outputs, inputs, stride, groups, split_groups, magic,
    HAS_ZEROS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = x.dtype.element_ty
    OFFSET: tl.constexpr = 1024 if dtype == tl.float16 else 128
    n0 = tl.program_id(0) * N
    m = tl.program_id(1) * M + tl.arange(0, M)
    begin = tl.program_id(2) * split_groups
    end = tl.minimum(begin + split_groups, groups)
    part = tl.arange(0, N // (8 * W))[None, None, :, None]
    local = (
        part // 2 * (16 * W)
        + tl.arange(0, W)[None, :, None, None] * 16
        + part % 2 * 8
        + tl.arange(0, 8)[:, None, None, None]
    )
    words += tl.minimum(n0 + local, outputs - 1).to(tl.int64) * stride + tl.arange(0, 16)[None, None, None, :]
    x += tl.minimum(m, rows - 1).to(tl.int64)[:, None] * inputs + tl.arange(0, 128)[None, :]
    n = n0 + tl.arange(0, N)
    channel = tl.minimum(n, outputs - 1) * groups
    total = tl.zeros((N, M), tl.float32)
    next_word = tl.load(words + begin * 16)
    next_value = tl.load(x + begin * 128)
    for group in tl.range(begin, end, num_stages=1):
        word, value = next_word.to(tl.uint32, bitcast=True), next_value
        scale = tl.load(scales + channel + group).to(tl.float32)
        following = tl.minimum(group + 1, groups - 1)
        next_word = tl.load(words + following * 16)
        next_value = tl.load(x + following * 128)
        value = tl.reshape(value, (M, 4, 4, 2, 2, 2))  # q v p j1 j0
        value = tl.reshape(tl.permute(value, (2, 4, 5, 1, 3, 0)), (128, M))
        code = tl.join(
            tl.join(_pair(word, magic, 0, dtype), _pair(word, magic, 1, dtype)),
            tl.join(_pair(word, magic, 2, dtype), _pair(word, magic, 3, dtype)),
        )
        code = tl.reshape(code, (8, W, N // (16 * W), 2, 4, 4, 2, 2, 2))
        code = tl.reshape(tl.permute(code, (2, 1, 3, 0, 5, 8, 7, 4, 6)), (N, 128))
        if HAS_ZEROS:
            code -= (tl.load(zeros + channel + group).to(tl.float32) + OFFSET).to(dtype)[:, None]
        else:
            code -= tl.full((1, 1), OFFSET + 8, dtype)
        total += tl.dot(code, value) * scale[:, None]
    target = out + (tl.program_id(2).to(tl.int64) * rows + m[None, :]) * outputs + n[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=(m < rows)[None, :] & (n < outputs)[:, None])


def trials(rows: int, shape: tuple[int, int]) -> dict[str, Blocks]:
    """By name, to be timed."""
    if rows < 16:
        return {}
    columns = min(triton.next_power_of_2(rows), 64)
    return {
        f"b{outputs}.{warps}.{split}": Blocks(outputs, warps, columns, split)
        for outputs, warps, splits in ((64, 4, (4, 2, 1, 8)), (128, 8, (4, 2, 8)))
        for split in splits
    }


def matmul(x: torch.Tensor, packed: Packed, tile: Blocks) -> torch.Tensor:
    words, scales = packed.words.contiguous(), packed.scales[0].contiguous()
    zeros = words if packed.zeros is None else packed.zeros.contiguous()
    groups = packed.inputs // GROUP
    split_groups = -(-groups // tile.split)
    split = -(-groups // split_groups)
    dtype = x.dtype if split == 1 else torch.float32
    out = torch.empty((split, len(x), packed.outputs), dtype=dtype, device=x.device)
    if out.numel():
        _blocks[(-(-packed.outputs // tile.outputs), -(-len(x) // tile.rows), split)](
            *(out, x.contiguous(), words, scales, zeros, len(x), packed.outputs, packed.inputs, words.shape[1]),
            *(groups, split_groups, MAGIC[x.dtype]),
            HAS_ZEROS=packed.zeros is not None,
            M=tile.rows,
            N=tile.outputs,
            W=tile.warps,
            num_warps=tile.warps,
        )
    return out[0] if split == 1 else out.sum(0).to(x.dtype)
