"""Products with packed integers in Triton: a split-K GEMV for one row or a few, a split-K GEMM for more.

Where codes do not straddle words and a word lies in one group (2, 4 and 8 bits, groups of 16 or more), a word is
loaded once and expanded in registers, and scales are applied to sums of a word's products; else each code is fetched
by itself. Codes less zero points are exact in 16-bit floats, so the GEMM multiplies them so and scales the sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from squeeze.kernels.dequant.kernel import load_codes
from squeeze.kernels.split_k import GEMM, GEMV, Tile, launch

if TYPE_CHECKING:
    from squeeze.kernels.dequant import Packed


@triton.jit  # type: ignore[untyped-decorator]
def _gemv(  # type: ignore[no-untyped-def]
    out, x, words, scales, zeros, rows, outputs, inputs, stride, groups, group_size, split_inputs,
    BITS: tl.constexpr, HAS_ZEROS: tl.constexpr, WORDWISE: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)[:, None]
    row = tl.program_id(1).to(tl.int64)
    begin = tl.program_id(2) * split_inputs
    end = tl.minimum(begin + split_inputs, inputs)
    here = n < outputs
    half: tl.constexpr = 1 << (BITS - 1)
    if WORDWISE:
        P: tl.constexpr = 32 // BITS
        total = tl.zeros((N, K // P), tl.float32)
        field = tl.arange(0, P)
        shift = (field * BITS).to(tl.uint32)[None, None, :]
        for start in range(begin, end, K):
            word = start // P + tl.arange(0, K // P)
            present = here & (word * P < end)[None, :]
            packed = tl.load(words + n * stride + word[None, :], mask=present, other=0).to(tl.uint32, bitcast=True)
            k = word[:, None] * P + field[None, :]
            value = tl.load(x + row * inputs + k, mask=k < end, other=0).to(tl.float32)
            code = ((packed[:, :, None] >> shift) & ((1 << BITS) - 1)).to(tl.float32)
            group = n * groups + (word * P // group_size)[None, :]
            if HAS_ZEROS:
                zero = tl.load(zeros + group, mask=present, other=0).to(tl.float32)
            else:
                zero = half
            scale = tl.load(scales + group, mask=present, other=0).to(tl.float32)
            total += scale * (tl.sum(code * value[None, :, :], 2) - zero * tl.sum(value, 1)[None, :])
    else:
        total = tl.zeros((N, K), tl.float32)
        for start in range(begin, end, K):
            k = (start + tl.arange(0, K))[None, :]
            present = here & (k < end)
            code = load_codes(words, n * stride, k, present, BITS)
            value = tl.load(x + row * inputs + k, mask=k < end, other=0).to(tl.float32)
            group = n * groups + k // group_size
            if HAS_ZEROS:
                zero = tl.load(zeros + group, mask=present, other=0).to(tl.int32)
            else:
                zero = half
            scale = tl.load(scales + group, mask=present, other=0).to(tl.float32)
            total += scale * (code - zero).to(tl.float32) * value
    target = out + (tl.program_id(2).to(tl.int64) * rows + row) * outputs + n
    tl.store(target, tl.sum(total, 1)[:, None].to(out.dtype.element_ty), mask=here)


@triton.jit  # type: ignore[untyped-decorator]
def _gemm(  # type: ignore[no-untyped-def]
    out, x, words, scales, zeros, rows, outputs, inputs, stride, groups, group_size, split_inputs,
    BITS: tl.constexpr, HAS_ZEROS: tl.constexpr, WORDWISE: tl.constexpr, ONE_GROUP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)[None, :]
    m = (tl.program_id(1) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    begin = tl.program_id(2) * split_inputs
    end = tl.minimum(begin + split_inputs, inputs)
    half: tl.constexpr = 1 << (BITS - 1)
    total = tl.zeros((M, N), tl.float32)
    for start in range(begin, end, K):
        k = start + tl.arange(0, K)
        value = tl.load(x + m * inputs + k[None, :], mask=(m < rows) & (k < end)[None, :], other=0)
        present = (n < outputs) & (k < end)[:, None]
        if WORDWISE:
            P: tl.constexpr = 32 // BITS
            word = (start // P + tl.arange(0, K // P))[:, None]
            inside = (n < outputs) & (word * P < end)
            packed = tl.load(words + n * stride + word, mask=inside, other=0).to(tl.uint32, bitcast=True)
            shift = (tl.arange(0, P) * BITS).to(tl.uint32)[None, :, None]
            code = tl.reshape((packed[:, None, :] >> shift) & ((1 << BITS) - 1), (K, N)).to(tl.int32)
        else:
            code = load_codes(words, n * stride, k[:, None], present, BITS)
        if ONE_GROUP:
            group = n * groups + start // group_size
            inside = n < outputs
        else:
            group = n * groups + (k // group_size)[:, None]
            inside = present
        if HAS_ZEROS:
            zero = tl.load(zeros + group, mask=inside, other=0).to(tl.int32)
        else:
            zero = half
        scale = tl.load(scales + group, mask=inside, other=0).to(tl.float32)
        if ONE_GROUP:
            weight = (code - zero).to(value.dtype)
            total += tl.dot(value, weight, input_precision="ieee") * scale
        else:
            weight = ((code - zero).to(tl.float32) * scale).to(value.dtype)
            total += tl.dot(value, weight, input_precision="ieee")
    target = out + (tl.program_id(2).to(tl.int64) * rows + m) * outputs + n
    tl.store(target, total.to(out.dtype.element_ty), mask=(m < rows) & (n < outputs))


def gemv(x: torch.Tensor, packed: Packed, tile: Tile = GEMV) -> torch.Tensor:
    """As reference.matmul, for few rows: each reads all words again."""
    return _launch(_gemv, x, packed, tile, 1)


def gemm(x: torch.Tensor, packed: Packed, tile: Tile = GEMM) -> torch.Tensor:
    """As reference.matmul, but that weights are rounded to the dtype of x where a step has several groups."""
    one_group = packed.group_size % tile.inputs == 0 or packed.group_size >= packed.inputs
    return _launch(_gemm, x, packed, tile, tile.rows, M=tile.rows, ONE_GROUP=one_group)


def _launch(
    kernel: object, x: torch.Tensor, packed: Packed, tile: Tile, rows: int, **constants: int | bool
) -> torch.Tensor:
    words, scales = packed.words.contiguous(), packed.scales[0].contiguous()
    zeros = words if packed.zeros is None else packed.zeros.contiguous()
    fills_words = packed.group_size * packed.bits % 32 == 0 or packed.group_size >= packed.inputs
    constants |= {"BITS": packed.bits, "HAS_ZEROS": packed.zeros is not None}
    constants |= {"WORDWISE": 32 % packed.bits == 0 and fills_words}
    numbers = (words.shape[1], scales.shape[1], packed.group_size)
    return launch(kernel, x, (packed.outputs, packed.inputs), tile, rows, (words, scales, zeros), numbers, **constants)
