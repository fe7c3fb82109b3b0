"""Tokens that each head chose of a prompt, read by the Triton kernel: a launch for each head, over what it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from squeeze.kernels.kv_attention import kernel
from squeeze.kernels.kv_attention.kernel import Splits
from squeeze.kv.view import LayerView

__all__ = ["attend", "fits"]


def fits(query: torch.Tensor, view: LayerView, bias: torch.Tensor | None) -> bool:
    """Whether `attend` takes this: what kernel.fits says of each part."""
    return bool(view.selected) and all(kernel.fits(*part, bias) for _, part in _parts(query, view))


def attend(query: torch.Tensor, view: LayerView, scaling: float) -> torch.Tensor:
    """As kernel.attend, where heads hold different numbers of tokens."""
    parts = [(heads, kernel.coded(*part, scaling)) for heads, part in _parts(query, view)]
    splits = _side_by_side(parts, view.residual[0].shape[1])
    return kernel.finished(query, view, scaling, splits, view.selected[0][0])


def _parts(query: torch.Tensor, view: LayerView) -> list[tuple[slice, tuple[torch.Tensor, LayerView]]]:
    """What heads chose, and what all of them have: queries and views of heads, by which these are."""
    parts = [(slice(None), (query, replace(view, selected=[], observer=None)))] if view.blocks else []
    groups = query.shape[1] // view.residual[0].shape[1]
    for group, fields in view.selected:
        (head,) = group.heads or (0,)
        heads = slice(head, head + 1)
        sinks, residual = (tuple(x[:, heads] for x in states) for states in (view.sinks, view.residual))
        stores = [(replace(group, heads=None), fields)]
        blocks = next(iter(fields.values())).shape[2]
        mine = replace(view, sinks=sinks, residual=residual, stores=stores, blocks=blocks, selected=[], observer=None)
        parts.append((heads, (query[:, head * groups : (head + 1) * groups], mine)))
    return parts


def _side_by_side(parts: Sequence[tuple[slice, Splits]], heads: int) -> Splits:
    """Splits of all heads; those that a head lacks weigh nothing. What heads chose has the same places."""
    common = sum(part.tops.shape[2] for which, part in parts if which == slice(None))
    most = common + max((part.tops.shape[2] for which, part in parts if which != slice(None)), default=0)
    first = parts[0][1]
    shape = (first.tops.shape[0], heads, most, first.tops.shape[3])
    tops = first.tops.new_full(shape, -torch.inf)
    masses, sums = first.masses.new_zeros(shape), first.sums.new_zeros((*shape, first.sums.shape[4]))
    for which, part in parts:
        begin = 0 if which == slice(None) else common
        place = slice(begin, begin + part.tops.shape[2])
        for all_heads, of_part in zip((tops, masses, sums), part, strict=True):
            all_heads[:, which, place] = of_part
    return Splits(tops, masses, sums)
