"""Products with packed integer weights in Triton: a split-K GEMM on tensor cores, for one row of activations or many.

Output channels are the rows of the matrix product and activations its columns, of which there are at least eight, so
that one row needs no kernel of its own. Words are read as they are, and each yields its codes in registers. A code
becomes the mantissa of a 16-bit float: 0x6400 | code is 1024 + code. The zero point is subtracted with that offset,
which is exact, and sums are scaled. If a step has several groups, weights are scaled instead, and rounded once more.
The most common case, 4 bits in groups of 128, has kernels of its own: slices.py, blocks.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from squeeze.kernels.split_k import Tile, launch
from squeeze.kernels.w4a16 import blocks, slices
from squeeze.kernels.w4a16.blocks import Blocks
from squeeze.kernels.w4a16.slices import Slices

if TYPE_CHECKING:
    from squeeze.kernels.dequant import Packed

__all__ = ["matmul", "processors_of", "tile_for", "tiles"]

_LEAST_ROWS, _MOST_ROWS = 8, 64  # columns of a matrix product
_PROCESSORS = 132  # of an H100
_MOST_SPLITS = 16  # of inputs; each writes float32 sums
_BUSY = 0.9  # share of time that multiprocessors have work, if programs take equally long


@triton.jit  # type: ignore[untyped-decorator]
def _code(first, second, third, NUMBER: tl.constexpr, BITS: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return code NUMBER of each unit of words, plus the OFFSET of `_gemm`."""
    BIT: tl.constexpr = NUMBER * BITS % 32
    AT: tl.constexpr = NUMBER * BITS // 32
    if AT == 0:
        code = first >> BIT
    elif AT == 1:
        code = second >> BIT
    else:
        code = third >> BIT
    if BIT + BITS > 32:
        if AT == 0:
            code |= second << (32 - BIT)
        else:
            code |= third << (32 - BIT)
    code &= (1 << BITS) - 1
    if dtype == tl.float16:
        return (code | 0x6400).to(tl.uint16).to(tl.float16, bitcast=True)
    elif dtype == tl.bfloat16 and BITS < 8:
        return (code | 0x4300).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return code.to(dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _codes(  # type: ignore[no-untyped-def]
    first, second, third, FIRST: tl.constexpr, STEP: tl.constexpr, COUNT: tl.constexpr, BITS: tl.constexpr,
    dtype: tl.constexpr,
):  # fmt: skip
    """Return COUNT codes of each unit, from FIRST on, STEP apart: [N, units, 2, 2, ...]."""
    if COUNT == 1:
        return _code(first, second, third, FIRST, BITS, dtype)
    else:
        even = _codes(first, second, third, FIRST, 2 * STEP, COUNT // 2, BITS, dtype)
        odd = _codes(first, second, third, FIRST + STEP, 2 * STEP, COUNT // 2, BITS, dtype)
        return tl.join(even, odd)


@triton.jit  # type: ignore[untyped-decorator]
def _words(words, at, inside, stride, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    if EVEN:
        return tl.load(words + at).to(tl.uint32, bitcast=True)
    else:
        return tl.load(words + at, mask=inside & (at < stride), other=0).to(tl.uint32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _gemm(  # type: ignore[no-untyped-def]
    out, x, words, scales, zeros, rows, outputs, inputs, stride, groups, split_inputs,
    BITS: tl.constexpr, HAS_ZEROS: tl.constexpr, ONE_GROUP: tl.constexpr, EVEN: tl.constexpr,
    GROUP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = x.dtype.element_ty
    UNIT: tl.constexpr = 3 if BITS == 3 else 1  # words that hold whole codes
    COUNT: tl.constexpr = UNIT * 32 // BITS
    OFFSET: tl.constexpr = 1024 if dtype == tl.float16 else 128 if dtype == tl.bfloat16 and BITS < 8 else 0
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    begin = tl.program_id(2) * split_inputs
    end = tl.minimum(begin + split_inputs, inputs)
    unit = (tl.arange(0, K // COUNT) * UNIT)[None, :]
    words += n.to(tl.int64)[:, None] * stride
    inside = (n < outputs)[:, None]
    total = tl.zeros((N, M), tl.float32)
    for start in tl.range(begin, end, K, num_stages=3):
        at = start // COUNT * UNIT + unit
        first = _words(words, at, inside, stride, EVEN)
        second, third = first, first
        if UNIT == 3:
            second = _words(words, at + 1, inside, stride, EVEN)
            third = _words(words, at + 2, inside, stride, EVEN)
        code = tl.reshape(_codes(first, second, third, 0, 1, COUNT, BITS, dtype), (N, K))
        k = start + tl.arange(0, K)
        if EVEN:
            value = tl.load(x + m[None, :] * inputs + k[:, None], mask=(m < rows)[None, :], other=0)
        else:
            value = tl.load(
                x + m[None, :] * inputs + k[:, None], mask=(m < rows)[None, :] & (k < end)[:, None], other=0
            )
        if ONE_GROUP:
            group, present = n * groups + start // GROUP, n < outputs
        else:
            group = n[:, None] * groups + (k // GROUP)[None, :]
            present = inside & (k < end)[None, :]
        if HAS_ZEROS:
            zero = tl.load(zeros + group, mask=present, other=0).to(tl.float32) + OFFSET
        else:
            zero = tl.full(group.shape, (1 << (BITS - 1)) + OFFSET, tl.float32)
        scale = tl.load(scales + group, mask=present, other=0).to(tl.float32)
        if ONE_GROUP:
            weight = code - zero.to(dtype)[:, None]
            total += tl.dot(weight, value, input_precision="ieee") * scale[:, None]
        else:
            weight = ((code.to(tl.float32) - zero) * scale).to(dtype)
            total = tl.dot(weight, value, total, input_precision="ieee")
    target = out + (tl.program_id(2).to(tl.int64) * rows + m[None, :]) * outputs + n[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=(m < rows)[None, :] & inside)


def processors_of(device: torch.device) -> int:
    """Return the multiprocessors of a device, or those of an H100 if it is not a GPU."""
    if device.type != "cuda":
        return _PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def tile_for(rows: int, shape: tuple[int, int], group_size: int, processors: int = _PROCESSORS) -> Tile:
    """Return the default tile for a weight of `shape` [O, I].

    A step is within one group, if groups have 32 inputs or more. Inputs are split as little as keeps all
    multiprocessors busy for most of the time.

    Args:
        rows: rows of activations.
        shape: outputs and inputs.
        group_size: inputs of a group.
        processors: multiprocessors of the GPU.
    """
    columns = min(max(triton.next_power_of_2(rows), _LEAST_ROWS), _MOST_ROWS)
    steps = [size for size in (128, 64, 32) if group_size % size == 0]
    step, outputs = steps[0] if steps else 64, 128 if columns < 32 else 64
    blocks = -(-shape[0] // outputs) * -(-rows // columns)

    def busy(split: int) -> bool:
        waves = -(-blocks * split // processors)
        return bool(blocks * split >= _BUSY * waves * processors)

    splits = range(1, max(1, min(-(-shape[1] // step), _MOST_SPLITS)) + 1)
    good = [split for split in splits if blocks * split >= 1.9 * processors and busy(split)]
    return Tile(outputs, step, 4, columns, good[0] if good else splits[-1])


def tiles(
    rows: int,
    shape: tuple[int, int],
    group_size: int,
    processors: int = _PROCESSORS,
    sliced: bool = False,
    early: bool = False,
) -> dict[str, Tile | Slices | Blocks]:
    """Return the tiles that may be fastest on some GPU, by name; the first one is the default.

    Args:
        rows: rows of activations.
        shape: outputs and inputs.
        group_size: inputs of a group.
        processors: multiprocessors of the GPU.
        sliced: whether `slices.fits` accepts the weight.
        early: see slices.py.
    """
    if sliced and rows <= _MOST_ROWS:
        few = slices.slices(rows, shape, early) if rows <= slices.MOST_ROWS else {}
        many = blocks.blocks(rows, shape, processors, early) if rows > _LEAST_ROWS else {}
        return {**many, **few}
    usual = tile_for(rows, shape, group_size, processors)
    return {
        f"{outputs} channels, {warps} warps, {split} splits": replace(usual, outputs=outputs, warps=warps, split=split)
        for split in (usual.split, 2 * (usual.split or 1))
        for outputs, warps in ((usual.outputs, 4), (192 - usual.outputs, 4), (128, 8))
    }


def matmul(x: torch.Tensor, packed: Packed, tile: Tile | Slices | Blocks | None = None) -> torch.Tensor:
    """Multiply as `reference_matmul` does; weights are rounded to the dtype of x if a step has several groups."""
    shape = packed.outputs, packed.inputs
    if tile is None:
        sliced = slices.fits(packed.bits, packed.group_size, packed.inputs, x.dtype)
        early = slices.may_start_early(x.device)
        found = tiles(max(len(x), 1), shape, packed.group_size, processors_of(x.device), sliced, early)
        tile = next(iter(found.values()))
    if isinstance(tile, Slices):
        return slices.matmul(x, packed, tile)
    if isinstance(tile, Blocks):
        return blocks.matmul(x, packed, tile)
    words, scales = packed.words.contiguous(), packed.scales[0].contiguous()
    zeros = words if packed.zeros is None else packed.zeros.contiguous()
    return launch(
        *(_gemm, x, shape, tile, tile.rows, (words, scales, zeros)),
        (words.shape[1], scales.shape[1]),
        BITS=packed.bits,
        GROUP=packed.group_size,
        HAS_ZEROS=packed.zeros is not None,
        ONE_GROUP=packed.group_size % tile.inputs == 0 or packed.group_size >= packed.inputs,
        EVEN=packed.outputs % tile.outputs == 0 and packed.inputs % tile.inputs == 0,
        M=tile.rows,
    )
