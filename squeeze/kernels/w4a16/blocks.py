"""Products with 4-bit codes in groups of 128 for many rows, in one launch.

As in slices.py, but the warps of a program take different channels and share the activations, which are in shared
memory in the order of codes. Inputs are split over programs. Each writes its sums, and the last program of a tile adds
them in order, so that results do not depend on scheduling. A counter tells which is the last, and that program resets
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from squeeze.kernels.w4a16.slices import GROUP, MAGIC, _pair

if TYPE_CHECKING:
    from squeeze.kernels.dequant import Packed

__all__ = ["Blocks", "blocks", "matmul"]

_SHAPES = {  # by rows: channels, warps, stages, programs of a multiprocessor
    16: ((64, 4, 4, 4), (128, 8, 4, 2), (64, 4, 4, 2), (64, 4, 3, 6), (128, 8, 3, 3), (64, 4, 5, 3)),
    32: ((64, 4, 4, 4), (128, 8, 4, 2), (64, 4, 3, 4), (64, 4, 4, 2), (64, 4, 3, 3), (128, 8, 3, 1)),
    64: ((64, 4, 3, 3), (128, 8, 3, 1), (64, 4, 2, 3), (64, 4, 3, 2), (128, 8, 4, 1), (64, 4, 3, 1)),
}
_COUNTERS = 1 << 20  # of a device, for launches in CUDA graphs, also those of choices.py
_counters: dict[tuple[torch.device, int], torch.Tensor] = {}  # zeros, by stream
_spare: dict[torch.device, torch.Tensor] = {}


@dataclass(frozen=True)
class Blocks:
    """The work of a program: `outputs` channels (16 or more a warp), `rows`, and one of `split` parts of the inputs.

    stages: groups of inputs in shared memory or on their way there. early: see slices.py.
    """

    outputs: int
    warps: int
    rows: int
    split: int
    stages: int = 4
    early: bool = False


@triton.jit  # type: ignore[untyped-decorator]
def _prefetch(places):  # type: ignore[no-untyped-def]
    """Prefetch lines to the L2 cache, which stays coherent with the kernel before."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places.to(tl.int64)], tl.int32, is_pure=False, pack=1
    )


@triton.jit  # type: ignore[untyped-decorator]
def _group(  # type: ignore[no-untyped-def]
    total, word, value, scale, zero, magic,
    OFFSET: tl.constexpr, HAS_ZEROS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Return `total` with the products of one group of inputs added."""
    dtype: tl.constexpr = value.dtype
    word = word.to(tl.uint32, bitcast=True)
    value = tl.reshape(value, (M, 4, 4, 2, 2, 2))  # q v p j1 j0
    value = tl.reshape(tl.permute(value, (2, 4, 5, 1, 3, 0)), (128, M))
    code = tl.join(
        tl.join(_pair(word, magic, 0, dtype), _pair(word, magic, 1, dtype)),
        tl.join(_pair(word, magic, 2, dtype), _pair(word, magic, 3, dtype)),
    )
    code = tl.reshape(code, (8, W, N // (16 * W), 2, 4, 4, 2, 2, 2))
    code = tl.reshape(tl.permute(code, (2, 1, 3, 0, 5, 8, 7, 4, 6)), (N, 128))
    if HAS_ZEROS:
        code -= (zero.to(tl.float32) + OFFSET).to(dtype)[:, None]
    else:
        code -= tl.full((1, 1), OFFSET + 8, dtype)
    return total + tl.dot(code, value) * scale.to(tl.float32)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _finish(  # type: ignore[no-untyped-def]
    out, sums, counters, total, rows, outputs, SPLIT: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    """Write the sums [N, M] of a program or, if it is the last of its tile, those of all."""
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    out += m[None, :].to(tl.int64) * outputs + n[:, None]
    mask = (m < rows)[None, :] & (n < outputs)[:, None]
    if SPLIT == 1:
        tl.store(out, total.to(out.dtype.element_ty), mask=mask)
    else:
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        sums += tile.to(tl.int64) * (SPLIT * N * M) + tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :]
        tl.store(sums + tl.program_id(2) * (N * M), total)
        tl.debug_barrier()
        if tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLIT - 1:
            total = tl.load(sums, cache_modifier=".cg")
            for number in tl.static_range(1, SPLIT):
                total += tl.load(sums + number * (N * M), cache_modifier=".cg")
            tl.store(out, total.to(out.dtype.element_ty), mask=mask)
            tl.store(counters + tile, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _blocks(  # type: ignore[no-untyped-def]
    out, sums, counters, x, words, scales, zeros, rows, outputs, inputs, stride, groups, split_groups, magic,
    HAS_ZEROS: tl.constexpr, EARLY: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, W: tl.constexpr,
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
    first_word = words
    words += tl.minimum(n0 + local, outputs - 1).to(tl.int64) * stride + tl.arange(0, 16)[None, None, None, :]
    x += tl.minimum(m, rows - 1).to(tl.int64)[:, None] * inputs + tl.arange(0, 128)[None, :]
    n = n0 + tl.arange(0, N)
    channel = tl.minimum(n, outputs - 1) * groups
    scales += channel
    zeros += channel if HAS_ZEROS else 0
    if EARLY:
        first = tl.minimum(begin * 16 + tl.arange(0, 8) * 8, stride - 8)
        _prefetch(first_word + tl.minimum(n, outputs - 1).to(tl.int64)[:, None] * stride + first[None, :])
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros((N, M), tl.float32)
    next_scale = tl.load(scales + begin)
    next_zero = tl.load(zeros + begin) if HAS_ZEROS else next_scale
    for group in tl.range(begin, end, num_stages=STAGES):
        scale, zero = next_scale, next_zero
        word, value = tl.load(words + group * 16), tl.load(x + group * 128)
        following = tl.minimum(group + 1, groups - 1)
        next_scale = tl.load(scales + following)
        next_zero = tl.load(zeros + following) if HAS_ZEROS else next_scale
        total = _group(total, word, value, scale, zero, magic, OFFSET, HAS_ZEROS, M, N, W)
    _finish(out, sums, counters, total, rows, outputs, SPLIT, M, N)


def blocks(rows: int, shape: tuple[int, int], processors: int, early: bool) -> dict[str, Blocks]:
    """Return the shapes of programs that may be fastest on some GPU, by name; the first one is the default.

    Inputs are split so that multiprocessors are busy.

    Args:
        rows: rows of activations.
        shape: outputs and inputs.
        processors: multiprocessors of the GPU.
        early: see slices.py.
    """
    columns = min(max(triton.next_power_of_2(rows), 16), 64)
    found = {}
    for channels, warps, stages, programs in _SHAPES[columns]:
        split = programs * processors // (-(-shape[0] // channels) * -(-rows // columns))
        split = max(1, min(split, shape[1] // GROUP))
        name = f"blocks of {channels} channels, {warps} warps, {stages} stages, {split} splits"
        found[name] = Blocks(channels, warps, columns, split, stages, early)
    return found


def _zeros(device: torch.device, count: int) -> torch.Tensor:
    """Return counters that no other launch uses at the same time.

    They belong to a stream, or, in a CUDA graph (which may be replayed on any stream), to that launch alone.
    """
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    if torch.cuda.is_current_stream_capturing():
        spare = _spare.get(device)
        if spare is None or len(spare) < count:
            return torch.zeros(count, dtype=torch.int32, device=device)
        _spare[device] = spare[count:]
        return spare[:count]
    if device not in _spare:
        _spare[device] = torch.zeros(_COUNTERS, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)
    key = device, torch.cuda.current_stream(device).cuda_stream
    if key not in _counters or len(_counters[key]) < count:
        _counters[key] = torch.zeros(max(count, 1024), dtype=torch.int32, device=device)
    return _counters[key]


def _scratch(out: torch.Tensor, grid: tuple[int, int, int], size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return memory for `size` sums of each program of a grid, and a counter for each tile; unused without splits."""
    tiles, split = grid[0] * grid[1], grid[2]
    if split == 1:
        return out, out
    return torch.empty((tiles, split, size), dtype=torch.float32, device=out.device), _zeros(out.device, tiles)


def matmul(x: torch.Tensor, packed: Packed, tile: Blocks) -> torch.Tensor:
    """Multiply as `reference_matmul` does, for a weight that `slices.fits` accepts."""
    words, scales = packed.words.contiguous(), packed.scales[0].contiguous()
    zeros = words if packed.zeros is None else packed.zeros.contiguous()
    groups = packed.inputs // GROUP
    split_groups = -(-groups // tile.split)
    split = -(-groups // split_groups)
    grid = -(-packed.outputs // tile.outputs), -(-len(x) // tile.rows), split
    out = torch.empty((len(x), packed.outputs), dtype=x.dtype, device=x.device)
    early = {"launch_pdl": True} if tile.early else {}
    with torch.cuda.device_of(out):
        sums, counters = _scratch(out, grid, tile.outputs * tile.rows)
        if out.numel():
            _blocks[grid](
                *(out, sums, counters, x.contiguous(), words, scales, zeros, len(x), packed.outputs, packed.inputs),
                *(words.shape[1], groups, split_groups, MAGIC[x.dtype]),
                HAS_ZEROS=packed.zeros is not None,
                EARLY=tile.early,
                SPLIT=split,
                STAGES=tile.stages,
                M=tile.rows,
                N=tile.outputs,
                W=tile.warps,
                num_warps=tile.warps,
                **early,
            )
    return out
