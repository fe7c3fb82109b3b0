"""Transform coding: each head's keys and values in a basis from calibration, with more bits where errors cost more.

Let C be the covariance of a head's states, and F = L L^T the mean of (dLoss/dstate)(dLoss/dstate)^T. An error e then
costs e^T F e / 2 to second order. Take y = U^T L^T (x - mean), where U diagonalises L^T C L. In these coefficients the
cost is the plain squared error, and channels are uncorrelated. So bits go where they lower the sum of errors most, over
all heads and layers (reverse water-filling). Channels without bits are dropped: low rank is the special case. Each
token has an 8-bit scale, the best of several, so that no outlier is clipped. Keys are coded as before their rotary
embedding.

Sources: transform coding (Huang and Schultheiss 1963; Goyal 2001); KVQuant (Hooper et al. 2024: keys before RoPE,
Fisher information); CSKV (Wang et al. 2024: low rank with a full-precision window).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from squeeze.errors import PolicyError
from squeeze.kv.base import HeadGroup, Policy
from squeeze.kv.codes import lloyd_max, pack, unpack
from squeeze.kv.rotary import apply_rotary
from squeeze.kv.store import Fields
from squeeze.kv.unpacking import MOST_BITS, unpacked_channels
from squeeze.numerics.constants import constant_on

__all__ = ["GROUP", "MOST_BITS", "Transform", "TransformCoder", "scales"]

GROUP = 8  # channels that have equal bits
_OCTAVE = 4  # scales between one power of two and the next
_BIAS = 128  # code of the scale 1
_TRIED = range(-2, 13)  # scales tried around the root mean square of a token
_NUMBERS = ("sinks", "window", "block")
_TENSORS = ("into", "back", "mean", "weights")  # the tensors of a TransformCoder in a policy file


@cache
def scales() -> torch.Tensor:
    """Return the values of the codes of scales, float32 [256]."""
    return ((torch.arange(256, dtype=torch.float32) - _BIAS) / _OCTAVE).exp2()


@dataclass(frozen=True, eq=False)
class TransformCoder:
    """A transform coder of one head.

    Args:
        widths: Bits of each group of 8 channels, in descending order. Channels after the last group are dropped.
        into: [K, D], the transform to coefficients y of unit variance, K = 8 * len(widths).
        back: [D, K], its inverse.
        mean: [D], subtracted before the transform.
        weights: [K], the loss of a unit of squared error in each coefficient.
        frequencies: Frequencies of the rotary embedding that is undone, or None.
    """

    widths: tuple[int, ...]
    into: torch.Tensor
    back: torch.Tensor
    mean: torch.Tensor
    weights: torch.Tensor
    frequencies: torch.Tensor | None = None

    def bits(self, block: int, size: int) -> float:
        return (GROUP * sum(self.widths) + 8) / size

    def check(self) -> None:
        """Raise ValueError if the parts of a coder from a file do not match each other."""
        channels, size = GROUP * len(self.widths), self.mean.numel()
        shapes = ((channels, size), (size, channels), (size,), (channels,))
        tensors = [getattr(self, name) for name in _TENSORS]
        if any(tuple(x.shape) != shape for x, shape in zip(tensors, shapes, strict=True)):
            raise ValueError
        if self.frequencies is not None:
            tensors.append(self.frequencies)
            if self.frequencies.dim() != 1 or 2 * self.frequencies.numel() > size:
                raise ValueError
        if any(x.dtype != torch.float32 or not x.isfinite().all() for x in tensors):
            raise ValueError
        if any(type(width) is not int or not 1 <= width <= MOST_BITS for width in self.widths):
            raise ValueError
        if list(self.widths) != sorted(self.widths, reverse=True):
            raise ValueError

    def kinds(self, block: int, size: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and dtype of each field of one head's block. Raise PolicyError if heads have another size."""
        if size != self.mean.numel():
            raise PolicyError(f"the policy was calibrated for another model: heads have {size} channels here")
        return {"codes": ((block, sum(self.widths)), torch.uint8), "scale": ((block,), torch.uint8)}

    @property
    def runs(self) -> list[tuple[int, slice, slice]]:
        """The runs of channels with equal bits: the bits, their slice of channels, and their slice of bytes in a coded
        token.
        """
        runs, channel, byte = [], 0, 0
        for width in sorted(set(self.widths), reverse=True):
            groups = self.widths.count(width)
            runs.append((width, slice(channel, channel + groups * GROUP), slice(byte, byte + groups * width)))
            channel, byte = channel + groups * GROUP, byte + groups * width
        return runs

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        shape, device = blocks.shape, blocks.device
        states = blocks.to(torch.float32).flatten(2, 3)
        if self.frequencies is not None:
            states = apply_rotary(states, self.frequencies, start, inverse=True)
        y = (states - constant_on(self.mean, device)) @ constant_on(self.into, device).T  # [B, 1, tokens, K]
        size = y.square().mean(-1, keepdim=True).sqrt() if self.widths else y.new_ones((*y.shape[:3], 1))
        middle = (size.clamp(min=1e-9).log2() * _OCTAVE).round()
        codes, scale = self._best(y, middle)
        rows = [pack(codes[..., channels], width) for width, channels, _ in self.runs]
        packed = torch.cat(rows, -1) if rows else codes[..., :0]
        fields = {"codes": packed, "scale": (scale + _BIAS).to(torch.uint8)[..., 0]}
        return {name: field.unflatten(2, shape[2:4]) for name, field in fields.items()}

    def _best(self, y: torch.Tensor, middle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes [..., K] and the scale [..., 1] with the least error among several scales."""
        least = None
        for offset in _TRIED:
            tried = (middle + offset).clamp(-_BIAS, 255 - _BIAS)
            coded, error = self._coded(y, (tried / _OCTAVE).exp2())
            if least is None:
                least, scale, codes = error, tried, coded
                continue
            better = error < least
            least = torch.where(better, error, least)
            scale, codes = torch.where(better, tried, scale), torch.where(better, coded, codes)
        return codes, scale

    def _coded(self, y: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes [..., K] for a scale, and the weighted squared error [..., 1]."""
        codes, error = torch.empty_like(y, dtype=torch.uint8), torch.zeros_like(scale)
        for width, channels, _ in self.runs:
            points, values = constant_on(lloyd_max(width), y.device), y[..., channels]
            nearest = torch.bucketize(values / scale, (points[1:] + points[:-1]) / 2)
            codes[..., channels] = nearest.to(torch.uint8)
            cost = (points[nearest] * scale - values).square() * constant_on(self.weights, y.device)[channels]
            error += cost.sum(-1, keepdim=True)
        return codes, error

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        y = self.channels_of(fields["codes"].flatten(2, 3), fields["scale"].flatten(2, 3))
        states = y @ constant_on(self.back, y.device).T + constant_on(self.mean, y.device)
        if self.frequencies is not None:
            states = apply_rotary(states, self.frequencies, start)
        blocks: torch.Tensor = states.unflatten(2, fields["scale"].shape[2:4])
        return blocks.to(dtype)

    def channels_of(self, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Decode packed codes [..., bytes] and codes of scales [...] to coefficients float32 [..., K]."""
        if packed.device.type == "cpu" and self.widths:
            channels = unpacked_channels(packed.flatten(0, -2), scale.flatten(), scales(), self.widths, GROUP)
            y: torch.Tensor = channels.T.unflatten(0, scale.shape)
            return y
        return self.points_of(packed) * constant_on(scales(), scale.device)[scale.int()][..., None]

    def points_of(self, packed: torch.Tensor) -> torch.Tensor:
        """Decode packed codes [..., bytes] to points [..., K] in plain torch, the reference of unpacking.py."""
        y = torch.empty((*packed.shape[:-1], GROUP * len(self.widths)), dtype=torch.float32, device=packed.device)
        for width, channels, place in self.runs:
            codes = unpack(packed[..., place], width, channels.stop - channels.start)
            y[..., channels] = constant_on(lloyd_max(width), packed.device)[codes.int()]
        return y


@dataclass(frozen=True, eq=False)
class Transform(Policy):
    """A policy of transform coding.

    Args:
        coders: Coders of keys and values for each head of each layer, made by waterfill.py or lowrank.py.
        bits: Bits per value in the mean, including everything stored.
        sinks: The number of first tokens in full precision.
        window: The number of latest tokens in full precision.
        block: The number of tokens that are coded at a time.
    """

    coders: tuple[tuple[tuple[TransformCoder, TransformCoder], ...], ...]
    bits: float
    sinks: int = 4
    window: int = 64
    block: int = 32

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        if layer >= len(self.coders) or len(self.coders[layer]) != heads:
            raise PolicyError(f"the policy was calibrated for another model: layer {layer} has {heads} KV heads here")
        return [HeadGroup(keys, values, (head,)) for head, (keys, values) in enumerate(self.coders[layer])]

    def to_tensors(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return what a policy file holds: values for JSON, and tensors."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in ("bits", *_NUMBERS)}
        plain["widths"] = [[[coder.widths for coder in pair] for pair in layer] for layer in self.coders]
        tensors = {
            f"{layer}.{head}.{kind}.{name}": getattr(coder, name).contiguous()
            for layer, heads in enumerate(self.coders)
            for head, pair in enumerate(heads)
            for kind, coder in enumerate(pair)
            for name in _TENSORS
        }
        rotary = next((pair[0].frequencies for layer in self.coders for pair in layer), None)
        return plain, tensors if rotary is None else {**tensors, "frequencies": rotary}

    @classmethod
    def from_tensors(cls, plain: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Transform:
        """Return the policy of what `to_tensors` returned.

        Raises KeyError, TypeError, ValueError or AttributeError if it is anything else.
        """
        numbers = {name: value for name, value in plain.items() if name != "widths"}
        if any(type(numbers[name]) is not int or not 0 <= numbers[name] < 1 << 31 for name in _NUMBERS):
            raise ValueError
        if type(numbers["bits"]) not in (int, float) or not 0 <= numbers["bits"] < 1 << 31:
            raise ValueError

        def coder(layer: int, head: int, kind: int, widths: list[int]) -> TransformCoder:
            into, back, mean, weights = (tensors[f"{layer}.{head}.{kind}.{name}"] for name in _TENSORS)
            frequencies = tensors.get("frequencies") if kind == 0 else None
            built = TransformCoder(tuple(widths), into, back, mean, weights, frequencies)
            built.check()
            return built

        layers = tuple(
            tuple(
                (coder(layer, head, 0, keys), coder(layer, head, 1, values))
                for head, (keys, values) in enumerate(heads)
            )
            for layer, heads in enumerate(plain["widths"])
        )
        return cls(layers, **numbers)

    def __repr__(self) -> str:
        return f"Transform(bits={self.bits:.3f}, sinks={self.sinks}, window={self.window}, block={self.block})"
