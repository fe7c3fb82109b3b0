"""Decoding steps on the CPU straight from packed codes: unpacked row by row in registers, never written as tensors.

For grouped coders; transform coding is transformed.py's. Two products with a coded matrix are all
it takes: a sum of its rows, and a scalar product with each of its rows. Scales and minimums are folded in beside the
codes, rotations into query and output. Everything else goes through tiles.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from squeeze.kv.attention import loops, transformed
from squeeze.kv.base import HeadGroup
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.lloyd_max import CURVED, curve, lloyd_max
from squeeze.kv.scores import PLAIN, Scores
from squeeze.kv.store import Fields
from squeeze.kv.transform import TransformCoder
from squeeze.kv.view import LayerView
from squeeze.numerics.hadamard import block_hadamard

__all__ = ["attend", "fits"]

Stores = list[tuple[HeadGroup, Fields]]


def fits(query: torch.Tensor, view: LayerView) -> bool:
    """Whether `attend` takes this: one query a row without a gradient, coders that it knows, no block cut."""
    known = (GroupedCoder, TransformCoder)
    stores = (*view.stores, *view.selected)
    all_known = all(isinstance(coder, known) for group, _ in stores for coder in (group.keys, group.values))
    uncut = view.is_coded and view.offset == view.dropped
    return query.shape[2] == 1 and not query.requires_grad and all_known and uncut


def attend(
    query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float, how: Scores = PLAIN
) -> torch.Tensor:
    """As reference.attend, for one query a row."""
    batch, heads, _, size = query.shape
    kv_heads = view.residual[0].shape[1]
    rows = (query.to(torch.float32) * scaling).reshape(batch, kv_heads, heads // kv_heads, size)
    sinks = view.sinks[0].shape[2]
    selected = slice(sinks, sinks + view.selected_tokens)  # of which heads may have fewer
    coded = slice(selected.stop, selected.stop + view.blocks * view.block)
    scores = rows.new_empty((*rows.shape[:3], view.length))
    for place, (keys, _) in ((slice(0, sinks), view.sinks), (slice(coded.stop, None), view.residual)):
        scores[..., place] = rows @ keys.to(torch.float32).transpose(-1, -2)
    scores[..., selected] = -torch.inf
    _coded_scores(rows, view.selected, view.first, view.selected_block, scores[..., selected])
    _coded_scores(rows, view.stores, view.begin, view.block, scores[..., coded])
    scores = how.capped(scores)
    if view.absent is not None and how.softcap is not None:
        scores.masked_fill_(view.absent[:, None], -torch.inf)
    if bias is not None:
        scores += bias.expand(batch, heads, 1, view.length).reshape(scores.shape)
    weights = how.weights(scores)
    output = weights[..., :sinks] @ view.sinks[1].to(torch.float32)
    output += weights[..., coded.stop :] @ view.residual[1].to(torch.float32)
    _coded_outputs(weights[..., selected], view.selected, output)
    _coded_outputs(weights[..., coded], view.stores, output)
    return output.view(batch, heads, 1, -1).to(query.dtype)


def _coded_scores(rows: torch.Tensor, stores: Stores, start: int, block: int, out: torch.Tensor) -> None:
    """rows [B, H, G, D] times the coded keys, from position `start`, into the first places of out [B, H, G, tokens]
    that a head has tokens for."""
    for group, fields in stores:
        coder = group.keys
        if isinstance(coder, TransformCoder):
            for batch, head, member in _places(group.heads, rows):
                fields_here = _fields("keys", fields, batch, member)
                transformed.scores(coder, fields_here, rows[batch, head], start, out[batch, head])
            continue
        assert isinstance(coder, GroupedCoder)
        rotated = rows @ block_hadamard(rows.shape[-1]) if coder.rotate else rows
        product = loops.sum_rows if coder.along == "tokens" else loops.dot_rows
        tokens = fields["keys.codes"].shape[2] * block
        for batch, head, member in _places(group.heads, rows):
            numbers = _numbers(coder, "keys", fields, batch, member)
            scores = rows.new_empty((out.shape[2], tokens))  # contiguous, as the products want their arrays
            product(rotated[batch, head].contiguous().numpy(), *numbers, scores.numpy())
            out[batch, head, :, :tokens] = scores


def _coded_outputs(weights: torch.Tensor, stores: Stores, out: torch.Tensor) -> None:
    """weights [B, H, G, tokens] times the coded values, added to out [B, H, G, D]."""
    for group, fields in stores:
        coder = group.values
        if isinstance(coder, TransformCoder):
            for batch, head, member in _places(group.heads, weights):
                fields_here = _fields("values", fields, batch, member)
                transformed.outputs(coder, fields_here, weights[batch, head], out[batch, head])
            continue
        assert isinstance(coder, GroupedCoder)
        product = loops.add_rows if coder.along == "channels" else loops.add_dots
        for batch, head, member in _places(group.heads, weights):
            sums = out.new_zeros(out.shape[2:])
            numbers = _numbers(coder, "values", fields, batch, member)
            product(weights[batch, head].contiguous().numpy(), *numbers, sums.numpy())
            out[batch, head] += sums @ block_hadamard(sums.shape[-1]) if coder.rotate else sums


def _places(heads: tuple[int, ...] | None, rows: torch.Tensor) -> list[tuple[int, int, int]]:
    """Row of the batch, head of the layer, and place of that head in its group's fields."""
    of_group = heads if heads is not None else range(rows.shape[1])
    return [(batch, head, place) for batch in range(rows.shape[0]) for place, head in enumerate(of_group)]


def _fields(kind: str, fields: dict[str, torch.Tensor], batch: int, head: int) -> dict[str, torch.Tensor]:
    """Of one head: [blocks, ...] each."""
    return {name: fields[f"{kind}.{name}"][batch, head] for name in ("codes", "scale")}


def _numbers(coder: GroupedCoder, kind: str, fields: dict[str, torch.Tensor], batch: int, head: int) -> tuple[Any, ...]:
    """Of one head: codes [blocks, rows, bytes], bits, scales and minimums (bfloat16 as uint16), and points
    or their curve."""
    codes, scale = (fields[f"{kind}.{name}"][batch, head] for name in ("codes", "scale"))
    even = coder.points == "even"
    minimum = fields[f"{kind}.least"][batch, head] if even else scale
    table = curve(coder.width) if coder.width <= CURVED else lloyd_max(coder.width)
    points = np.empty(0, np.float32) if even else table.numpy()
    shorts = (x.view(torch.uint16).numpy() for x in (scale, minimum))
    return (codes.numpy(), coder.width, *shorts, points)
