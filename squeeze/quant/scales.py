"""Scales of one byte: powers of two (MXFP4), e4m3 relative to a scale of the tensor (NVFP4), and double quantisation.

Double quantisation is that of bitsandbytes: scales in blocks of 256, 8 bits each, and their mean (Dettmers et al. 2023,
QLoRA, arXiv 2305.14314). The 8 bits are a floating-point number whose exponent takes as many bits as it needs (Dettmers
et al. 2022, arXiv 2110.02861).
"""

from dataclasses import dataclass

import torch

__all__ = ["BLOCK", "LEVELS", "Nested", "round_scale", "shared_factor"]

_TOP = 448.0  # largest e4m3
_LEAST = 2.0**-9  # smallest positive e4m3
_FACTOR = 2.0**-8


def shared_factor(scale: torch.Tensor) -> torch.Tensor:
    """Return the scale of the tensor for e4m3 scales, float32 []: a power of two, so that products with it are exact.

    It is 2^-8 if that is enough for the largest of `scale`: servers take one factor for matrices that they join, such
    as queries, keys and values.
    """
    return torch.exp2(torch.ceil(torch.log2(scale.max().clamp(min=2.0**-100) / _TOP))).clamp(min=_FACTOR)


def round_scale(kind: str, scale: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    """Round scales to the nearest values that can be stored, as float32.

    Args:
        kind: "power" or "float8".
        scale: the scales.
        factor: the scale of the tensor, for "float8".
    """
    if factor is None:
        return torch.exp2(torch.log2(scale.clamp(min=2.0**-126)).round())
    return factor * (scale / factor).clamp(_LEAST, _TOP).to(torch.float8_e4m3fn).to(torch.float32)


BLOCK = 256  # scales with one factor
_EXPONENTS = 7


def _levels() -> torch.Tensor:
    """Return the levels, float32 [256], ascending: for each power of ten the midpoints of equal parts of 0.1 to 1, with
    both signs, and 0 and 1."""
    found = [0.0, 1.0]
    for exponent in range(_EXPONENTS):
        borders = torch.linspace(0.1, 1, (1 << exponent) + 1)
        parts = (10.0 ** (exponent + 1 - _EXPONENTS) * ((borders[:-1] + borders[1:]) / 2)).tolist()
        found += [*parts, *(-part for part in parts)]
    return torch.tensor(sorted(found))


LEVELS = _levels()


@dataclass(frozen=True)
class Nested:
    """Quantised scales.

    Attributes:
        codes: uint8 [O, G], codes of LEVELS.
        factors: float32 [ceil(O G / 256)], row by row.
        mean: float32 [], the mean of the scales.
    """

    codes: torch.Tensor
    factors: torch.Tensor
    mean: torch.Tensor

    @classmethod
    def of(cls, scales: torch.Tensor) -> "Nested":
        """Quantise positive scales [O, G] so that they stay positive."""
        mean = scales.float().mean()
        rest = scales.float().flatten() - mean
        blocks = torch.nn.functional.pad(rest, (0, -len(rest) % BLOCK)).reshape(-1, BLOCK)
        factors = blocks.abs().amax(-1)
        shares = blocks / factors.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        borders = (LEVELS[1:] + LEVELS[:-1]) / 2
        codes = torch.bucketize(shares, borders.to(scales.device)).to(torch.uint8)
        found = cls(codes.flatten()[: len(rest)].reshape(scales.shape), factors, mean)
        while (wrong := found.scales() <= 0).any():
            found = cls(found.codes + wrong.to(torch.uint8), factors, mean)
        return found

    def scales(self) -> torch.Tensor:
        """Return the scales as bitsandbytes computes them: float32 [O, G]."""
        factors = self.factors.repeat_interleave(BLOCK)[: self.codes.numel()].reshape(self.codes.shape)
        return LEVELS.to(self.codes.device)[self.codes.long()] * factors + self.mean

    @property
    def stored_bits(self) -> int:
        return 8 * self.codes.numel() + 32 * (self.factors.numel() + 1)
