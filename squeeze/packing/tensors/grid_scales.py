"""The scales of an interval that are tried, those whose mantissas have the fewest bits first."""

import numpy as np

from squeeze.numerics.jit import inline

__all__ = ["MANTISSAS", "TRIALS", "trial"]

MANTISSAS = (8, 11, 14, 17, 20, 24)  # bits
TRIALS = 5  # scales with mantissas of as many bits
_FIRST = 4  # of them from the least one on; the other is in the middle


@inline
def trial(low, high, bits, number):
    """Return one of the scales from low to high, or -1 if there are fewer.

    Args:
        low: The least, above 0, float64.
        high: The greatest.
        bits: Bits of the mantissa.
        number: Which of them, below TRIALS.
    """
    least, most = np.float64(low).view(np.int64), np.float64(high).view(np.int64)
    shift = np.int64(53 - bits)
    first = (least + (np.int64(1) << shift) - 1) >> shift
    steps = (most >> shift) - first
    if number == _FIRST:
        number = steps >> 1 if steps > 6 else steps + 1
    return np.int64((first + number) << shift).view(np.float64) if number <= steps else -1.0
