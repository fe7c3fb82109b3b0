"""The definition of trellis codes, in plain torch.

A column is a string of bits, lowest first: row i has the bits from i * rate // 16 on. Its state is the 12 bits from
there, which overlap those of the next rows, with zeros after the last one. Its level is a quantile of the normal
distribution, chosen by the state times a constant. Overlapping states and computed levels come from QTIP (Tseng et al.
2024, arXiv 2406.11235); rates between whole numbers of bits are new.
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
    """Return the level of each state, float32 [4096], multiples of 1/256."""
    states, normal = 1 << STATE_BITS, NormalDist()
    places = ((state * _MULTIPLIER % (1 << 32)) >> (32 - STATE_BITS) for state in range(states))
    found = [round(_STEPS * normal.inv_cdf((place + 0.5) / states)) / _STEPS for place in places]
    return torch.tensor(found, dtype=torch.float32)


def column_bytes(rows: int, rate: int) -> int:
    """Return the bytes of a column of `rows` rows."""
    return -(-(rows * rate // 16) // 8)


def decode(codes: torch.Tensor, rows: int, rate: int) -> torch.Tensor:
    """Decode codes uint8 [I, bytes] to the levels of `rows` rows, float32 [O, I]."""
    first = torch.arange(rows, device=codes.device) * rate // 16
    padded = torch.nn.functional.pad(codes, (0, 3)).int()
    byte = first // 8
    words = padded[:, byte] | padded[:, byte + 1] << 8 | padded[:, byte + 2] << 16
    states = words >> first % 8 & (1 << STATE_BITS) - 1
    return levels().to(codes.device)[states.long()].T
