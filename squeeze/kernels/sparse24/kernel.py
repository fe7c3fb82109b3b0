"""Products with 2:4 weights in Triton: only the two values of each group of four, and their places, are read.

The GEMV loads for each value the activation at its place, so that it multiplies only the values that are kept. The GEMM
puts the values in their places in registers and uses dense tensor cores: it saves memory traffic only.
"""

import torch
import triton
import triton.language as tl

from squeeze.kernels.sparse24 import Packed24
from squeeze.kernels.split_k import GEMM, GEMV, Tile, launch


@triton.jit  # type: ignore[untyped-decorator]
def _kept(  # type: ignore[no-untyped-def]
    values, scales, zeros, n, j, present, inputs, groups, group_size, CODES: tl.constexpr, HAS_ZEROS: tl.constexpr
):
    """Load value `j` of those kept in rows `n`, as float32."""
    if CODES:
        word = tl.load(values + n * (inputs // 16) + j // 8, mask=present, other=0).to(tl.uint32, bitcast=True)
        code = ((word >> ((j % 8) * 4).to(tl.uint32)) & 15).to(tl.float32)
        group = n * groups + 2 * j // group_size
        if HAS_ZEROS:
            zero = tl.load(zeros + group, mask=present, other=0).to(tl.float32)
        else:
            zero = 8.0
        scale = tl.load(scales + group, mask=present, other=0).to(tl.float32)
        return (code - zero) * scale
    else:
        return tl.load(values + n * (inputs // 2) + j, mask=present, other=0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _gemv(  # type: ignore[no-untyped-def]
    out, x, values, places, scales, zeros, rows, outputs, inputs, groups, group_size, split_inputs,
    CODES: tl.constexpr, HAS_ZEROS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)[:, None]
    row = tl.program_id(1).to(tl.int64)
    begin = tl.program_id(2) * split_inputs
    end = tl.minimum(begin + split_inputs, inputs)
    total = tl.zeros((N, K // 2), tl.float32)
    for start in range(begin, end, K):
        j = (start // 2 + tl.arange(0, K // 2))[None, :]
        group = j // 2
        present = (n < outputs) & (group * 4 < end)
        word = tl.load(places + n * (inputs // 32) + group // 8, mask=present, other=0).to(tl.uint32, bitcast=True)
        column = ((word >> ((group % 8) * 4 + (j % 2) * 2).to(tl.uint32)) & 3).to(tl.int32)
        value = tl.load(x + row * inputs + group * 4 + column, mask=present, other=0).to(tl.float32)
        total += value * _kept(values, scales, zeros, n, j, present, inputs, groups, group_size, CODES, HAS_ZEROS)
    target = out + (tl.program_id(2).to(tl.int64) * rows + row) * outputs + n
    tl.store(target, tl.sum(total, 1)[:, None].to(out.dtype.element_ty), mask=n < outputs)


@triton.jit  # type: ignore[untyped-decorator]
def _gemm(  # type: ignore[no-untyped-def]
    out, x, values, places, scales, zeros, rows, outputs, inputs, groups, group_size, split_inputs,
    CODES: tl.constexpr, HAS_ZEROS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)[None, :]
    m = (tl.program_id(1) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    begin = tl.program_id(2) * split_inputs
    end = tl.minimum(begin + split_inputs, inputs)
    total = tl.zeros((M, N), tl.float32)
    for start in range(begin, end, K):
        k = start + tl.arange(0, K)
        value = tl.load(x + m * inputs + k[None, :], mask=(m < rows) & (k < end)[None, :], other=0)
        present = (n < outputs) & (k < end)[:, None]
        group, column = (k // 4)[:, None], (k % 4)[:, None]
        word = tl.load(places + n * (inputs // 32) + group // 8, mask=present, other=0).to(tl.uint32, bitcast=True)
        both = (word >> ((group % 8) * 4).to(tl.uint32)) & 15
        first, second = (both & 3).to(tl.int32) == column, (both >> 2).to(tl.int32) == column
        here = present & (first | second)
        j = 2 * group + second.to(tl.int32)
        weight = _kept(values, scales, zeros, n, j, here, inputs, groups, group_size, CODES, HAS_ZEROS)
        weight = tl.where(here, weight, 0.0).to(value.dtype)
        total += tl.dot(value, weight, input_precision="ieee")
    target = out + (tl.program_id(2).to(tl.int64) * rows + m) * outputs + n
    tl.store(target, total.to(out.dtype.element_ty), mask=(m < rows) & (n < outputs))


def gemv(x: torch.Tensor, packed: Packed24, tile: Tile = GEMV) -> torch.Tensor:
    """Multiply as `reference_matmul` does, for few rows: each row reads the whole weight."""
    return _launch(_gemv, x, packed, tile, 1)


def gemm(x: torch.Tensor, packed: Packed24, tile: Tile = GEMM) -> torch.Tensor:
    """Multiply as `reference_matmul` does, with weights rounded to the dtype of x."""
    return _launch(_gemm, x, packed, tile, tile.rows, M=tile.rows)


def _launch(kernel: object, x: torch.Tensor, packed: Packed24, tile: Tile, rows: int, **constants: int) -> torch.Tensor:
    values = packed.values.contiguous()
    scales = values if packed.scales is None else packed.scales.contiguous()
    zeros = values if packed.zeros is None else packed.zeros.contiguous()
    tensors, numbers = (values, packed.places.contiguous(), scales, zeros), (scales.shape[1], max(packed.group_size, 1))
    forms = {"CODES": packed.scales is not None, "HAS_ZEROS": packed.zeros is not None}
    return launch(kernel, x, (packed.outputs, packed.inputs), tile, rows, tensors, numbers, **forms, **constants)
