"""Grouped codes expanded in Triton to keys or values as torch's attention takes them: a program for each block of a
head. The bits are those of the coder."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from squeeze.kernels.current import device_of
from squeeze.kernels.kv_attention.unpack import codes_of
from squeeze.kv.base import Coder
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.lloyd_max import lloyd_max
from squeeze.kv.store import Fields
from squeeze.kv.view import LayerView, fields_of
from squeeze.numerics.constants import on

__all__ = ["decode", "fits", "write"]

_KINDS = "keys", "values"
_OF_A_WARP = 2048  # numbers


@triton.jit  # type: ignore[untyped-decorator]
def _expand(  # type: ignore[no-untyped-def]
    out, codes, scales, leasts, points, out_stride_b, out_stride_h, out_stride_t,
    stride_b, stride_h, s_stride_b, s_stride_h, heads, blocks,
    T: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, TOKENS: tl.constexpr,
    POINTS: tl.constexpr,
):  # fmt: skip
    PLANES: tl.constexpr = 8 // WIDTH
    ROWS: tl.constexpr = D if TOKENS else T
    COLUMNS: tl.constexpr = T if TOKENS else D
    WORDS: tl.constexpr = COLUMNS // PLANES // 4  # of a row
    block, row = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b, h = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    first = block * ROWS + tl.arange(0, ROWS)  # of a head, whose values number less than 2^31
    at = codes + b * stride_b + h * stride_h + first[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    code = codes_of(tl.load(at).to(tl.uint32, bitcast=True), 0, PLANES, WIDTH, tl.int32)
    code = tl.permute(tl.reshape(code, (ROWS, WORDS, 2, PLANES, 2)), (0, 3, 1, 4, 2))  # as they lie in a row
    code = tl.reshape(code, (ROWS, GROUPS, COLUMNS // GROUPS))
    group = b * s_stride_b + h * s_stride_h + first[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]
    scale = tl.load(scales + group).to(tl.float32)[:, :, None]
    if POINTS:
        value = tl.load(points + code) * scale
    else:
        value = code.to(tl.float32) * scale + tl.load(leasts + group).to(tl.float32)[:, :, None]
    value = tl.reshape(value, (ROWS, COLUMNS)).to(out.dtype.element_ty)
    if TOKENS:
        value = tl.trans(value)
    token = (block * T + tl.arange(0, T)).to(tl.int64)[:, None]
    tl.store(out + b * out_stride_b + h * out_stride_h + token * out_stride_t + tl.arange(0, D)[None, :], value)


def fits(view: LayerView) -> bool:
    """Whether `decode` takes this: all heads with the same tokens, none of them cut, and codes as `_takes` says."""
    if view.selected or view.offset != view.dropped:
        return False
    return all(
        _takes(coder, fields, f"{kind}.codes", (view.block, exact.shape[3]))
        for group, fields in view.stores
        for kind, coder, exact in zip(_KINDS, (group.keys, group.values), view.residual, strict=True)
    )


def _takes(coder: Coder, fields: Fields, codes: str, sizes: tuple[int, int]) -> bool:
    """Blocks of so many tokens and channels, powers of two: not rotated, of 1, 2, 4 or 8 bits, rows of whole words."""
    if not isinstance(coder, GroupedCoder) or coder.rotate or coder.width not in (1, 2, 4, 8):
        return False
    return fields[codes].shape[-1] % 4 == 0 and all(size >= 16 and size & (size - 1) == 0 for size in sizes)


def decode(view: LayerView, keys: torch.Tensor, values: torch.Tensor) -> None:
    """All tokens of a view into keys and values [B, H, tokens, D]."""
    coded = slice(view.sinks[0].shape[2], view.length - view.residual[0].shape[2])
    for number, (kind, out) in enumerate(zip(_KINDS, (keys, values), strict=True)):
        out[:, :, : coded.start], out[:, :, coded.stop :] = view.sinks[number], view.residual[number]
        for group, fields in view.stores:
            coder, mine = (group.keys, group.values)[number], fields_of(fields, kind)
            if group.heads is None:
                write(coder, mine, out[:, :, coded])
                continue
            for place, head in enumerate(group.heads):
                one = {name: x[:, place : place + 1] for name, x in mine.items()}
                write(coder, one, out[:, head : head + 1, coded])


def write(coder: Any, fields: Fields, out: torch.Tensor) -> None:
    """What coder.decode makes of fields [B, H, n, ...], into out [B, H, n T, D], whose channels lie together."""
    codes, scale = fields["codes"].view(torch.int32), fields["scale"]
    batch, heads, blocks = codes.shape[:3]
    if not codes.numel():
        return
    block, size = out.shape[2] // blocks, out.shape[3]
    points = on(lloyd_max(coder.width), out.device) if coder.points != "even" else scale
    with device_of(out):
        _expand[(blocks * batch * heads,)](
            *(out, codes, scale, fields.get("least", scale), points),
            *(*out.stride()[:3], *codes.stride()[:2], *scale.stride()[:2], heads, blocks),
            T=block, D=size, WIDTH=coder.width, GROUPS=scale.shape[-1], TOKENS=coder.along == "tokens",
            POINTS=coder.points != "even", num_warps=max(min(block * size // _OF_A_WARP, 16), 1),
            enable_fp_fusion=False,
        )  # fmt: skip
