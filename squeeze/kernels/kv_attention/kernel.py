"""Decoding steps in Triton from packed codes: a program for each row, KV head and stretch of blocks (split-K).

Each program unpacks its blocks tile by tile, keeps a running softmax in float32, and leaves its maximum, mass and
weighted sum; those are joined with sinks and recent tokens, which plain torch attends to. Rotations are folded into
query and output. Everything that this does not take goes through tiles.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.lloyd_max import lloyd_max
from squeeze.kv.view import LayerView
from squeeze.numerics.hadamard import block_hadamard

__all__ = ["attend", "fits"]

_PROGRAMS = 1024  # to have at least, where there are so many blocks: several for each of a GPU's processors


@triton.jit  # type: ignore[untyped-decorator]
def _load(  # type: ignore[no-untyped-def]
    codes, scales, leasts, points, block, place_t, place_d,
    T: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr,
    ALONG_TOKENS: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    """A block as float32 [T, D], for place_t [T, 1] and place_d [1, D]; its layout is that of kv/packing.py."""
    rows: tl.constexpr = D if ALONG_TOKENS else T
    columns: tl.constexpr = T if ALONG_TOKENS else D
    size: tl.constexpr = columns * WIDTH // 8  # bytes of a row
    if ALONG_TOKENS:
        row, column = place_d, place_t
    else:
        row, column = place_t, place_d
    row_number = row.to(tl.int64) + block * rows
    byte = tl.load(codes + row_number * size + column % size).to(tl.int32)
    code = (byte >> (column // size * WIDTH)) & ((1 << WIDTH) - 1)
    group = row_number * GROUPS + column // (columns // GROUPS)
    scale = tl.load(scales + group).to(tl.float32)
    if POINTS:
        return tl.load(points + code) * scale
    return code.to(tl.float32) * scale + tl.load(leasts + group).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _decode(  # type: ignore[no-untyped-def]
    query, k_codes, k_scales, k_leasts, k_points, v_codes, v_scales, v_leasts, v_points,
    k_stride_b, k_stride_h, ks_stride_b, ks_stride_h, v_stride_b, v_stride_h, vs_stride_b, vs_stride_h,
    tops, masses, sums, heads, blocks, per_split,
    G: tl.constexpr, T: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr,
    K_GROUPS: tl.constexpr, V_GROUPS: tl.constexpr, K_TOKENS: tl.constexpr, V_TOKENS: tl.constexpr,
    K_POINTS: tl.constexpr, V_POINTS: tl.constexpr,
):  # fmt: skip
    row, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    b, h = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    g, t = tl.arange(0, G), tl.arange(0, T)
    d, dv = tl.arange(0, D), tl.arange(0, DV)
    q = tl.load(query + row.to(tl.int64) * G * D + g[:, None] * D + d[None, :])
    top = tl.full((G,), float("-inf"), tl.float32)
    mass = tl.zeros((G,), tl.float32)
    total = tl.zeros((G, DV), tl.float32)
    for block in range(split * per_split, tl.minimum((split + 1) * per_split, blocks)):
        keys = _load(
            k_codes + b * k_stride_b + h * k_stride_h, k_scales + b * ks_stride_b + h * ks_stride_h,
            k_leasts + b * ks_stride_b + h * ks_stride_h, k_points, block, t[:, None], d[None, :],
            T, D, K_WIDTH, K_GROUPS, K_TOKENS, K_POINTS,
        )  # fmt: skip
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(top - higher)
        values = _load(
            v_codes + b * v_stride_b + h * v_stride_h, v_scales + b * vs_stride_b + h * vs_stride_h,
            v_leasts + b * vs_stride_b + h * vs_stride_h, v_points, block, t[:, None], dv[None, :],
            T, DV, V_WIDTH, V_GROUPS, V_TOKENS, V_POINTS,
        )  # fmt: skip
        mass = mass * fade + tl.sum(weights, 1)
        total = total * fade[:, None] + tl.dot(weights, values, input_precision="ieee")
        top = higher
    out = (row.to(tl.int64) * splits + split) * G
    tl.store(tops + out + g, top)
    tl.store(masses + out + g, mass)
    tl.store(sums + (out + g[:, None]) * DV + dv[None, :], total)


def fits(query: torch.Tensor, view: LayerView, bias: torch.Tensor | None) -> bool:
    """Whether `attend` takes this: one query a row, no mask, grouped codes of 1, 2, 4 or 8 bits, powers of two."""
    if query.shape[2] != 1 or bias is not None or len(view.stores) != 1 or view.offset != view.dropped:
        return False
    group, sizes = view.stores[0][0], (view.block, query.shape[3], view.residual[1].shape[3])
    powers = all(size >= 16 and size & (size - 1) == 0 for size in sizes)
    coders = (group.keys, group.values)
    return (
        powers and group.heads is None and all(isinstance(c, GroupedCoder) and c.width in (1, 2, 4, 8) for c in coders)
    )


def attend(query: torch.Tensor, view: LayerView, scaling: float) -> torch.Tensor:
    """As reference.attend, without a mask."""
    batch, heads, _, size = query.shape
    kv_heads, value_size = view.residual[0].shape[1], view.residual[1].shape[3]
    groups = heads // kv_heads
    rows = (query.to(torch.float32) * scaling).reshape(batch, kv_heads, groups, size)
    group, fields = view.stores[0]
    keys, values = group.keys, group.values
    assert isinstance(keys, GroupedCoder) and isinstance(values, GroupedCoder)
    rotated = rows @ block_hadamard(size, rows.device) if keys.rotate else rows
    padded = max(triton.next_power_of_2(groups), 16)
    rotated = torch.nn.functional.pad(rotated, (0, 0, 0, padded - groups)).contiguous()
    per_split = max(-(-view.blocks * batch * kv_heads // _PROGRAMS), 1)
    splits = -(-view.blocks // per_split)
    tops, masses = (rows.new_empty((batch, kv_heads, splits, padded)) for _ in range(2))
    sums = rows.new_empty((batch, kv_heads, splits, padded, value_size))
    k, v = _operands(keys, "keys", fields), _operands(values, "values", fields)
    _decode[(batch * kv_heads, splits)](
        *(rotated, *k, *v),
        *(stride for x in (k, v) for field in x[:2] for stride in field.stride()[:2]),
        *(tops, masses, sums, kv_heads, view.blocks, per_split),
        G=padded, T=view.block, D=size, DV=value_size, K_WIDTH=keys.width, V_WIDTH=values.width,
        K_GROUPS=k[1].shape[-1], V_GROUPS=v[1].shape[-1],
        K_TOKENS=keys.along == "tokens", V_TOKENS=values.along == "tokens",
        K_POINTS=keys.points != "even", V_POINTS=values.points != "even",
    )  # fmt: skip
    coded = tops[..., :groups], masses[..., :groups], sums[..., :groups, :]
    if values.rotate:
        coded = *coded[:2], coded[2] @ block_hadamard(value_size, rows.device)
    return _join(rows, view, *coded).view(batch, heads, 1, value_size).to(query.dtype)


def _operands(coder: GroupedCoder, kind: str, fields: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    codes, scale = fields[f"{kind}.codes"], fields[f"{kind}.scale"]
    points = lloyd_max(coder.width).to(scale.device) if coder.points != "even" else scale
    return codes, scale, fields.get(f"{kind}.least", scale), points


def _join(
    rows: torch.Tensor, view: LayerView, tops: torch.Tensor, masses: torch.Tensor, sums: torch.Tensor
) -> torch.Tensor:
    """Splits [B, H, S, G(, D)] and the tokens in full precision, to outputs [B, H, G, D]."""
    exact = [torch.cat(pair, 2).to(torch.float32) for pair in zip(view.sinks, view.residual, strict=True)]
    scores = rows @ exact[0].transpose(-1, -2)
    top = torch.maximum(scores.amax(-1), tops.amax(2))
    weights, fades = (scores - top[..., None]).exp(), (tops - top[:, :, None]).exp()
    mass = weights.sum(-1) + (masses * fades).sum(2)
    return (weights @ exact[1] + (sums * fades[..., None]).sum(2)) / mass[..., None]
