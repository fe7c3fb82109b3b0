"""What `python -m bench gpu` measures of attention over a coded KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from bench.shared import gpu_rivals as rivals
from bench.shared.contest import Call, Case, Contender
from squeeze.kernels.kv_attention import decoded, kernel as attention, tiles
from squeeze.kv.kivi import KIVI
from squeeze.kv.layer import PackedLayer
from squeeze.kv.mask import additive_mask
from squeeze.kv.view import LayerView


@dataclass(frozen=True)
class Attention:
    """Queries [B, 4 H, Q, D] over a coded layer, the last of which sees all of it; scaling of scores; bytes that a
    decoded layer may take."""

    query: torch.Tensor
    view: LayerView
    scaling: float
    room: int

    @property
    def bias(self) -> torch.Tensor | None:
        return additive_mask(None, self.query.shape[2], self.view.length, True, self.query)


def _attention(bits: int, queries: int = 1) -> Case:
    def data(device: Any) -> Attention:
        batch, heads, tokens, size = (8, 8, 1 << 15, 128) if device.large else (1, 2, 96, 16)
        layer = PackedLayer(KIVI(bits=bits, group=64 if device.large else 16), 0)
        states = (torch.randn(batch, heads, tokens, size, device=device.where, dtype=device.dtype) for _ in range(2))
        layer.update(*states)
        query = torch.randn(batch, 4 * heads, queries, size, device=device.where, dtype=device.dtype)
        room = decoded.room(torch.device(device.where)) if device.large else 1 << 20
        return Attention(query, layer._view(), size**-0.5, room)

    def sdpa(data: Attention) -> Sequence[Call]:
        keys, values = data.view.dense()
        keys, values = keys.to(data.query.dtype).contiguous(), values.to(data.query.dtype).contiguous()
        mask = None if data.bias is None else data.bias.to(data.query.dtype)
        return [
            lambda: functional.scaled_dot_product_attention(
                data.query, keys, values, mask, scale=data.scaling, enable_gqa=True
            )
        ]

    def ours(data: Attention) -> Sequence[Call]:
        if queries > 1:
            bias = data.bias
            return [lambda: tiles.attend(data.query, data.view, bias, data.scaling)]
        return [lambda: attention.attend(data.query, data.view, data.scaling)]

    def by_torch(data: Attention) -> Sequence[Call]:
        bias = data.bias
        return [lambda: decoded.attend(data.query, data.view, bias, data.scaling, data.room)]

    def expected(data: Attention) -> torch.Tensor:
        return tiles.attend(data.query, data.view, data.bias, data.scaling)

    def flash(data: Attention) -> Sequence[Call]:
        return rivals.flash_attention(data.query, *data.view.dense(), data.scaling)

    contenders: tuple[Contender, ...] = (
        Contender("SDPA bf16", sdpa, tolerance=2e-2),
        Contender("squeeze", ours, tolerance=2e-2),
        Contender("decoded for SDPA", by_torch, tolerance=2e-2),
    )
    if queries == 1:
        contenders += (Contender("FlashAttention", flash, "flash_attn", 2e-2),)
    name = f"attention{f' of {queries} queries' * (queries > 1)} over 32,768 tokens of {bits} bits"
    return Case(name, data, expected, contenders)


CASES: tuple[Case, ...] = (*(_attention(bits) for bits in (4, 2, 8)), _attention(4, queries=16))
