"""Attention over a coded layer on a GPU by torch's scaled_dot_product_attention: any policy, any queries.

Keys and values are decoded into scratch in the dtype of the query, by a kernel (expand.py) or by their coders: all of
them, or some rows of the batch or some heads at a time where all have no room. Query heads of a KV head are queries of
one head, so that no head is repeated. Only torch's fused kernels are asked for: they write no scores to memory, and
cuDNN would plan each length anew.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from squeeze.kv.view import LayerView

__all__ = ["attend", "fits", "room"]

_SHARE = 64  # of a GPU's memory scratch takes one part in so many at most
_DECODING = 32  # bytes that a value takes while it is decoded
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


def room(device: torch.device) -> int:
    """Bytes that scratch may take on a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory // _SHARE)


def fits(query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, nbytes: int) -> bool:
    """Whether one KV head of one row has room in so many bytes; all heads where these hold different numbers of
    tokens."""
    return bool(_together(query, view, bias, nbytes)[1])


def attend(
    query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float, nbytes: int
) -> torch.Tensor:
    """As reference.attend, for what `fits`; without a gradient. Decoded keys and values are rounded to the dtype of the
    query. What no token is visible to is finite, and otherwise undefined."""
    batch, heads, queries, _ = query.shape
    kv_heads, value_size = view.residual[0].shape[1], view.residual[1].shape[3]
    groups = heads // kv_heads
    out = query.new_empty((batch, heads, queries, value_size))
    rows_together, heads_together = _together(query, view, bias, nbytes)
    for row in range(0, batch, rows_together):
        rows = slice(row, row + rows_together)
        for head in range(0, kv_heads, heads_together):
            mine = slice(head * groups, (head + heads_together) * groups)  # of the query's heads
            part = view.part(rows, slice(head, head + heads_together))
            mask = bias
            if mask is not None:
                mask = mask[rows if len(mask) > 1 else slice(None), mine if mask.shape[1] > 1 else slice(None)]
            out[rows, mine] = _attend(query[rows, mine], part, mask, scaling, nbytes)
    return out


def _together(query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, nbytes: int) -> tuple[int, int]:
    """Rows of the batch and KV heads that are in scratch at once: rows of all heads, or some heads of one row; no head
    where there is room for none. Half of it is for what decoding leaves on its way."""
    kv_heads, half = view.residual[0].shape[1], nbytes // 2
    head = view.length * (query.shape[3] + view.residual[1].shape[3]) * query.itemsize
    mask, block = _mask_nbytes(query, view, bias), _block_nbytes(view)
    if rows := min(half // (kv_heads * head + mask), half // (kv_heads * block), len(query)):
        return rows, kv_heads
    return 1, 0 if view.selected else max(min((half - mask) // head, half // block), 0)


def _block_nbytes(view: LayerView) -> int:
    """That a block of one head takes while it is decoded."""
    return _DECODING * max(view.block, view.selected_block) * max(x.shape[3] for x in view.residual)


def _mask_nbytes(query: torch.Tensor, view: LayerView, bias: torch.Tensor | None) -> int:
    """Of one row: as it is given, rounded, of all heads, and padded as torch pads it."""
    if bias is None and not view.selected:
        return 0
    kv_heads = view.residual[0].shape[1]
    heads = kv_heads if view.selected or (bias is not None and bias.shape[1] > 1) else 1
    rows = 1 if bias is None else query.shape[1] // kv_heads * query.shape[2]
    return 4 * heads * rows * view.length * query.itemsize


def _attend(
    query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float, nbytes: int
) -> torch.Tensor:
    """All of it at once, decoded some blocks at a time."""
    batch, heads, queries, size = query.shape
    kv_heads, value_size = view.residual[0].shape[1], view.residual[1].shape[3]
    keys, values = (query.new_empty((batch, kv_heads, view.length, width)) for width in (size, value_size))
    expand = _kernel(query)
    if expand is not None and expand.fits(view):
        expand.decode(view, keys, values)
    else:
        _decode(view, keys, values, nbytes // 2 // (batch * kv_heads * _block_nbytes(view)))
    rows, mask = query.reshape(batch, kv_heads, -1, size), _mask(query, view, bias)
    with sdpa_kernel(_BACKENDS):
        out = scaled_dot_product_attention(rows, keys, values, mask, scale=scaling)
    return out.reshape(batch, heads, queries, value_size)


def _kernel(query: torch.Tensor) -> ModuleType | None:
    """What expands codes, where there is Triton for it."""
    if query.device.type != "cuda" or find_spec("triton") is None:
        return None
    return import_module("squeeze.kernels.kv_attention.expand")


def _decode(view: LayerView, keys: torch.Tensor, values: torch.Tensor, blocks: int) -> None:
    """All tokens into keys and values [B, H, tokens, D], some blocks at a time."""
    first = 0
    for some_keys, some_values in view.pieces(blocks, keys.dtype):
        place = slice(first, first + some_keys.shape[2])
        keys[:, :, place], values[:, :, place] = some_keys, some_values
        first = place.stop


def _mask(query: torch.Tensor, view: LayerView, bias: torch.Tensor | None) -> torch.Tensor | None:
    """What is added to scores [B, H, groups * Q, tokens], in the dtype of the query."""
    heads, queries, kv_heads = *query.shape[1:3], view.residual[0].shape[1]
    least, mask = torch.finfo(query.dtype).min / 2, None  # finite times log2 e, too, which torch's kernels multiply by
    if bias is not None:
        mask = bias.to(query.dtype).clamp(min=least)
        repeated = heads if mask.shape[1] > 1 else heads // kv_heads
        mask = mask.expand(-1, repeated, queries, -1).reshape(len(mask), -1, heads // kv_heads * queries, view.length)
    if (absent := view.absent) is not None:
        mask = query.new_zeros(()) if mask is None else mask
        mask = torch.where(absent[None, :, None], least, mask)
    return mask
