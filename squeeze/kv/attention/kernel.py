"""Decoding steps in Triton from packed codes: a program for each row, KV head and range of blocks (split-K).

All query heads of a KV head share one pass over its codes (flash-decoding, Dao et al. 2023). Codes become float16
without loss and go to tensor cores, with tokens or channels as rows and query heads as columns. If a tile has one scale
and minimum for each row, they are applied to the query, the scores or the weights, which are then rounded to float16. A
program writes its maximum, mass and weighted sum; a second kernel merges these with sinks and recent tokens. Queries of
float32 are multiplied in float32. Rotations are applied to query and output. tiles.py serves everything else.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from squeeze.kv.attention.unpack import codes_of, column_of
from squeeze.kv.codes import lloyd_max
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.view import LayerView
from squeeze.numerics.constants import constant_on
from squeeze.numerics.hadamard import block_hadamard

__all__ = ["Splits", "attend", "coded", "fits", "joined", "room"]

_PROGRAMS = 1000  # wanted if there are enough blocks: eight warps on each of an H100's 132 multiprocessors
_HEADS = 8  # columns of the smallest matrix product: query heads are padded to these
_TOGETHER = 16  # splits merged at a time
_TOKENS = 64  # in full precision, at a time
_CHANNELS = 32  # of values that a program merges
_FOUR_WARPS = 1 << 14  # bytes of a tile: a larger one needs eight warps for its registers


@triton.jit  # type: ignore[untyped-decorator]
def _decoded_rows(  # type: ignore[no-untyped-def]
    words, scales, leasts, points, first_row, row, dtype: tl.constexpr, BYTES: tl.constexpr, WIDTH: tl.constexpr,
    GROUPS: tl.constexpr, POINTS: tl.constexpr, FOLDED: tl.constexpr,
):  # fmt: skip
    """Decode the words uint32 of rows `row` to [rows, columns in the order of column_of].

    If FOLDED, scale and minimum are left to the caller.
    """
    PLANES: tl.constexpr = 8 // WIDTH
    COLUMNS: tl.constexpr = BYTES * PLANES
    if FOLDED and not POINTS:
        return codes_of(words, 0, PLANES, WIDTH, dtype)
    else:
        code = codes_of(words, 0, PLANES, WIDTH, tl.int32)
        column = column_of(tl.arange(0, COLUMNS), 0, PLANES, BYTES)
        group = (first_row + row[:, None]) * GROUPS + (column // (COLUMNS // GROUPS))[None, :]
        if POINTS:
            value = tl.load(points + code)
        else:
            value = code.to(tl.float32)
        if not FOLDED:
            value *= tl.load(scales + group).to(tl.float32)
            if not POINTS:
                value += tl.load(leasts + group).to(tl.float32)
        return value.to(dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _decode(  # type: ignore[no-untyped-def]
    query, k_codes, k_scales, k_leasts, k_points, v_codes, v_scales, v_leasts, v_points,
    k_stride_b, k_stride_h, ks_stride_b, ks_stride_h, v_stride_b, v_stride_h, vs_stride_b, vs_stride_h,
    tops, masses, sums, heads, blocks, per_split, scaling,
    GROUP: tl.constexpr, G: tl.constexpr, T: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, K_GROUPS: tl.constexpr, V_GROUPS: tl.constexpr,
    K_TOKENS: tl.constexpr, V_TOKENS: tl.constexpr, K_POINTS: tl.constexpr, V_POINTS: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = tl.float16 if HALVES else tl.float32
    K_PLANES: tl.constexpr = 8 // K_WIDTH
    V_PLANES: tl.constexpr = 8 // V_WIDTH
    K_ROWS: tl.constexpr = D if K_TOKENS else T
    V_ROWS: tl.constexpr = DV if V_TOKENS else T
    K_BYTES: tl.constexpr = (T if K_TOKENS else D) // K_PLANES  # of a row
    V_BYTES: tl.constexpr = (T if V_TOKENS else DV) // V_PLANES
    K_FOLDED: tl.constexpr = K_GROUPS == 1
    V_PARTS: tl.constexpr = V_GROUPS if not V_TOKENS and not V_POINTS and V_GROUPS <= V_PLANES else 1
    V_FOLDED: tl.constexpr = not V_TOKENS and V_PARTS == V_GROUPS

    row, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    b, h = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    k_codes += b * k_stride_b + h * k_stride_h
    k_scales += b * ks_stride_b + h * ks_stride_h
    k_leasts += b * ks_stride_b + h * ks_stride_h
    v_codes += b * v_stride_b + h * v_stride_h
    v_scales += b * vs_stride_b + h * vs_stride_h
    v_leasts += b * vs_stride_b + h * vs_stride_h

    g, d, t = tl.arange(0, G), tl.arange(0, D), tl.arange(0, T)  # t: tokens, in the order of the scores
    if K_TOKENS:
        t = column_of(t, 0, K_PLANES, K_BYTES)
        k_row = d
    else:
        d = column_of(d, 0, K_PLANES, K_BYTES)
        if V_TOKENS:
            t = column_of(t, 0, V_PLANES, V_BYTES)
        k_row = t
    v_row = tl.arange(0, DV) if V_TOKENS else t
    k_word = k_row[:, None] * (K_BYTES // 4) + tl.arange(0, K_BYTES // 4)[None, :]
    v_word = v_row[:, None] * (V_BYTES // 4) + tl.arange(0, V_BYTES // 4)[None, :]

    q = tl.load(query + (row.to(tl.int64) * GROUP + g[None, :]) * D + d[:, None], mask=(g < GROUP)[None, :], other=0)
    q = q.to(tl.float32) * scaling  # [D, G]
    mass_of_q = tl.sum(q, 0)
    top = tl.full((G,), float("-inf"), tl.float32)
    mass = tl.zeros((T, G), tl.float32)
    totals = ()
    leasts = ()
    for _ in tl.static_range(V_PARTS):
        totals += (tl.zeros((DV // V_PARTS, G), tl.float32),)  # type: ignore[assignment]
        leasts += (tl.zeros((T, G), tl.float32),)  # type: ignore[assignment]
    for block in tl.range(split * per_split, tl.minimum((split + 1) * per_split, blocks), num_stages=2):
        first = block * K_ROWS  # of a head, whose values number less than 2^31
        words = tl.load(k_codes + first * (K_BYTES // 4) + k_word).to(tl.uint32, bitcast=True)
        keys = _decoded_rows(
            words, k_scales, k_leasts, k_points, first, k_row, dtype, K_BYTES, K_WIDTH, K_GROUPS, K_POINTS, K_FOLDED
        )
        if K_FOLDED:
            scale = tl.load(k_scales + first + k_row).to(tl.float32)
            least = tl.load(k_leasts + first + k_row).to(tl.float32)
        if K_TOKENS:
            keys = tl.trans(keys)
        if K_FOLDED and K_TOKENS:
            scores = tl.dot(keys, (q * scale[:, None]).to(dtype), input_precision="ieee")
            if not K_POINTS:
                scores += tl.sum(q * least[:, None], 0)[None, :]
        else:
            scores = tl.dot(keys, q.to(dtype), input_precision="ieee")
            if K_FOLDED:
                scores *= scale[:, None]
                if not K_POINTS:
                    scores += least[:, None] * mass_of_q[None, :]

        higher = tl.maximum(top, tl.max(scores, 0))
        weights = tl.exp2(scores - higher[None, :])
        fade = tl.exp2(top - higher)[None, :]
        mass = mass * fade + weights
        top = higher

        first = block * V_ROWS
        words = tl.load(v_codes + first * (V_BYTES // 4) + v_word).to(tl.uint32, bitcast=True)
        new_totals = ()
        new_leasts = ()
        for part in tl.static_range(V_PARTS):
            if V_PARTS > 1:
                values = codes_of(words, part * (V_PLANES // V_PARTS), V_PLANES // V_PARTS, V_WIDTH, dtype)
            else:
                values = _decoded_rows(
                    words, v_scales, v_leasts, v_points, first, v_row, dtype,
                    V_BYTES, V_WIDTH, V_GROUPS, V_POINTS, V_FOLDED,
                )  # fmt: skip
            scaled = weights
            constant = leasts[part]  # type: ignore[misc, var-annotated]
            if V_FOLDED:
                group = (first + v_row) * V_GROUPS + part
                scaled = weights * tl.load(v_scales + group).to(tl.float32)[:, None]
                if not V_POINTS:
                    constant = constant * fade + weights * tl.load(v_leasts + group).to(tl.float32)[:, None]
            if not V_TOKENS:
                values = tl.trans(values)
            total = tl.dot(values, scaled.to(dtype), totals[part] * fade, input_precision="ieee")
            new_totals += (total,)  # type: ignore[assignment]
            new_leasts += (constant,)  # type: ignore[assignment]
        totals, leasts = new_totals, new_leasts

    out = (row.to(tl.int64) * splits + split) * GROUP + g
    tl.store(tops + out, top, mask=g < GROUP)
    tl.store(masses + out, tl.sum(mass, 0), mask=g < GROUP)
    for part in tl.static_range(V_PARTS):
        channel = tl.arange(0, DV // V_PARTS)
        if not V_TOKENS:
            channel = column_of(channel, part * (V_PLANES // V_PARTS), V_PLANES // V_PARTS, V_BYTES)
        total = totals[part] + tl.sum(leasts[part], 0)[None, :]
        tl.store(sums + out[None, :] * DV + channel[:, None], total, mask=(g < GROUP)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _join(  # type: ignore[no-untyped-def]
    out, query, tops, masses, sums, sink_keys, sink_values, keys, values,
    sk_stride_b, sk_stride_h, sk_stride_t, sv_stride_b, sv_stride_h, sv_stride_t,
    k_stride_b, k_stride_h, k_stride_t, v_stride_b, v_stride_h, v_stride_t,
    heads, splits, sinks, recent, scaling,
    GROUP: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Merge the splits of a row with its sinks and recent tokens, for CHANNELS channels of the output.

    Each program reads all scores of its row. Sinks and recent tokens are one sequence.
    """
    dtype: tl.constexpr = query.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    b, h = row // heads, row % heads
    g, d, dv = tl.arange(0, G), tl.arange(0, D), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    here = g < GROUP
    q = tl.load(query + (row * GROUP + g[None, :]) * D + d[:, None], mask=here[None, :], other=0).to(dtype)
    top = tl.full((G,), float("-inf"), tl.float32)
    mass = tl.zeros((G,), tl.float32)
    total = tl.zeros((CHANNELS, G), tl.float32)
    sink_keys += b * sk_stride_b + h * sk_stride_h
    sink_values += b * sv_stride_b + h * sv_stride_h
    keys += b * k_stride_b + h * k_stride_h
    values += b * v_stride_b + h * v_stride_h
    for start in range(0, sinks + recent, TOKENS):
        t = start + tl.arange(0, TOKENS)
        present, is_sink = t < sinks + recent, t < sinks
        later = present & ~is_sink
        k = tl.load(sink_keys + t[:, None] * sk_stride_t + d[None, :], mask=is_sink[:, None], other=0)
        k += tl.load(keys + (t - sinks)[:, None] * k_stride_t + d[None, :], mask=later[:, None], other=0)
        v = tl.load(sink_values + t[None, :] * sv_stride_t + dv[:, None], mask=is_sink[None, :], other=0)
        v += tl.load(values + (t - sinks)[None, :] * v_stride_t + dv[:, None], mask=later[None, :], other=0)
        scores = tl.dot(k.to(dtype), q, input_precision="ieee") * scaling
        scores = tl.where(present[:, None], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 0))
        weights = tl.exp2(scores - higher[None, :])
        fade = tl.exp2(top - higher)
        mass = mass * fade + tl.sum(weights, 0)
        total = tl.dot(v.to(dtype), weights.to(dtype), total * fade[None, :], input_precision="ieee")
        top = higher
    for start in range(0, splits, TOGETHER):
        split = start + tl.arange(0, TOGETHER)
        place = (row * splits + split[:, None]) * GROUP + g[None, :]
        present = (split < splits)[:, None] & here[None, :]
        part = tl.load(sums + place[:, None, :] * DV + dv[None, :, None], mask=present[:, None, :], other=0)
        top_here = tl.load(tops + place, mask=present, other=float("-inf"))
        higher = tl.where(here, tl.maximum(top, tl.max(top_here, 0)), 0.0)
        fade, fades = tl.exp2(top - higher), tl.exp2(top_here - higher[None, :])
        mass = mass * fade + tl.sum(fades * tl.load(masses + place, mask=present, other=0), 0)
        total = total * fade[None, :] + tl.sum(part * fades[:, None, :], 0)
        top = higher
    target = out + (row * GROUP + g[None, :]) * DV + dv[:, None]
    tl.store(target, (total / mass[None, :]).to(out.dtype.element_ty), mask=here[None, :])


class Splits(NamedTuple):
    """Partial attention to S ranges of blocks, for the G query heads of each KV head.

    tops: the highest score times log2 e, and masses: the sum of weights relative to it, [B, H, S, G]. sums: the
    weighted sum of values, [B, H, S, G, D].
    """

    tops: torch.Tensor
    masses: torch.Tensor
    sums: torch.Tensor


def fits(query: torch.Tensor, view: LayerView, bias: torch.Tensor | None) -> bool:
    """Return whether `attend` takes this.

    It takes one query a row, no mask, sizes that are powers of two, and grouped codes of 1, 2, 4 or 8 bits whose rows
    fill words. If keys and values both run along tokens, their widths must be equal.
    """
    if query.shape[2] != 1 or bias is not None or len(view.stores) != 1 or view.offset != view.dropped:
        return False
    if view.selected or not view.blocks:
        return False
    group, fields = view.stores[0]
    sizes = (view.block, query.shape[3], view.residual[1].shape[3])
    powers = all(size >= 16 and size & (size - 1) == 0 for size in sizes)
    keys, values = group.keys, group.values
    if not powers or group.heads is not None:
        return False
    if not isinstance(keys, GroupedCoder) or not isinstance(values, GroupedCoder):
        return False
    if not {keys.width, values.width} <= {1, 2, 4, 8}:
        return False
    apart = keys.along == values.along == "tokens" and keys.width != values.width
    return not apart and all(fields[f"{kind}.codes"].shape[-1] % 4 == 0 for kind in ("keys", "values"))


def attend(query: torch.Tensor, view: LayerView, scaling: float) -> torch.Tensor:
    """Attend as `tiles.reference_attend` does, without a mask.

    If the query has 16 bits, scaled queries and weights are rounded to float16.
    """
    splits, values = coded(query, view, scaling), view.stores[0][0].values
    if isinstance(values, GroupedCoder) and values.rotate:
        rotation = block_hadamard(splits.sums.shape[-1], query.device)
        splits = splits._replace(sums=splits.sums @ rotation)
    return joined(query, view, scaling, splits)


def coded(query: torch.Tensor, view: LayerView, scaling: float) -> Splits:
    """Attend to the coded tokens alone; the sums of values stay in the coder's rotated basis."""
    batch, heads, _, size = query.shape
    kv_heads, value_size = view.residual[0].shape[1], view.residual[1].shape[3]
    groups = heads // kv_heads
    group, fields = view.stores[0]
    keys, values = group.keys, group.values
    assert isinstance(keys, GroupedCoder) and isinstance(values, GroupedCoder)
    rows = query.to(torch.float32) @ block_hadamard(size, query.device) if keys.rotate else query
    splits = room(query, view)
    k, v = _operands(keys, "keys", fields), _operands(values, "values", fields)
    numbers = (
        *(stride for x in (k, v) for field in x[:2] for stride in field.stride()[:2]),
        *(*splits, kv_heads, view.blocks, _per_split(query, view), scaling * math.log2(math.e)),
    )
    sizes = {"GROUP": groups, "G": max(triton.next_power_of_2(groups), _HEADS), "T": view.block, "D": size}
    sizes |= {"DV": value_size, "K_WIDTH": keys.width, "V_WIDTH": values.width}
    grid = batch * kv_heads, splits.tops.shape[2]
    with torch.cuda.device_of(query):
        _decode[grid](
            *(rows.contiguous(), *k, *v, *numbers),
            K_GROUPS=k[1].shape[-1], V_GROUPS=v[1].shape[-1],
            K_TOKENS=keys.along == "tokens", V_TOKENS=values.along == "tokens",
            K_POINTS=keys.points != "even", V_POINTS=values.points != "even", HALVES=query.dtype.itemsize == 2,
            num_warps=8 if view.block * max(size, value_size) * query.itemsize > _FOUR_WARPS else 4, **sizes,
        )  # fmt: skip
    return splits


def room(query: torch.Tensor, view: LayerView) -> Splits:
    """Allocate the result of `coded`."""
    kv_heads, value_size = view.residual[0].shape[1], view.residual[1].shape[3]
    shape = (len(query), kv_heads, -(-view.blocks // _per_split(query, view)), query.shape[1] // kv_heads)
    tops, masses, sums = (
        torch.empty(size, dtype=torch.float32, device=query.device) for size in (shape, shape, (*shape, value_size))
    )
    return Splits(tops, masses, sums)


def _per_split(query: torch.Tensor, view: LayerView) -> int:
    """Return the number of blocks of a program."""
    return max(-(-view.blocks * len(query) * view.residual[0].shape[1] // _PROGRAMS), 1)


def joined(query: torch.Tensor, view: LayerView, scaling: float, splits: Splits) -> torch.Tensor:
    """Merge the attention to coded tokens with that to tokens in full precision, [B, Hq, 1, Dv]."""
    batch, heads, _, size = query.shape
    kv_heads, value_size = view.residual[0].shape[1], view.residual[1].shape[3]
    groups = heads // kv_heads
    columns, channels = max(triton.next_power_of_2(groups), _HEADS), min(value_size, _CHANNELS)
    out = query.new_empty((batch, heads, 1, value_size))
    exact = [x if x.stride(-1) == 1 else x.contiguous() for x in (*view.sinks, *view.residual)]
    with torch.cuda.device_of(out):
        _join[(batch * kv_heads, value_size // channels)](
            *(out, query.contiguous(), *(part.contiguous() for part in splits), *exact),
            *(stride for x in exact for stride in x.stride()[:3]),
            *(kv_heads, splits.tops.shape[2], exact[0].shape[2], exact[2].shape[2], scaling * math.log2(math.e)),
            GROUP=groups, G=columns, D=size, DV=value_size, CHANNELS=channels,
            TOKENS=_TOKENS, TOGETHER=max(_TOGETHER * _HEADS // columns, 1), num_stages=1,
        )  # fmt: skip
    return out


def _operands(coder: GroupedCoder, kind: str, fields: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return codes as words int32 [B, H, blocks, rows, words], scales, minimums and points."""
    codes, scale = fields[f"{kind}.codes"], fields[f"{kind}.scale"]
    points = constant_on(lloyd_max(coder.width), scale.device) if coder.points != "even" else scale
    return codes.view(torch.int32), scale, fields.get(f"{kind}.least", scale), points
