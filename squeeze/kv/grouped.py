"""The coder of most policies: groups of values on a uniform grid or on Lloyd-Max points, with a scale per group.

A group lies along the tokens of one channel, as in KIVI's keys, or along the channels of one token.
"""

from dataclasses import dataclass
from math import gcd

import torch

from squeeze.kv.codes import lloyd_max, pack, unpack
from squeeze.kv.store import Fields
from squeeze.numerics.constants import constant_on
from squeeze.numerics.hadamard import block_hadamard

__all__ = ["GroupedCoder"]

_SCALE = torch.bfloat16


@dataclass(frozen=True)
class GroupedCoder:
    """A coder of groups of values with a bfloat16 scale and, on a uniform grid, a bfloat16 minimum per group.

    Args:
        width: Bits of a code.
        along: "tokens" or "channels", the direction of a group.
        group: The number of values of a group; 0 for all.
        rotate: Whether to multiply each token by a Hadamard matrix, which spreads outliers (QuaRot, TurboQuant).
        points: "even" for minimum + scale * code, or "normal" for scale * a Lloyd-Max point of a normal variable.
    """

    width: int
    along: str
    group: int = 0
    rotate: bool = False
    points: str = "even"

    def group_of(self, block: int, size: int) -> int:
        length = block if self.along == "tokens" else size
        return gcd(self.group, length) if self.group else length

    def bits(self, block: int, size: int) -> float:
        return self.width + (32 if self.points == "even" else 16) / self.group_of(block, size)

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        values = blocks.to(torch.float32)
        if self.rotate:
            values = values @ block_hadamard(values.shape[-1], values.device)
        if self.along == "tokens":
            values = values.transpose(-1, -2)
        group = self.group_of(blocks.shape[-2], blocks.shape[-1])
        values = values.unflatten(-1, (-1, group))  # [B, H, n, rows, groups, group]
        codes, fields = self._even(values) if self.points == "even" else self._normal(values)
        return {"codes": pack(codes.flatten(-2), self.width), **fields}

    def _even(self, values: torch.Tensor) -> tuple[torch.Tensor, Fields]:
        top = (1 << self.width) - 1
        least = values.amin(-1).to(_SCALE)
        below = least.to(torch.float32)
        scale = ((values.amax(-1) - below) / top).clamp(min=torch.finfo(torch.float32).tiny).to(_SCALE)
        steps = scale.to(torch.float32).clamp(min=1e-30)
        codes = ((values - below[..., None]) / steps[..., None]).round().clamp(0, top)
        return codes.to(torch.uint8), {"scale": scale, "least": least}

    def _normal(self, values: torch.Tensor) -> tuple[torch.Tensor, Fields]:
        points = constant_on(lloyd_max(self.width), values.device)
        length = values.norm(dim=-1, keepdim=True)
        unit = values * (values.shape[-1] ** 0.5 / length.clamp(min=1e-30))
        codes = torch.bucketize(unit, (points[1:] + points[:-1]) / 2)
        coded_length = points[codes].norm(dim=-1, keepdim=True).clamp(min=1e-30)
        return codes.to(torch.uint8), {"scale": (length / coded_length)[..., 0].to(_SCALE)}

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        scale = fields["scale"].to(torch.float32)[..., None]  # [B, H, n, rows, groups, 1]
        count = fields["codes"].shape[-1] * 8 // self.width  # values of a row, a multiple of 8
        codes: torch.Tensor = unpack(fields["codes"], self.width, count).unflatten(-1, (scale.shape[-2], -1))
        if self.points == "even":
            values = codes.to(torch.float32).mul_(scale).add_(fields["least"].to(torch.float32)[..., None])
        else:
            values = constant_on(lloyd_max(self.width), scale.device)[codes.int()].mul_(scale)
        values = values.flatten(-2)
        if self.along == "tokens":
            values = values.transpose(-1, -2)
        if self.rotate:
            values = values @ block_hadamard(values.shape[-1], values.device)
        return values.to(dtype)
