"""Transform coding: each head's keys and values in the basis that calibration found, more bits where loss is at stake.

With C the covariance of a head's states and F = L L^T the mean of (dLoss/dstate)(dLoss/dstate)^T, an error e costs
e^T F e / 2 to second order. In y = U^T L^T (x - mean), where U diagonalises L^T C L, that cost is the plain squared
error and channels are uncorrelated, so bits go where they lower the sum of errors most, over all heads and layers
(reverse water-filling). Channels left without bits are dropped: low rank is the special case. Each token has a scale
of 8 bits, the best of several, so that no outlier is cut off. Keys are coded as before their rotary embedding.

Sources: transform coding (Huang and Schultheiss 1963; Goyal 2001); KVQuant (Hooper et al. 2024: keys before RoPE,
Fisher information); CSKV (Wang et al. 2024: shrunken channels beside a full-precision window).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from squeeze.kv import packing
from squeeze.kv.base import Part
from squeeze.kv.grid import lloyd_max
from squeeze.kv.rope import turn
from squeeze.kv.store import Fields

__all__ = ["GROUP", "MOST_BITS", "Transform", "TransformCoder"]

GROUP = 8  # channels that have equal bits
MOST_BITS = 6  # of a channel
_OCTAVE = 4  # scales between one power of two and the next
_BIAS = 128  # code of the scale 1
_TRIED = range(-2, 13)  # scales tried around the root mean square of a token


@dataclass(frozen=True, eq=False)
class TransformCoder:
    """Of one head. widths: bits of each group of 8 channels, none fewer than the next; channels after the last group
    are dropped. into [K, D] and back [D, K]: x to y and y to x, K = 8 * len(widths), y of unit variance. mean: [D].
    weights: [K], what a unit of squared error costs. frequencies: of the rotary embedding to undo, or None.
    """

    widths: tuple[int, ...]
    into: torch.Tensor
    back: torch.Tensor
    mean: torch.Tensor
    weights: torch.Tensor
    frequencies: torch.Tensor | None = None

    def bits(self, block: int, size: int) -> float:
        return (GROUP * sum(self.widths) + 8) / size

    @property
    def runs(self) -> list[tuple[int, slice, slice]]:
        """Channels of equal bits: bits, their place among channels and that of their bytes in a coded token."""
        found, channel, byte = [], 0, 0
        for width in sorted(set(self.widths), reverse=True):
            groups = self.widths.count(width)
            found.append((width, slice(channel, channel + groups * GROUP), slice(byte, byte + groups * width)))
            channel, byte = channel + groups * GROUP, byte + groups * width
        return found

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        shape, device = blocks.shape, blocks.device
        states = blocks.to(torch.float32).flatten(2, 3)
        if self.frequencies is not None:
            states = turn(states, self.frequencies, start, back=True)
        y = (states - self.mean.to(device)) @ self.into.to(device).T  # [B, 1, tokens, K]
        size = y.square().mean(-1, keepdim=True).sqrt() if self.widths else y.new_ones((*y.shape[:3], 1))
        middle = (size.clamp(min=1e-9).log2() * _OCTAVE).round()
        least, scale, codes = None, None, None
        for offset in _TRIED:
            tried = (middle + offset).clamp(-_BIAS, 255 - _BIAS)
            found, error = self._coded(y, (tried / _OCTAVE).exp2())
            if least is None or scale is None or codes is None:
                least, scale, codes = error, tried, found
                continue
            better = error < least
            least = torch.where(better, error, least)
            scale, codes = torch.where(better, tried, scale), torch.where(better, found, codes)
        assert scale is not None and codes is not None
        rows = [packing.pack(codes[..., channels], width) for width, channels, _ in self.runs]
        packed = torch.cat(rows, -1) if rows else codes[..., :0]
        fields = {"codes": packed, "scale": (scale + _BIAS).to(torch.uint8)[..., 0]}
        return {name: field.unflatten(2, shape[2:4]) for name, field in fields.items()}

    def _coded(self, y: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes [..., K] under a scale, and the weighted squared error [..., 1]."""
        codes, error = torch.empty_like(y, dtype=torch.uint8), torch.zeros_like(scale)
        for width, channels, _ in self.runs:
            points, part = lloyd_max(width).to(y.device), y[..., channels]
            found = torch.bucketize(part / scale, (points[1:] + points[:-1]) / 2)
            codes[..., channels] = found.to(torch.uint8)
            cost = (points[found] * scale - part).square() * self.weights[channels].to(y.device)
            error += cost.sum(-1, keepdim=True)
        return codes, error

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        packed, scale = fields["codes"].flatten(2, 3), self.scale_of(fields["scale"].flatten(2, 3))
        y = self.channels_of(packed, scale)
        states = y @ self.back.to(y.device).T + self.mean.to(y.device)
        if self.frequencies is not None:
            states = turn(states, self.frequencies, start)
        return states.unflatten(2, fields["scale"].shape[2:4]).to(dtype)

    def scale_of(self, codes: torch.Tensor) -> torch.Tensor:
        """float32 scales of their codes, uint8 of any shape."""
        return ((codes.to(torch.float32) - _BIAS) / _OCTAVE).exp2()

    def channels_of(self, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Packed codes [..., bytes] to y, points times scale [...], float32 [..., K]."""
        if packed.device.type == "cpu" and self.widths:
            from squeeze.kv.unpacking import channels_of

            return channels_of(packed.flatten(0, -2), scale.flatten(), self.widths, GROUP).T.unflatten(0, scale.shape)
        return self.points_of(packed) * scale[..., None]

    def points_of(self, packed: torch.Tensor) -> torch.Tensor:
        """Packed codes [..., bytes] to points [..., K], in plain torch: what unpacking.py equals."""
        y = torch.empty((*packed.shape[:-1], GROUP * len(self.widths)), device=packed.device)
        for width, channels, place in self.runs:
            codes = packing.unpack(packed[..., place], width, channels.stop - channels.start)
            y[..., channels] = lloyd_max(width).to(packed.device)[codes.int()]
        return y


@dataclass(frozen=True, eq=False)
class Transform:
    """coders: of keys and of values, for each head of each layer; calibrate.py finds them. bits: the mean of all, and
    all that is stored for a value.
    """

    coders: tuple[tuple[tuple[TransformCoder, TransformCoder], ...], ...]
    bits: float
    sinks: int = 4
    window: int = 64
    block: int = 32

    def parts(self, layer: int, heads: int) -> list[Part]:
        from squeeze.errors import PolicyError

        if layer >= len(self.coders) or len(self.coders[layer]) != heads:
            raise PolicyError(f"the policy was calibrated for another model: layer {layer} has {heads} KV heads here")
        return [Part(keys, values, (head,)) for head, (keys, values) in enumerate(self.coders[layer])]

    def __repr__(self) -> str:
        return f"Transform(bits={self.bits:.3f}, sinks={self.sinks}, window={self.window}, block={self.block})"
