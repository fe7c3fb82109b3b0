"""Products with 4-bit codes in groups of 128, in one launch: each warp of a program takes a slice of the inputs.

Inputs are summed in the order in which codes come from words. Each thread reads four words of a channel at once. Two
codes of a word become two 16-bit floats by two instructions, and can stay in their thread. Activations are read in the
same order. The compiler decides how much still goes through shared memory; the sums of the warps do, once. The offset
of codes (see kernel.py) is subtracted by means of the activations' sum over a group, a matrix product with ones. So an
infinite activation gives NaN, while other kernels may give an infinity.

A kernel that is launched early waits for the kernel before it when it first reads activations, which that one may have
written. A weight that earlier products have read needs no waiting. Nothing is written before the wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from squeeze.kernels.dequant import Packed

__all__ = ["GROUP", "MAGIC", "MOST_ROWS", "Slices", "fits", "matmul", "may_start_early", "slices", "was_used_before"]

GROUP = 128  # inputs
MOST_ROWS = 32
_SHAPES = {  # by rows: channels, groups, warps
    8: ((16, 2, 8), (16, 4, 4), (32, 2, 4), (16, 2, 4), (16, 1, 8), (16, 2, 2)),
    16: ((32, 1, 4), (16, 2, 4), (32, 1, 8), (16, 1, 8)),
    32: ((32, 1, 4), (32, 1, 8)),
}
_MANY = 8192  # outputs or inputs
_versions: WeakIdKeyDictionary = WeakIdKeyDictionary()  # version of the words of each weight that was used
MAGIC = {torch.float16: 0x64006400, torch.bfloat16: 0x43004300}  # two floats whose mantissas take a code each


@dataclass(frozen=True)
class Slices:
    """The work of a program: `outputs` channels of all inputs, by `warps`, for `rows` of activations.

    groups: groups of inputs of a warp at a step. early: whether the program starts, and reads codes, before the kernel
    before it has ended; see may_start_early.
    """

    outputs: int
    groups: int
    warps: int
    rows: int
    early: bool = False


@triton.jit  # type: ignore[untyped-decorator]
def _pair(word, magic, NUMBER: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return codes NUMBER and NUMBER + 4 of words, plus the OFFSET of `_slices`."""
    pair = ((word >> (4 * NUMBER)) & 0x000F000F) | magic
    low = pair.to(tl.uint16).to(dtype, bitcast=True)
    high = (pair >> 16).to(tl.uint16).to(dtype, bitcast=True)
    return tl.join(low, high)


@triton.jit  # type: ignore[untyped-decorator]
def _channels(values, M: tl.constexpr, N: tl.constexpr, S: tl.constexpr, B: tl.constexpr):  # type: ignore[no-untyped-def]
    """Reshape values of channels and groups, [4, 8, B, N / 8, S], as those of a product, [S B, N, M]."""
    values = tl.reshape(tl.join(values, values), (4, 8, B, N // 8, S, 1, 2))
    values = tl.reshape(tl.permute(values, (4, 2, 3, 1, 5, 0, 6)), (S, B, N // 8, 8, 1, 8))
    return tl.reshape(tl.broadcast_to(values, (S, B, N // 8, 8, M // 8, 8)), (S * B, N, M))


@triton.jit  # type: ignore[untyped-decorator]
def _slices(  # type: ignore[no-untyped-def]
    out, x, words, scales, zeros, rows, outputs, inputs, stride, groups, magic,
    HAS_ZEROS: tl.constexpr, EVEN: tl.constexpr, EARLY: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, S: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Multiply N channels by M rows.

    Shapes make the compiler distribute dimensions over lanes and warps as tensor cores need it. Two bits of a lane (4)
    are a quarter of a group's inputs, three (8) are channels or rows. B are the warps, and all other dimensions are in
    one thread. Channels and rows after the last are read as the last.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    OFFSET: tl.constexpr = 1024 if dtype == tl.float16 else 128
    n0 = tl.program_id(0) * N
    m0 = tl.program_id(1) * M
    eight = tl.arange(0, 8)[:, None, None, None]
    slice = tl.arange(0, B)[None, :, None, None] * S
    part = tl.arange(0, S * N // 8)[None, None, :, None]
    group = slice + part // (N // 8)
    n = tl.minimum(n0 + part % (N // 8) * 8 + eight, outputs - 1)
    words += n.to(tl.int64) * stride + group * 16 + tl.arange(0, 16)[None, None, None, :]
    part = tl.arange(0, S * M // 2)[None, None, :, None]
    m = tl.minimum(m0 + part % (M // 8) * 8 + eight, rows - 1)
    k = tl.arange(0, 32)[None, None, None, :]
    x_group = slice + part // (M // 2)
    x += m.to(tl.int64) * inputs + x_group * 128 + part // (M // 8) % 4 * 8 + (k // 8 * 32 + k % 8)
    channel = tl.arange(0, 8)[None, :, None, None, None] + tl.arange(0, N // 8)[None, None, None, :, None] * 8
    channel = tl.minimum(n0 + channel, outputs - 1) + tl.arange(0, 4)[:, None, None, None, None] * 0
    scale_group = tl.arange(0, B)[None, None, :, None, None] * S + tl.arange(0, S)[None, None, None, None, :]
    scale_at = channel * groups + scale_group
    if not EVEN:
        scale_at = tl.max_contiguous(scale_at, [1, 1, 1, 1, 1])
    one = tl.full((S * B, 16, 64), 1, dtype)
    ones = tl.reshape(tl.join(one, one), (S * B, 16, 128))
    total = tl.zeros((S * B, N, M), tl.float32)
    next_word = tl.load(words, mask=group < groups, other=0)
    next_scale = tl.load(scales + scale_at, mask=scale_group < groups, other=0)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for start in tl.range(0, groups, S * B, num_stages=1):
        word, scale = next_word.to(tl.uint32, bitcast=True), next_scale.to(tl.float32)
        if EVEN:
            value = tl.load(x + start * 128)
        else:
            value = tl.load(x + start * 128, mask=x_group + start < groups, other=0)
        following = start + S * B
        next_word = tl.load(words + following * 16, mask=group + following < groups, other=0)
        next_scale = tl.load(scales + scale_at + following, mask=scale_group + following < groups, other=0)
        # 8, B, S, the word of four, M / 8, the quarter, 2, 2, 2
        value = tl.reshape(value, (8, B, S, 4, M // 8, 4, 2, 2, 2))
        value = tl.reshape(tl.permute(value, (2, 1, 3, 7, 5, 8, 6, 4, 0)), (S * B, 128, M))
        code = tl.join(
            tl.join(_pair(word, magic, 0, dtype), _pair(word, magic, 1, dtype)),
            tl.join(_pair(word, magic, 2, dtype), _pair(word, magic, 3, dtype)),
        )
        # 8, B, S, N / 8, the quarter, the word of four, 2, 2, 2
        code = tl.reshape(code, (8, B, S, N // 8, 4, 4, 2, 2, 2))
        code = tl.reshape(tl.permute(code, (2, 1, 3, 0, 5, 8, 4, 7, 6)), (S * B, N, 128))
        product = tl.dot(code, value)
        sums = tl.dot(ones, value)
        if N > 16:
            sums = tl.reshape(tl.broadcast_to(sums[:, None, :, :], (S * B, N // 16, 16, M)), (S * B, N, M))
        if HAS_ZEROS:
            zero = tl.load(zeros + scale_at + start, mask=scale_group + start < groups, other=0)
            product -= (_channels(zero.to(tl.float32), M, N, S, B) + OFFSET) * sums
        else:
            product -= (OFFSET + 8) * sums
        total += product * _channels(scale, M, N, S, B)
    result = tl.sum(total, 0)
    n = n0 + tl.arange(0, N)[:, None]
    m = m0 + tl.arange(0, M)[None, :]
    tl.store(out + m.to(tl.int64) * outputs + n, result.to(dtype), mask=(m < rows) & (n < outputs))


def fits(bits: int, group_size: int, inputs: int, dtype: torch.dtype) -> bool:
    """Return whether the kernels of this file and blocks.py take a weight."""
    return bits == 4 and group_size == GROUP and inputs % GROUP == 0 and dtype in MAGIC


def slices(rows: int, shape: tuple[int, int], early: bool) -> dict[str, Slices]:
    """Return the shapes of programs that may be fastest on some GPU, by name; the first one is the default."""
    columns = min(max(triton.next_power_of_2(rows), 8), MOST_ROWS)
    shapes = list(_SHAPES[columns])
    if columns == 8 and max(shape) > _MANY:
        shapes.insert(0, shapes.pop(2 if shape[0] > _MANY else 1))
    return {
        f"slices of {channels} channels, {groups} groups, {warps} warps": Slices(
            channels, groups, warps, columns, early
        )
        for channels, groups, warps in shapes
    }


def may_start_early(device: torch.device) -> bool:
    """Return whether programs can start before the previous kernel has ended (programmatic dependent launch)."""
    if device.type != "cuda" or torch.version.hip or not hasattr(tl.extra.cuda, "gdc_wait"):
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def was_used_before(packed: Packed) -> bool:
    """Return whether a weight may be read early.

    Only before the first product with it can the previous kernel be the one that wrote it.
    """
    version = None if packed.words.is_inference() else packed.words._version
    found = _versions.get(packed, -1)
    _versions[packed] = version
    whole = packed.words.is_contiguous() and packed.scales.is_contiguous()
    return found == version and whole and (packed.zeros is None or packed.zeros.is_contiguous())


def matmul(x: torch.Tensor, packed: Packed, tile: Slices) -> torch.Tensor:
    """Multiply as `reference_matmul` does, for a weight that `fits` accepts."""
    words, scales = packed.words.contiguous(), packed.scales[0].contiguous()
    zeros = words if packed.zeros is None else packed.zeros.contiguous()
    groups = packed.inputs // GROUP
    out = torch.empty((len(x), packed.outputs), dtype=x.dtype, device=x.device)
    grid = -(-packed.outputs // tile.outputs), -(-len(x) // tile.rows)
    early = tile.early and was_used_before(packed)
    if out.numel():
        with torch.cuda.device_of(out):
            _slices[grid](
                *(out, x.contiguous(), words, scales, zeros),
                *(len(x), packed.outputs, packed.inputs, words.shape[1], groups, MAGIC[x.dtype]),
                HAS_ZEROS=packed.zeros is not None,
                EVEN=groups % (tile.groups * tile.warps) == 0,
                EARLY=early,
                M=tile.rows,
                N=tile.outputs,
                S=tile.groups,
                B=tile.warps,
                num_warps=tile.warps,
                **({"launch_pdl": True} if early else {}),
            )
    return out
