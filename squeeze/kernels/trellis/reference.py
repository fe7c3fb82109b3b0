"""The definition, in plain torch: what trellis codes stand for.

A column is a number of as many bits as its rows take, lowest first: row i has the bits from i * rate // 16 on. Its
state is the 12 bits from there on, which it shares with the rows that follow, zeros behind the last one; its level is
a quantile of the normal distribution, chosen by the state times a constant. QTIP (Tseng et al. 2024, arXiv 2406.11235)
is where states that overlap come from, and levels that are computed; a rate between whole numbers of bits is our own.
"""

from functools import cache
from statistics import NormalDist

import torch

__all__ = ["STATE_BITS", "column_bytes", "decode", "levels"]

STATE_BITS = 12
_MULTIPLIER = 0x94F475CF
_STEPS = 256  # of a level, in 1


@cache
def levels() -> torch.Tensor:
    """float32 [4096]: the level of each state, a multiple of 1/256."""
    states, normal = 1 << STATE_BITS, NormalDist()
    places = ((state * _MULTIPLIER % (1 << 32)) >> (32 - STATE_BITS) for state in range(states))
    found = [round(_STEPS * normal.inv_cdf((place + 0.5) / states)) / _STEPS for place in places]
    return torch.tensor(found, dtype=torch.float32)


def column_bytes(rows: int, rate: int) -> int:
    """Of a column of so many rows."""
    return -(-(rows * rate // 16) // 8)


def decode(codes: torch.Tensor, rows: int, rate: int) -> torch.Tensor:
    """codes uint8 [I, bytes] -> the levels of `rows` rows, float32 [O, I]."""
    first = torch.arange(rows, device=codes.device) * rate // 16
    padded = torch.nn.functional.pad(codes, (0, 3)).int()
    byte = first // 8
    words = padded[:, byte] | padded[:, byte + 1] << 8 | padded[:, byte + 2] << 16
    states = words >> first % 8 & (1 << STATE_BITS) - 1
    return levels().to(codes.device)[states.long()].T
