"""What `python -m bench gpu` measures of attention over a coded KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from bench.shared import gpu_rivals as rivals
from bench.shared.contest import Call, Case, Contender
from squeeze.kernels.kv_attention import kernel as attention, tiles
from squeeze.kv.kivi import KIVI
from squeeze.kv.layer import PackedLayer
from squeeze.kv.view import LayerView


@dataclass(frozen=True)
class Attention:
    """A query [B, 4 H, 1, D] over a coded layer; scaling of scores."""

    query: torch.Tensor
    view: LayerView
    scaling: float


def _attention(bits: int) -> Case:
    def data(device: Any) -> Attention:
        batch, heads, tokens, size = (8, 8, 1 << 15, 128) if device.large else (1, 2, 96, 16)
        layer = PackedLayer(KIVI(bits=bits, group=64 if device.large else 16), 0)
        states = (torch.randn(batch, heads, tokens, size, device=device.where, dtype=device.dtype) for _ in range(2))
        layer.update(*states)
        query = torch.randn(batch, 4 * heads, 1, size, device=device.where, dtype=device.dtype)
        return Attention(query, layer._view(), size**-0.5)

    def sdpa(data: Attention) -> Sequence[Call]:
        keys, values = data.view.dense()
        keys, values = keys.to(data.query.dtype).contiguous(), values.to(data.query.dtype).contiguous()
        return [
            lambda: functional.scaled_dot_product_attention(
                data.query, keys, values, scale=data.scaling, enable_gqa=True
            )
        ]

    def ours(data: Attention) -> Sequence[Call]:
        return [lambda: attention.attend(data.query, data.view, data.scaling)]

    def expected(data: Attention) -> torch.Tensor:
        return tiles.attend(data.query, data.view, None, data.scaling)

    def flash(data: Attention) -> Sequence[Call]:
        return rivals.flash_attention(data.query, *data.view.dense(), data.scaling)

    contenders = (
        Contender("SDPA bf16", sdpa, tolerance=2e-2),
        Contender("squeeze", ours, tolerance=2e-2),
        Contender("FlashAttention", flash, "flash_attn", 2e-2),
    )
    return Case(f"attention over 32,768 tokens of {bits} bits", data, expected, contenders)


CASES: tuple[Case, ...] = tuple(_attention(bits) for bits in (4, 2, 8))
