"""Small language models of other architectures, to compare with `byte_network` at equal multiplications per byte.

All consist of blocks with a mixer over time and a feed-forward network, each with a norm and a residual connection.
They differ in the mixer: minGRU (Feng et al. 2024, arXiv:2410.01201), RG-LRU (De et al. 2024, arXiv:2402.19427), or
sliding-window attention with rotary positions, as in Llama. `Recurrence` is the package's. Symbols are bytes or tokens.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from squeeze.kernels.recurrence import scan
from squeeze.recipes.train.byte_network import TAPS, Block, State

_HEAD = 32  # values of a head of attention
_GROUPS = 4  # diagonal blocks of the gates of an RG-LRU
_SHARPNESS = 8.0  # of its decay, in the paper


class MinGRU(nn.Module):
    """A mixer with h[t] = (1 - z) * h[t - 1] + z * v, whose z and v depend on the input only."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.into, self.out = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        keep, value = self.into(x).float().chunk(2, -1)
        decay = torch.sigmoid(keep)
        states = scan(decay, (1 - decay) * value, state[0])
        return self.out(states), [states[:, -1]]

    def start(self, batch: int) -> State:
        return [torch.zeros(batch, self.width)]


class RGLRU(nn.Module):
    """A mixer with h[t] = a * h[t - 1] + sqrt(1 - a^2) * i * v after a convolution, gated by a second branch."""

    def __init__(self, width: int):
        super().__init__()
        self.width, group = width, width // _GROUPS
        self.into, self.out = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width, bias=False)
        self.taps = nn.Parameter(torch.randn(TAPS, width) / TAPS)
        self.gates = nn.Parameter(torch.randn(_GROUPS, group, 2 * group) / group**0.5)
        decays = torch.linspace(0.9, 0.999, width)
        self.rate = nn.Parameter(torch.log(torch.expm1(-torch.log(decays) / _SHARPNESS)))  # softplus gives the decay

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        value, branch = self.into(x).float().chunk(2, -1)
        past, time = torch.cat([state[0], value], 1), x.shape[1]
        mixed = sum((past[:, k : k + time] * self.taps[k] for k in range(TAPS)), torch.zeros_like(value))
        grouped = mixed.unflatten(-1, (_GROUPS, -1))
        gates = torch.einsum("btgi,gij->btgj", grouped, self.gates)
        forget, enter = (torch.sigmoid(part.flatten(-2)) for part in gates.chunk(2, -1))
        power = -_SHARPNESS * functional.softplus(self.rate) * forget
        decay, left = torch.exp(power), torch.sqrt(-torch.expm1(2 * power) + 1e-6)
        states = scan(decay, left * enter * mixed, state[1])
        return self.out(states * functional.gelu(branch)), [past[:, -(TAPS - 1) :], states[:, -1]]

    def start(self, batch: int) -> State:
        return [torch.zeros(batch, TAPS - 1, self.width), torch.zeros(batch, self.width)]


class Attention(nn.Module):
    """Attention over the latest `window` symbols, the present one included. The state has their keys and values."""

    def __init__(self, width: int, window: int):
        super().__init__()
        self.width, self.window = width, window
        self.into, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        query, key, value = self.into(x).chunk(3, -1)
        keys, values = torch.cat([state[0], key], 1), torch.cat([state[1], value], 1)
        known = torch.cat([state[2], torch.ones(x.shape[:2])], 1)
        places, before = torch.arange(keys.shape[1]), self.window - 1
        distance = places[before:, None] - places
        seen = (distance >= 0) & (distance <= before) & (known[:, None] > 0)
        heads = _turned(query, places[before:]), _turned(keys, places), _heads(values)
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=seen[:, None])
        after = [part[:, x.shape[1] :] for part in (keys, values, known)]
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out, after

    def start(self, batch: int) -> State:
        before = self.window - 1
        nothing = torch.zeros(batch, before, self.width)
        return [nothing, nothing, torch.zeros(batch, before)]


def _heads(x: Tensor) -> Tensor:
    heads: Tensor = x.unflatten(-1, (-1, _HEAD))
    return heads.transpose(1, 2)


def _turned(x: Tensor, places: Tensor) -> Tensor:
    """Apply rotary positions to heads (Su et al. 2021, arXiv:2104.09864)."""
    half = _HEAD // 2
    angles = places[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    first, second = _heads(x).chunk(2, -1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


class MixingBlock(nn.Module):
    """A mixer followed by a feed-forward network."""

    def __init__(self, width: int, feed_forward: int, mixer: nn.Module):
        super().__init__()
        self.norm, self.mixer = nn.RMSNorm(width), mixer
        self.feed_forward_norm = nn.RMSNorm(width)
        self.gate_up = nn.Linear(width, 2 * feed_forward, bias=False)
        self.down = nn.Linear(feed_forward, width, bias=False)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, state = self.mixer(self.norm(x), state)
        x = x + mixed
        inner, up = self.gate_up(self.feed_forward_norm(x)).chunk(2, -1)
        return x + self.down(functional.silu(inner) * up), state

    def start(self, batch: int) -> State:
        return cast(State, self.mixer.start(batch))  # type: ignore[operator]


class Mixing(nn.Module):
    """A model of blocks of one kind over symbols, which is called like `byte_network.Flat`."""

    def __init__(self, symbols: int, width: int, layers: int, block: Callable[[int], nn.Module]):
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList(block(width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, symbols, bias=False)
        for name, weight in self.named_parameters():
            if name.endswith("weight") and weight.ndim == 2:
                scale = weight.shape[1] ** -0.5
                small = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=scale / (2 * layers) ** 0.5 if small else scale)
        nn.init.normal_(self.embedding.weight, std=1.0)

    def forward(self, data: Tensor, state: State) -> tuple[Tensor, State]:
        x, after, taken = self.embedding(data), cast(State, []), 0
        for block in self.blocks:
            size = len(block.start(1))  # type: ignore[operator]
            x, new = block(x, state[taken : taken + size])
            after, taken = after + new, taken + size
        return self.head(self.norm(x)).float(), after

    def start(self, batch: int) -> State:
        return [part for block in self.blocks for part in block.start(batch)]  # type: ignore[operator]

    def products(self) -> int:
        """Count the multiplications per symbol: matrices, convolutions, and what attention reads."""
        weights = sum(weight.numel() for weight in self.parameters() if weight.ndim > 1) - self.embedding.weight.numel()
        attention = [part for part in self.modules() if isinstance(part, Attention)]
        return weights + sum(2 * part.width * part.window for part in attention)


def gated(feed_forward: int) -> Callable[[int], nn.Module]:
    """Return a function that makes the package's block for a width."""
    return lambda width: Block(width, feed_forward, 0)


def min_gru(feed_forward: int) -> Callable[[int], nn.Module]:
    return lambda width: MixingBlock(width, feed_forward, MinGRU(width))


def rg_lru(feed_forward: int) -> Callable[[int], nn.Module]:
    return lambda width: MixingBlock(width, feed_forward, RGLRU(width))


def llama(feed_forward: int, window: int) -> Callable[[int], nn.Module]:
    return lambda width: MixingBlock(width, feed_forward, Attention(width, window))
