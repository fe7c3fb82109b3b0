"""The network of squeeze/lm/llama.py in float32 torch: the same dequantised weights, window and first positions."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from squeeze.lm.arrays import BLOCK
from squeeze.lm.weights import Matrix, Weights
from squeeze.numerics.int8 import unpack
from squeeze.numerics.rotation import block_of, rotate

CHUNK = 256  # positions at a time


def dequantised(matrix: Matrix) -> torch.Tensor:
    values = unpack(np.asarray(matrix.values), matrix.outputs, matrix.inputs).astype(np.float32)
    return torch.from_numpy(values * np.asarray(matrix.scales)[:, None])


def optional(values: np.ndarray | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(np.array(values))


class Reference:
    """One lane of float32 positions; `window` as in squeeze.lm.llama."""

    def __init__(self, weights: Weights, window: int):
        self.config, self.window, self.position = weights.config, window, 0
        embedding = np.asarray(weights.embedding).astype(np.float32)
        self.embedding = torch.from_numpy(embedding * np.asarray(weights.embedding_scales)[:, None])
        self.head = dequantised(weights.head)
        self.layers = [
            {
                **{name: dequantised(getattr(layer, name)) for name in ("qkv", "output", "gate_up", "down")},
                **{
                    name: optional(getattr(layer, name))
                    for name in ("query_norm", "key_norm", "qkv_bias", "output_bias")
                },
            }
            for layer in weights.layers
        ]
        c = self.config
        empty = torch.zeros(0, c.kv_heads, c.head_size)
        self.first = [(empty, empty)] * c.layers  # keys and values of the first block
        self.latest = [(empty, empty)] * c.layers  # of the positions before this chunk

    @torch.inference_mode()
    def forward(self, tokens: np.ndarray) -> torch.Tensor:
        """Log probabilities float32 [n, leaves] after each of at most CHUNK tokens."""
        c, n = self.config, tokens.size
        at = torch.arange(self.position, self.position + n)
        far = at.clamp(max=self.window + BLOCK - 1)  # the distance at which the first block is seen
        x = self.embedding[torch.from_numpy(tokens)]
        for i, layer in enumerate(self.layers):
            qkv = F.linear(self._norm(x), layer["qkv"], layer["qkv_bias"])
            q, k, v = qkv.split([c.heads * c.head_size, *[c.kv_heads * c.head_size] * 2], dim=1)
            q, k, v = (part.view(n, -1, c.head_size) for part in (q, k, v))
            if layer["query_norm"] is not None:
                q = self._norm(q, layer["query_norm"])
            if layer["key_norm"] is not None:
                k = self._norm(k, layer["key_norm"])
            attended = self._attend(i, self._turned(q, at), self._turned(q, far), self._turned(k, at), v, at)
            x = x + F.linear(attended, layer["output"], layer["output_bias"])
            gate, up = F.linear(self._norm(x), layer["gate_up"]).chunk(2, dim=1)
            gated = rotate((F.silu(gate) * up).numpy(), block_of(c.feed_forward))
            x = x + F.linear(torch.from_numpy(gated), layer["down"])
        self.position += n
        return F.log_softmax(F.linear(self._norm(x), self.head), dim=1)

    def _attend(
        self, i: int, near: torch.Tensor, far: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor
    ) -> torch.Tensor:
        c, n = self.config, at.numel()
        keys, values = (torch.cat([old, new]) for old, new in zip(self.latest[i], (k, v), strict=True))
        if self.first[i][0].shape[0] < BLOCK:
            assert self.position == 0 and n >= BLOCK
            self.first[i] = (k[:BLOCK], v[:BLOCK])
        self.latest[i] = (keys[-self.window - BLOCK :], values[-self.window - BLOCK :])
        places = torch.arange(self.position + n - keys.shape[0], self.position + n)
        begin = (at // BLOCK - self.window // BLOCK + 1).clamp(min=1) * BLOCK
        seen = (places >= begin[:, None]) & (places <= at[:, None])
        seen_first = torch.arange(BLOCK) <= at[:, None]
        groups = c.heads // c.kv_heads

        def scores(q: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            product = torch.einsum("nhd,phd->hnp", q, keys.repeat_interleave(groups, dim=1))
            return (product / math.sqrt(c.head_size)).masked_fill(~seen, -math.inf)

        both = [scores(far, self.first[i][0], seen_first), scores(near, keys, seen)]
        weights = torch.cat(both, dim=2).softmax(dim=2)
        values = torch.cat([self.first[i][1], values]).repeat_interleave(groups, dim=1)
        return torch.einsum("hnp,phd->nhd", weights, values).reshape(n, -1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.config.epsilon)
        return normed if weight is None else normed * weight

    def _turned(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Rotary embedding of [n, heads, head_size]; dimension i turns with dimension i + head_size / 2."""
        angles = at.double()[:, None] * torch.tensor(self.config.frequencies, dtype=torch.float64)
        cosine, sine = (self.config.attention_factor * f(angles).float()[:, None] for f in (torch.cos, torch.sin))
        low, high = x.chunk(2, dim=2)
        return torch.cat([low * cosine - high * sine, low * sine + high * cosine], dim=2)
