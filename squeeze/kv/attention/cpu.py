"""Decoding steps on the CPU, straight from packed codes.

Codes of grouped coders are unpacked row by row in registers. Two products with a coded matrix are enough: a weighted
sum of its rows, and a dot product with each of its rows. Scales and minimums are applied with the codes; rotations are
applied to the query and to the output.

Transform-coded tokens are read some thousands at a time. A key is R (B y + m): y are its coded channels, m the mean, R
the rotary embedding of its position. Keys are transformed back and rotated once for all query heads, by cosines and
sines that all heads and layers share. Values are not transformed back: their weighted sum is B (sum of w y) + m (sum of
w), so B is applied once. Everything else goes through tiles.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from squeeze.kv.attention import loops
from squeeze.kv.base import HeadGroup
from squeeze.kv.codes import CURVED, curve, lloyd_max
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.scores import PLAIN, Scores
from squeeze.kv.store import Fields
from squeeze.kv.transform import GROUP, TransformCoder, scales as transform_scales
from squeeze.kv.unpacking import tiles as channel_tiles
from squeeze.kv.view import LayerView
from squeeze.numerics.hadamard import block_hadamard

__all__ = ["attend", "fits"]

_TOKENS_AT_ONCE = 4096  # transform-coded tokens whose channels are in memory at once
Stores = list[tuple[HeadGroup, Fields]]


def fits(query: torch.Tensor, view: LayerView) -> bool:
    """Return whether `attend` takes this: one query a row, no gradient, known coders, and whole blocks."""
    known = (GroupedCoder, TransformCoder)
    stores = (*view.stores, *view.selected)
    all_known = all(isinstance(coder, known) for group, _ in stores for coder in (group.keys, group.values))
    uncut = view.is_coded and view.offset == view.dropped
    return query.shape[2] == 1 and not query.requires_grad and all_known and uncut


def attend(
    query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float, how: Scores = PLAIN
) -> torch.Tensor:
    """Attend as `tiles.reference_attend` does, for one query a row."""
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
    """Write the scores of rows [B, H, G, D] with the coded keys to out [B, H, G, tokens].

    The first key is at position `start`. Places after the last token of a head stay as they are.
    """
    for group, fields in stores:
        coder = group.keys
        if isinstance(coder, TransformCoder):
            for batch, head, member in _places(group.heads, rows):
                fields_here = _fields("keys", fields, batch, member)
                transformed_scores(coder, fields_here, rows[batch, head], start, out[batch, head])
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
    """Add weights [B, H, G, tokens] times the coded values to out [B, H, G, D]."""
    for group, fields in stores:
        coder = group.values
        if isinstance(coder, TransformCoder):
            for batch, head, member in _places(group.heads, weights):
                fields_here = _fields("values", fields, batch, member)
                transformed_outputs(coder, fields_here, weights[batch, head], out[batch, head])
            continue
        assert isinstance(coder, GroupedCoder)
        product = loops.add_rows if coder.along == "channels" else loops.add_dots
        for batch, head, member in _places(group.heads, weights):
            sums = out.new_zeros(out.shape[2:])
            numbers = _numbers(coder, "values", fields, batch, member)
            product(weights[batch, head].contiguous().numpy(), *numbers, sums.numpy())
            out[batch, head] += sums @ block_hadamard(sums.shape[-1]) if coder.rotate else sums


def _places(heads: tuple[int, ...] | None, rows: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return for each head of a group: its row of the batch, its number, and its place in the group's fields."""
    of_group = heads if heads is not None else range(rows.shape[1])
    return [(batch, head, place) for batch in range(rows.shape[0]) for place, head in enumerate(of_group)]


def _fields(kind: str, fields: dict[str, torch.Tensor], batch: int, head: int) -> dict[str, torch.Tensor]:
    """Return the codes and scales of one head, [blocks, ...] each."""
    return {name: fields[f"{kind}.{name}"][batch, head] for name in ("codes", "scale")}


def _numbers(coder: GroupedCoder, kind: str, fields: dict[str, torch.Tensor], batch: int, head: int) -> tuple[Any, ...]:
    """Return the arguments of a product in loops.py for one head: codes, width, scales, minimums and points."""
    codes, scale = (fields[f"{kind}.{name}"][batch, head] for name in ("codes", "scale"))
    even = coder.points == "even"
    minimum = fields[f"{kind}.least"][batch, head] if even else scale
    table = curve(coder.width) if coder.width <= CURVED else lloyd_max(coder.width)
    points = np.empty(0, np.float32) if even else table.numpy()
    shorts = (x.view(torch.uint16).numpy() for x in (scale, minimum))
    return (codes.numpy(), coder.width, *shorts, points)


def transformed_scores(
    coder: TransformCoder, fields: dict[str, torch.Tensor], rows: torch.Tensor, start: int, out: torch.Tensor
) -> None:
    """Write the scores of rows [G, D] with the transform-coded keys of one head to out [G, tokens].

    fields: codes and scales [blocks, T, ...]. start: position of the first key.
    """
    tokens, tables, mean = out.shape[1], None, coder.mean.numpy()
    if coder.frequencies is not None:
        tables = _cos_sin(coder.frequencies, start, -(-tokens // _TOKENS_AT_ONCE) * _TOKENS_AT_ONCE)
    keys = rows.new_empty((len(mean), min(tokens, _TOKENS_AT_ONCE)))
    numbers = keys.numpy()
    for first, channels in _tiles(coder, fields):
        here = keys[:, : channels.shape[1]]
        torch.mm(coder.back, channels, out=here)
        if tables is None:
            here += coder.mean[:, None]
        else:
            loops.rotate(numbers, channels.shape[1], mean, *tables, first)
        out[:, first : first + channels.shape[1]] = rows @ here


@lru_cache(maxsize=4)  # all heads and layers rotate by the same
def _cos_sin(frequencies: torch.Tensor, start: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines of rotary embeddings, [pairs, tokens] each."""
    angle = frequencies[:, None] * torch.arange(start, start + tokens, dtype=torch.float32)
    return angle.cos().numpy(), angle.sin().numpy()


def transformed_outputs(
    coder: TransformCoder, fields: dict[str, torch.Tensor], weights: torch.Tensor, out: torch.Tensor
) -> None:
    """Add weights [G, tokens] times the transform-coded values of one head to out [G, D]."""
    sums = weights.new_zeros((len(weights), coder.back.shape[1]))
    for first, channels in _tiles(coder, fields):
        sums.addmm_(weights[:, first : first + channels.shape[1]], channels.T)
    out += sums @ coder.back.T + weights.sum(1, keepdim=True) * coder.mean


def _tiles(coder: TransformCoder, fields: dict[str, torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the first token and the decoded channels [K, tokens] of each tile."""
    codes, scale = fields["codes"].flatten(0, 1), fields["scale"].flatten(0, 1)
    return channel_tiles(codes, scale, transform_scales(), coder.widths, GROUP, _TOKENS_AT_ONCE)
