"""VidKV: 1.5-bit keys and ternary values, both per channel.

Tao et al., "Plug-and-play 1.x-bit KV cache quantization for video large language models", 2025. The half of the key
channels that vary most within a block have 2 bits. The others have 1 bit in the frequency domain, where few
coefficients are large. Values are -1, 0 or 1 times a scale for each channel, 1.6 bits as stored.
"""

from dataclasses import dataclass
from functools import cache

import torch

from squeeze.errors import PolicyError
from squeeze.kv.base import HeadGroup, Policy
from squeeze.kv.codes import TERNARY_IN_A_BYTE, pack, pack_ternary, unpack, unpack_ternary
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.store import Fields
from squeeze.numerics.constants import constant_on

__all__ = ["MixedKeys", "TernaryValues", "VidKV"]

_SCALE = torch.bfloat16
_MOST_BLOCK = 1024  # tokens: the Hartley transform is a matrix of so many rows
_TWO_BITS = GroupedCoder(2, "channels")


@dataclass(frozen=True)
class MixedKeys:
    """A coder of keys: 2 bits for the half of the channels with the widest range, 1 bit after a Hartley transform for
    others.

    The Hartley transform replaces the Fourier transform: it is real, orthogonal and its own inverse.
    """

    def bits(self, block: int, size: int) -> float:
        return 1.5 + 32 / block + 1 / block  # mean and scale, or scale and minimum; and which channel is which

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        rows = blocks.to(torch.float32).transpose(-1, -2)  # [B, H, n, D, T]
        wide = (rows.amax(-1) - rows.amin(-1)).argsort(-1, descending=True)
        half = rows.shape[-2] // 2
        halves = wide[..., :half].sort(-1).values, wide[..., half:].sort(-1).values
        above, below = (torch.take_along_dim(rows, index[..., None], -2) for index in halves)
        mask = torch.zeros_like(wide, dtype=torch.uint8).scatter_(-1, halves[0], 1)
        mean = below.mean(-1, keepdim=True).to(_SCALE)
        waves = (below - mean.to(torch.float32)) @ constant_on(_hartley(rows.shape[-1]), rows.device)
        return {
            "which": pack(mask, 1),
            **{f"above.{name}": field for name, field in _TWO_BITS.encode(above, start).items()},
            "signs": pack((waves > 0).to(torch.uint8), 1),
            "scale": waves.abs().mean(-1).to(_SCALE),
            "mean": mean[..., 0],
        }

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        above = _TWO_BITS.decode({key: fields[f"above.{key}"] for key in ("codes", "scale", "least")}, start, dtype)
        block = fields["signs"].shape[-1] * 8
        signs = unpack(fields["signs"], 1, block).to(torch.float32).mul_(2).sub_(1)
        waves = signs * fields["scale"].to(torch.float32)[..., None]
        below = waves @ constant_on(_hartley(block), waves.device) + fields["mean"].to(torch.float32)[..., None]
        size = 2 * fields["mean"].shape[-1]
        mask = unpack(fields["which"], 1, size)
        order = mask.argsort(dim=-1, descending=True, stable=True).argsort(-1)  # the position of each channel
        rows = torch.cat([above.to(torch.float32), below], -2)
        return torch.take_along_dim(rows, order[..., None], -2).transpose(-1, -2).to(dtype)


@cache
def _hartley(size: int) -> torch.Tensor:
    angle = 2 * torch.pi / size * torch.outer(torch.arange(size), torch.arange(size)).double()
    matrix: torch.Tensor = (angle.cos() + angle.sin()) / size**0.5
    return matrix.float()


@dataclass(frozen=True)
class TernaryValues:
    """A coder of values: the mean of each channel of a block plus -1, 0 or 1 times a scale, five codes a byte.

    Zero covers up to 0.76 of the mean distance from the mean, near the best threshold for normal values.
    """

    def bits(self, block: int, size: int) -> float:
        return (8 * -(-block // TERNARY_IN_A_BYTE) + 32) / block

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        rows = blocks.to(torch.float32).transpose(-1, -2)
        mean = rows.mean(-1, keepdim=True).to(_SCALE)
        residual = rows - mean.to(torch.float32)
        far = residual.abs() > 0.76 * residual.abs().mean(-1, keepdim=True)
        scale = (residual.abs() * far).sum(-1) / far.sum(-1).clamp(min=1)
        codes = torch.where(far, residual.sign(), 0).add(1).to(torch.uint8)
        return {"codes": pack_ternary(codes), "scale": scale.to(_SCALE), "mean": mean[..., 0], **_length(rows)}

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        count = fields["length"].shape[-1]
        codes = unpack_ternary(fields["codes"], count).to(torch.float32).sub_(1)
        rows = codes * fields["scale"].to(torch.float32)[..., None] + fields["mean"].to(torch.float32)[..., None]
        return rows.transpose(-1, -2).to(dtype)


def _length(rows: torch.Tensor) -> Fields:
    """Return a field without bytes whose shape records the number of tokens, which packed codes do not."""
    return {"length": rows.new_empty((*rows.shape[:3], 0, rows.shape[-1]), dtype=torch.uint8)}


@dataclass(frozen=True)
class VidKV(Policy):
    """A policy that codes keys in 1.5 and values in 1.6 bits, plus scales.

    Args:
        sinks: The number of first tokens in full precision.
        window: The number of latest tokens in full precision.
        block: The number of tokens that are coded at a time, a multiple of 8.
    """

    sinks: int = 4
    window: int = 64
    block: int = 64

    def __post_init__(self) -> None:
        if self.block % 8 or not 8 <= self.block <= _MOST_BLOCK:
            raise PolicyError(f"block must be a multiple of 8 up to {_MOST_BLOCK}, got {self.block}")

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        return [HeadGroup(MixedKeys(), TernaryValues())]
