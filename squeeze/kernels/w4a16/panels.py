"""Products with 4-bit codes in the order of tensor cores (order.py), in one launch.

A step of a program reads the tile of its channels and 128 inputs, which is contiguous. Copies into shared memory run
ahead by several steps. A thread takes its words from there 16 bytes at a time, and two codes of a word become two
16-bit floats, in the register from which a tensor core takes them. Activations are copied as they lie: inputs keep
their order. Scales and zero points of a step are contiguous, too, and are copied with it.

Warps take channels, or, for few rows, inputs. Inputs are split over programs, too; see blocks.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from squeeze.kernels.current import device_of
from squeeze.kernels.w4a16.blocks import ask_for, finish, scratch
from squeeze.kernels.w4a16.order import STEP, Ordered
from squeeze.kernels.w4a16.slices import MAGIC, settled

__all__ = ["Panels", "dequantize", "matmul", "panels"]

_SCALES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
_FEW = ((32, 4, 0, 4, 3, True), (64, 4, 8, 4, 4), (16, 8, 0, 3, 3, True), (32, 2, 8, 4, 8), (128, 8, 8, 4, 2))
_SHAPES = {  # channels, warps, rows (0: as few as may be), stages, programs of a processor, whether warps are apart
    8: _FEW,
    16: ((64, 4, 16, 4, 4), (128, 8, 16, 4, 2), (32, 2, 16, 4, 8), (64, 4, 16, 6, 2), (32, 4, 16, 3, 2, True)),
    32: ((64, 4, 32, 4, 3), (128, 8, 32, 4, 2), (64, 4, 32, 4, 4), (128, 4, 32, 4, 2), (64, 2, 32, 4, 4)),
    64: ((128, 8, 64, 4, 2), (128, 8, 64, 4, 1), (64, 4, 64, 4, 2), (128, 4, 32, 4, 2), (64, 2, 32, 4, 4)),
}
_REGISTERS = 1 << 16  # of a processor
_SUMS = 1 << 15  # that the last program of a tile adds, at most


@dataclass(frozen=True)
class Panels:
    """What one program takes: `outputs` channels, `rows`, and one of `split` parts of inputs.

    stages: tiles that are in shared memory, or on their way there. apart: each of its warps takes inputs of its own,
    and all channels. programs: that a processor is to hold, which gives each thread so many registers at most. early:
    see slices.py.
    """

    outputs: int
    warps: int
    rows: int
    split: int
    stages: int = 4
    apart: bool = False
    programs: int = 1
    early: bool = False

    @property
    def registers(self) -> int:
        return min(_REGISTERS // (32 * self.warps * self.programs) // 8 * 8, 248)


@triton.jit  # type: ignore[untyped-decorator]
def _halves(words, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two 16-bit floats of each word, [..., 2]."""
    low = words.to(tl.uint16).to(dtype, bitcast=True)
    return tl.join(low, (words >> 16).to(tl.uint16).to(dtype, bitcast=True))


@triton.jit  # type: ignore[untyped-decorator]
def _two(word, zero, magic, dtype: tl.constexpr, ABOVE: tl.constexpr, PTX: tl.constexpr):  # type: ignore[no-untyped-def]
    """The codes in the lowest four bits of both halves of words, or in the four ABOVE, less their zero point: [..., 2].

    Set as the mantissa of a float, a code stands for itself plus 1024 (float16) or 128 (bfloat16); in the bits above,
    in float16 alone, for 16 times itself plus 1024, of which a sixteenth is taken. The same of the zero point is taken
    off, which is exact; with PTX of both halves at once, by an instruction that Triton has no name for.
    """
    pair = (word & (0x00F000F0 if ABOVE else 0x000F000F)) | magic
    if ABOVE:
        offset = (zero << 4) | 0x5400
    else:
        offset = zero | (0x6400 if dtype == tl.float16 else 0x4300)
    if PTX:
        minus = (offset | 0x8000) * 0x10001
        if dtype == tl.bfloat16:
            two = tl.inline_asm_elementwise(
                "{ .reg .b32 f; mov.b32 f, 0x3F803F80; fma.rn.bf16x2 $0, $1, f, $2; }",
                *("=r,r,r", [pair, minus], tl.uint32, True, 1),
            )
        elif ABOVE:
            two = tl.inline_asm_elementwise(
                "{ .reg .b32 f; mov.b32 f, 0x2C002C00; fma.rn.f16x2 $0, $1, f, $2; }",
                *("=r,r,r", [pair, minus], tl.uint32, True, 1),
            )
        else:
            two = tl.inline_asm_elementwise("add.rn.f16x2 $0, $1, $2;", "=r,r,r", [pair, minus], tl.uint32, True, 1)
        return _halves(two, dtype)
    else:
        offset = tl.expand_dims(offset.to(tl.uint16).to(dtype, bitcast=True), 6)
        two = _halves(pair, dtype)
        if ABOVE:
            return tl.fma(two, tl.full((1, 1, 1, 1, 1, 1, 1), 0.0625, dtype), -offset)
        else:
            return two - offset


@triton.jit  # type: ignore[untyped-decorator]
def _weights(word, zero, magic, dtype: tl.constexpr, PTX: tl.constexpr):  # type: ignore[no-untyped-def]
    """Codes of words less their zero points, [..., e, h, q]; zero: those of channels whose h is 0 and 1, in halves."""
    HALF: tl.constexpr = dtype == tl.float16
    even, odd = zero & 15, zero >> 16
    above = word if HALF else word >> 4
    first, second = _two(word, even, magic, dtype, False, PTX), _two(above, odd, magic, dtype, HALF, PTX)
    word, above = word >> 8, word >> 8 if HALF else word >> 12
    third, fourth = _two(word, even, magic, dtype, False, PTX), _two(above, odd, magic, dtype, HALF, PTX)
    return tl.join(tl.join(first, second), tl.join(third, fourth))


@triton.jit  # type: ignore[untyped-decorator]
def _piece(word, NUMBER: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, B: tl.constexpr):  # type: ignore[no-untyped-def]
    """The words of one of PARTS groups of a tile [2, C, B, 128]: [half, C, B, g, t, s]."""
    if PARTS == 1:
        return tl.reshape(word, (2, C, B, 8, 4, 4))
    elif PARTS == 2:
        first, second = tl.split(tl.permute(word, (1, 2, 3, 0)))
        return tl.reshape(first if NUMBER == 0 else second, (1, C, B, 8, 4, 4))
    else:
        first, second = tl.split(tl.permute(word, (1, 2, 3, 0)))
        half = tl.reshape(first if NUMBER < 2 else second, (C, B, 32, 2, 2))
        first, second = tl.split(tl.permute(half, (0, 1, 2, 4, 3)))
        return tl.reshape(first if NUMBER % 2 == 0 else second, (1, C, B, 8, 4, 2))


@triton.jit  # type: ignore[untyped-decorator]
def _panels(  # type: ignore[no-untyped-def]
    out, sums, counters, x, words, scales, zeros, rows, outputs, inputs, blocks, tiles, groups, span, split_steps,
    magic,
    SCALE: tl.constexpr, HAS_ZEROS: tl.constexpr, EVEN: tl.constexpr, EARLY: tl.constexpr, SPLIT: tl.constexpr,
    STAGES: tl.constexpr, PTX: tl.constexpr, PARTS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """B: warps, each of which takes tiles of its own; where it is 1, all share one. span: tiles of a group. SCALE: the
    type of scales. EVEN: there are whole tiles of inputs, for all warps."""
    dtype: tl.constexpr = x.dtype.element_ty
    C: tl.constexpr = N // 16  # cells of 16 channels
    K: tl.constexpr = 128 // PARTS
    begin = tl.program_id(2) * split_steps
    end = tl.minimum(begin + split_steps, (tiles + B - 1) // B)
    warp, k = tl.arange(0, B), tl.arange(0, K)
    cell = tl.minimum(tl.program_id(0) * C + tl.arange(0, C), blocks * 4 - 1)
    words += tl.arange(0, 2)[:, None, None, None] * 512
    words += ((cell // 4).to(tl.int64) * tiles * 1024 + cell % 4 * 128)[None, :, None, None]
    if EARLY:
        ahead = (begin + tl.arange(0, 4))[:, None] * B + warp[None, :]
        ahead = tl.minimum(ahead, tiles - 1)[:, None, None, :, None] * 1024
        ask_for(words[None, :, :, :, :] + ahead + tl.arange(0, 4)[None, None, None, None, :] * 32)
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    words += tl.arange(0, 128)[None, None, None, :]
    pair_at = cell[:, None, None] * 8 + tl.arange(0, 8)[None, None, :]
    m = tl.minimum(tl.program_id(1) * M + tl.arange(0, M), rows - 1)
    x_at = m.to(tl.int64)[:, None] * inputs + k[None, :]
    x += x_at if B == 1 else x_at[None, :, :] + warp[:, None, None] * 128
    total = tl.zeros((N, M) if B == 1 else (B, N, M), tl.float32)
    for step in tl.range(begin, end, num_stages=STAGES):
        tile = step * B + warp
        if not EVEN:
            tile = tl.minimum(tile, tiles - 1)
        word = tl.load(words + tile[None, None, :, None] * 1024).to(tl.uint32, bitcast=True)
        for part in tl.static_range(PARTS):
            start = step * (B * 128) + part * K
            if EVEN:
                value = tl.load(x + start)
            else:
                value = tl.load(x + start, mask=_inside(k, warp, start, inputs, B), other=0)
            group = tile // span if PARTS == 1 else tl.minimum(tile * PARTS + part, groups - 1)
            at = group[None, :, None] * (blocks * 32) + pair_at
            scale = tl.load(scales + at).to(tl.uint32, bitcast=True)  # C, B, g
            if HAS_ZEROS:
                zero = tl.load(zeros + at).to(tl.uint32, bitcast=True)[None, :, :, :, None, None]
            else:
                zero = tl.full((1, 1, 1, 1, 1, 1), 0x00080008, tl.uint32)
            code = _weights(_piece(word, part, PARTS, C, B), zero, magic, dtype, PTX)
            code = tl.permute(code, (2, 1, 7, 3, 0, 5, 8, 4, 6))  # B; C, h, g; half, s, q, t, e
            scale = tl.permute(_halves(scale, SCALE), (1, 0, 3, 2)).to(tl.float32)  # B; C, h, g
            if B == 1:
                product = tl.dot(tl.reshape(code, (N, K)), tl.trans(value))
                total += product * tl.reshape(scale, (N,))[:, None]
            else:
                product = tl.dot(tl.reshape(code, (B, N, K)), tl.permute(value, (0, 2, 1)))
                total += product * tl.reshape(scale, (B, N))[:, :, None]
    if B > 1:
        total = tl.sum(total, 0)
    finish(out, sums, counters, total, rows, outputs, SPLIT, M, N)


@triton.jit  # type: ignore[untyped-decorator]
def _inside(k, warp, start, inputs, B: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which inputs there are: [1, K] or [B, 1, K]."""
    if B == 1:
        return (start + k < inputs)[None, :]
    else:
        return (start + warp[:, None] * 128 + k[None, :] < inputs)[:, None, :]


def panels(rows: int, shape: tuple[int, int], processors: int, early: bool) -> dict[str, Panels]:
    """By name, those that may be fastest on some GPU; the first is the usual one. Inputs are split so that processors
    have their programs."""
    found, columns = {}, triton.next_power_of_2(rows)
    for channels, warps, most, stages, programs, *rest in _SHAPES[min(max(columns, 8), 64)]:
        apart = bool(rest)
        high = most or columns
        split = programs * processors // (-(-shape[0] // channels) * -(-rows // high))
        steps = -(-shape[1] // (STEP * (warps if apart else 1)))
        split = max(1, min(split, steps, _SUMS // (channels * high)))
        tile = Panels(channels, warps, high, split, stages, apart, programs, early)
        words = f"{warps} warps{' apart' * apart}, {high} row{'s' * (high > 1)}, {stages} stages, {split} splits"
        found[f"panels of {channels} channels, {words}"] = tile
    return found


def matmul(x: torch.Tensor, ordered: Ordered, tile: Panels) -> torch.Tensor:
    """As reference.matmul of what is ordered."""
    words, apart = ordered.words, tile.warps if tile.apart else 1
    blocks, tiles = words.shape[:2]
    steps = -(-tiles // apart)
    split_steps = -(-steps // tile.split)
    split = -(-steps // split_steps)
    grid = -(-ordered.outputs // tile.outputs), -(-len(x) // tile.rows), split
    out = torch.empty((len(x), ordered.outputs), dtype=x.dtype, device=x.device)
    early = tile.early and settled(ordered)
    with device_of(out):
        sums, counters = scratch(out, grid, tile.outputs * tile.rows)
        if out.numel():
            _panels[grid](
                *(out, sums, counters, x.contiguous(), words, ordered.scales),
                *(words if ordered.zeros is None else ordered.zeros, len(x), ordered.outputs, ordered.inputs),
                *(blocks, tiles, len(ordered.scales), ordered.span, split_steps, MAGIC[x.dtype]),
                SCALE=_SCALES[ordered.dtype],
                HAS_ZEROS=ordered.zeros is not None,
                EVEN=ordered.inputs % (STEP * apart) == 0,
                EARLY=early,
                SPLIT=split,
                STAGES=tile.stages,
                PTX=_has_ptx(),
                PARTS=ordered.parts,
                M=tile.rows,
                N=tile.outputs,
                B=apart,
                num_warps=tile.warps,
                maxnreg=tile.registers,
                **({"launch_pdl": True} if early else {}),
            )
    return out


def _has_ptx() -> bool:
    return not triton.knobs.runtime.interpret and torch.version.hip is None


@triton.jit  # type: ignore[untyped-decorator]
def _dequantize(  # type: ignore[no-untyped-def]
    out, words, scales, zeros, outputs, inputs, groups, group_size,
    SCALE: tl.constexpr, HAS_ZEROS: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """SHORT: a tile has several groups."""
    block, tile = tl.program_id(1), tl.program_id(0)
    at = (block.to(tl.int64) * tl.num_programs(0) + tile) * 1024
    word = tl.load(words + at + tl.arange(0, 1024)).to(tl.uint32, bitcast=True)
    eight = tl.arange(0, 8)
    shift = (eight % 2 * 4 + eight // 2 % 2 * 2 + eight // 4)[None, :] * 4  # of e, q and h
    code = tl.reshape(((word[:, None] >> shift) & 15).to(tl.int32), (2, 4, 8, 4, 4, 2, 2, 2))
    code = tl.reshape(tl.permute(code, (1, 5, 2, 0, 4, 6, 3, 7)), (64, 128))
    n, k = tl.arange(0, 64)[:, None], tile * 128 + tl.arange(0, 128)[None, :]
    if SHORT:
        group = tl.minimum(k // group_size, groups - 1)
    else:
        group = tl.minimum(tile * 128 // group_size, groups - 1)
    half, pair_at = n // 8 % 2, group * (tl.num_programs(1) * 32) + block * 32 + n // 16 * 8 + n % 8
    scale = (tl.load(scales + pair_at).to(tl.uint32, bitcast=True) >> (16 * half)).to(tl.uint16)
    scale = scale.to(SCALE, bitcast=True).to(tl.float32)
    zero = (tl.load(zeros + pair_at) >> (16 * half)) & 0xFFFF if HAS_ZEROS else 8
    weight = ((code - zero).to(tl.float32) * scale).to(out.dtype.element_ty)
    n += block * 64
    tl.store(out + n.to(tl.int64) * inputs + k, weight, mask=(n < outputs) & (k < inputs))


def dequantize(ordered: Ordered, dtype: torch.dtype) -> torch.Tensor:
    """As dequant.dequantize of what is ordered."""
    words = ordered.words
    out = torch.empty((ordered.outputs, ordered.inputs), dtype=dtype, device=words.device)
    if out.numel():
        with device_of(out):
            _dequantize[words.shape[1], words.shape[0]](
                *(out, words, ordered.scales, words if ordered.zeros is None else ordered.zeros),
                *(ordered.outputs, ordered.inputs, len(ordered.scales), ordered.group_size),
                SCALE=_SCALES[ordered.dtype],
                HAS_ZEROS=ordered.zeros is not None,
                SHORT=ordered.parts > 1,
                enable_fp_fusion=False,
            )
    return out
