"""Decoding steps on the CPU straight from packed codes: unpacked row by row in registers, never written as tensors.

For policies whose coders are grids; transform coding is transformed.py's. Two products with a coded matrix are all
it takes: a sum of its rows, and a scalar product with each of its rows. Scales and minimums are folded in beside the
codes, rotations into query and output. Everything else goes through tiles.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch

from squeeze.kernels.kv_attention import transformed
from squeeze.kv.grid import Grid, hadamard, lloyd_max
from squeeze.kv.transform import TransformCoder

if TYPE_CHECKING:
    from squeeze.kv.view import View

__all__ = ["attend", "fits"]

_FAST: Any = {"nogil": True, "cache": True, "fastmath": True}


def fits(query: torch.Tensor, view: View) -> bool:
    """Whether `attend` takes this: one query a row without a gradient, coders that it knows, no block cut."""
    known = (Grid, TransformCoder)
    grids = all(isinstance(coder, known) for part, _ in view.stores for coder in (part.keys, part.values))
    whole = view.blocks > 0 and view.offset == view.dropped
    return query.shape[2] == 1 and not query.requires_grad and grids and whole


def attend(query: torch.Tensor, view: View, bias: torch.Tensor | None, scaling: float) -> torch.Tensor:
    """As reference.attend, for one query a row."""
    batch, heads, _, size = query.shape
    kv_heads = view.recent[0].shape[1]
    rows = (query.to(torch.float32) * scaling).reshape(batch, kv_heads, heads // kv_heads, size)
    coded = slice(view.first[0].shape[2], view.first[0].shape[2] + view.blocks * view.block)
    scores = rows.new_empty((*rows.shape[:3], view.length))
    for place, (keys, _) in ((slice(0, coded.start), view.first), (slice(coded.stop, None), view.recent)):
        scores[..., place] = rows @ keys.to(torch.float32).transpose(-1, -2)
    _coded_scores(rows, view, scores[..., coded])
    if bias is not None:
        scores += bias.expand(batch, heads, 1, view.length).reshape(scores.shape)
    weights = scores.softmax(-1)
    output = weights[..., : coded.start] @ view.first[1].to(torch.float32)
    output += weights[..., coded.stop :] @ view.recent[1].to(torch.float32)
    _coded_outputs(weights[..., coded], view, output)
    return output.view(batch, heads, 1, -1).to(query.dtype)


def _coded_scores(rows: torch.Tensor, view: View, out: torch.Tensor) -> None:
    """rows [B, H, G, D] times the coded keys, into out [B, H, G, tokens]."""
    for part, fields in view.stores:
        coder = part.keys
        if isinstance(coder, TransformCoder):
            for batch, head, place in _places(part.heads, rows):
                fields_here = _fields("keys", fields, batch, place)
                transformed.scores(coder, fields_here, rows[batch, head], view.begin, out[batch, head])
            continue
        assert isinstance(coder, Grid)
        turned = rows @ hadamard(rows.shape[-1]) if coder.rotate else rows
        product = _sum_rows if coder.along == "tokens" else _dot_rows
        for batch, head, place in _places(part.heads, rows):
            numbers = _numbers(coder, "keys", fields, batch, place)
            scores = rows.new_empty(out.shape[2:])  # contiguous, as the products want their arrays
            product(turned[batch, head].contiguous().numpy(), *numbers, scores.numpy())
            out[batch, head] = scores


def _coded_outputs(weights: torch.Tensor, view: View, out: torch.Tensor) -> None:
    """weights [B, H, G, tokens] times the coded values, added to out [B, H, G, D]."""
    for part, fields in view.stores:
        coder = part.values
        if isinstance(coder, TransformCoder):
            for batch, head, place in _places(part.heads, weights):
                fields_here = _fields("values", fields, batch, place)
                transformed.outputs(coder, fields_here, weights[batch, head], out[batch, head])
            continue
        assert isinstance(coder, Grid)
        product = _add_rows if coder.along == "channels" else _add_dots
        for batch, head, place in _places(part.heads, weights):
            sums = out.new_zeros(out.shape[2:])
            numbers = _numbers(coder, "values", fields, batch, place)
            product(weights[batch, head].contiguous().numpy(), *numbers, sums.numpy())
            out[batch, head] += sums @ hadamard(sums.shape[-1]) if coder.rotate else sums


def _places(heads: tuple[int, ...] | None, rows: torch.Tensor) -> list[tuple[int, int, int]]:
    """Row of the batch, head of the layer, and place of that head in its part's fields."""
    here = heads if heads is not None else range(rows.shape[1])
    return [(batch, head, place) for batch in range(rows.shape[0]) for place, head in enumerate(here)]


def _fields(kind: str, fields: dict[str, torch.Tensor], batch: int, head: int) -> dict[str, torch.Tensor]:
    """Of one head: [blocks, ...] each."""
    return {name: fields[f"{kind}.{name}"][batch, head] for name in ("codes", "scale")}


def _numbers(coder: Grid, kind: str, fields: dict[str, torch.Tensor], batch: int, head: int) -> tuple[Any, ...]:
    """Of one head: codes [blocks, rows, bytes], bits, scales and minimums (bfloat16 as uint16), and points."""
    codes, scale = (fields[f"{kind}.{name}"][batch, head] for name in ("codes", "scale"))
    even = coder.points == "even"
    minimum = fields[f"{kind}.least"][batch, head] if even else scale
    points = np.empty(0, np.float32) if even else lloyd_max(coder.width).numpy()
    shorts = (x.view(torch.uint16).numpy() for x in (scale, minimum))
    return (codes.numpy(), coder.width, *shorts, points)


# Shifts are constants and nothing is sliced in the loops below, or LLVM would not vectorise them.


@numba.njit(**_FAST)
def _floats(words, block, out):
    """bfloat16 values of a block, uint16 [blocks, R, groups], to float32 [R, groups]."""
    bits = out.view(np.uint32)
    for r in range(out.shape[0]):
        for k in range(out.shape[1]):
            bits[r, k] = np.uint32(words[block, r, k]) << np.uint32(16)


@numba.njit(**_FAST)
def _look_up(codes, block, width, points, out):
    """As _unpack, for codes of one plane that stand for points."""
    size, mask = out.shape[1] * width // 8, np.uint32((1 << width) - 1)
    for r in range(out.shape[0]):
        for part in range(8 // width):
            shift, first = np.uint32(part * width), part * size
            for j in range(size):
                out[r, first + j] = points[np.uint32(codes[block, r, j]) >> shift & mask]


@numba.njit(**_FAST)
def _unpack(codes, block, width, points, out):
    """A block of packed codes (kv/packing.py) to what they stand for before their scale, float32 [R, C]."""
    rows, count = out.shape
    if points.shape[0] and width & (width - 1) == 0:
        _look_up(codes, block, width, points, out)
        return
    at, above = 0, width
    out[:] = 0
    for plane in (8, 4, 2, 1):
        if not width & plane:
            continue
        above -= plane
        size = count * plane // 8
        one = np.float32(1 << above)
        for r in range(rows):
            for j in range(size):
                byte = np.int32(codes[block, r, at + j])
                if plane == 8:
                    out[r, j] = np.float32(byte)
                elif plane == 4:
                    out[r, j] += np.float32(np.int32(byte & 15)) * one
                    out[r, size + j] += np.float32(np.int32(byte >> 4)) * one
                elif plane == 2:
                    out[r, j] += np.float32(np.int32(byte & 3)) * one
                    out[r, size + j] += np.float32(np.int32(byte >> 2 & 3)) * one
                    out[r, 2 * size + j] += np.float32(np.int32(byte >> 4 & 3)) * one
                    out[r, 3 * size + j] += np.float32(np.int32(byte >> 6)) * one
                else:
                    out[r, j] += np.float32(np.int32(byte & 1)) * one
                    out[r, size + j] += np.float32(np.int32(byte >> 1 & 1)) * one
                    out[r, 2 * size + j] += np.float32(np.int32(byte >> 2 & 1)) * one
                    out[r, 3 * size + j] += np.float32(np.int32(byte >> 3 & 1)) * one
                    out[r, 4 * size + j] += np.float32(np.int32(byte >> 4 & 1)) * one
                    out[r, 5 * size + j] += np.float32(np.int32(byte >> 5 & 1)) * one
                    out[r, 6 * size + j] += np.float32(np.int32(byte >> 6 & 1)) * one
                    out[r, 7 * size + j] += np.float32(np.int32(byte >> 7)) * one
        at += size
    if points.shape[0]:
        for r in range(rows):
            for j in range(count):
                out[r, j] = points[np.uint32(np.int32(out[r, j]))]


@numba.njit(**_FAST)
def _sum_rows(weights, codes, width, scales, least, points, out):
    """out[g, b * C + c] = sum over rows r of weights[g, r] * M[b, r, c], M as coded [blocks, R, C]."""
    blocks, rows, size = codes.shape
    count, groups = size * 8 // width, scales.shape[2]
    span = count // groups
    scale, low = np.empty((rows, groups), np.float32), np.empty((rows, groups), np.float32)
    matrix = np.empty((rows, count), np.float32)
    for b in range(blocks):
        _floats(scales, b, scale)
        _floats(least, b, low)
        _unpack(codes, b, width, points, matrix)
        for g in range(weights.shape[0]):
            for k in range(groups):
                first, constant = b * count + k * span, np.float32(0)
                if not points.shape[0]:
                    for r in range(rows):
                        constant += weights[g, r] * low[r, k]
                for c in range(span):
                    out[g, first + c] = constant
                for r in range(rows):
                    factor = weights[g, r] * scale[r, k]
                    for c in range(span):
                        out[g, first + c] += factor * matrix[r, k * span + c]


@numba.njit(**_FAST)
def _dot_rows(weights, codes, width, scales, least, points, out):
    """out[g, b * R + r] = sum over columns c of weights[g, c] * M[b, r, c]."""
    blocks, rows, size = codes.shape
    count, groups = size * 8 // width, scales.shape[2]
    span = count // groups
    scale, low = np.empty((rows, groups), np.float32), np.empty((rows, groups), np.float32)
    matrix = np.empty((rows, count), np.float32)
    for b in range(blocks):
        _floats(scales, b, scale)
        _floats(least, b, low)
        _unpack(codes, b, width, points, matrix)
        for g in range(weights.shape[0]):
            for r in range(rows):
                out[g, b * rows + r] = 0
            for k in range(groups):
                mass = np.float32(0)
                if not points.shape[0]:
                    for c in range(k * span, (k + 1) * span):
                        mass += weights[g, c]
                for r in range(rows):
                    dot = np.float32(0)
                    for c in range(k * span, (k + 1) * span):
                        dot += weights[g, c] * matrix[r, c]
                    out[g, b * rows + r] += scale[r, k] * dot + low[r, k] * mass


@numba.njit(**_FAST)
def _add_rows(weights, codes, width, scales, least, points, out):
    """out[g, c] += sum over blocks b and rows r of weights[g, b * R + r] * M[b, r, c]."""
    blocks, rows, size = codes.shape
    count, groups = size * 8 // width, scales.shape[2]
    span = count // groups
    scale, low = np.empty((rows, groups), np.float32), np.empty((rows, groups), np.float32)
    matrix, sums = np.empty((rows, count), np.float32), np.empty(span, np.float32)
    for b in range(blocks):
        _floats(scales, b, scale)
        _floats(least, b, low)
        _unpack(codes, b, width, points, matrix)
        for g in range(weights.shape[0]):
            for k in range(groups):
                constant = np.float32(0)
                for c in range(span):
                    sums[c] = 0
                for r in range(rows):
                    weight = weights[g, b * rows + r]
                    factor = weight * scale[r, k]
                    if not points.shape[0]:
                        constant += weight * low[r, k]
                    for c in range(span):
                        sums[c] += factor * matrix[r, k * span + c]
                for c in range(span):
                    out[g, k * span + c] += sums[c] + constant


@numba.njit(**_FAST)
def _add_dots(weights, codes, width, scales, least, points, out):
    """out[g, r] += sum over blocks b and columns c of weights[g, b * C + c] * M[b, r, c]."""
    blocks, rows, size = codes.shape
    count = size * 8 // width
    here = np.empty((weights.shape[0], rows), np.float32)
    for b in range(blocks):
        piece = np.ascontiguousarray(weights[:, b * count : (b + 1) * count])
        _dot_rows(piece, codes[b : b + 1], width, scales[b : b + 1], least[b : b + 1], points, here)
        out += here
