"""Scales in two levels, as bitsandbytes has them (double quantisation): 8 bits each of a block of 256, and a mean.

Dettmers et al. 2023 (QLoRA, arXiv 2305.14314). The 8 bits are a floating point number whose exponent takes as many of
them as it needs (Dettmers et al. 2022, arXiv 2110.02861).
"""

from dataclasses import dataclass

import torch

__all__ = ["BLOCK", "LEVELS", "Nested"]

BLOCK = 256  # scales with one factor
_EXPONENTS = 7


def _levels() -> torch.Tensor:
    """float32 [256], rising: of each power of ten the middles of equal parts of 0.1 to 1, of both signs; 0; and 1."""
    found = [0.0, 1.0]
    for exponent in range(_EXPONENTS):
        borders = torch.linspace(0.1, 1, (1 << exponent) + 1)
        parts = (10.0 ** (exponent + 1 - _EXPONENTS) * ((borders[:-1] + borders[1:]) / 2)).tolist()
        found += [*parts, *(-part for part in parts)]
    return torch.tensor(sorted(found))


LEVELS = _levels()


@dataclass(frozen=True)
class Nested:
    """codes: uint8 [O, G], of LEVELS; factors: float32 [ceil(O G / 256)], row by row; mean: float32 []."""

    codes: torch.Tensor
    factors: torch.Tensor
    mean: torch.Tensor

    @classmethod
    def of(cls, scales: torch.Tensor) -> "Nested":
        """The nearest to positive scales [O, G] that are positive."""
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
        """float32 [O, G], as bitsandbytes makes them: a product, then a sum."""
        factors = self.factors.repeat_interleave(BLOCK)[: self.codes.numel()].reshape(self.codes.shape)
        return LEVELS.to(self.codes.device)[self.codes.long()] * factors + self.mean

    @property
    def stored_bits(self) -> int:
        return 8 * self.codes.numel() + 32 * (self.factors.numel() + 1)
