"""The logistic domain in integers: `stretch(p) = ln(p / (1 - p))` and its inverse.

A logit is a Q12 integer (4096 is 1.0) within ±LOGIT_MAX, just below 16. A probability is that of a one bit. It has 22
bits in tables, and 32 bits where it is coded, so that a certain bit costs less than a millionth of a bit. The tables
are computed in integer arithmetic, so they are the same everywhere.
"""

import numpy as np

from squeeze.numerics.jit import inline

LOGIT_BITS = 12
LOGIT_MAX = (16 << LOGIT_BITS) - 1

_PRECISION = 96  # fractional bits while the tables are computed


def _squash_table() -> np.ndarray:
    """Return int64 [4097]: 2^32 / (1 + e^-x) for x = -16, -16 + 1/128, ..., 16."""
    one = 1 << _PRECISION
    step, term = one, one  # e^(1/128) by its power series
    for k in range(1, 16):
        term //= 128 * k
        step += term
    table, power = np.zeros(4097, np.int64), one
    for i in range(2049):  # power = e^(i/128)
        positive = (power << 32) // (one + power)
        table[2048 + i] = positive
        table[2048 - i] = (1 << 32) - positive
        power = power * step >> _PRECISION
    return table


def _stretch_table() -> np.ndarray:
    """Return int32 [4096]: the Q12 logit of (i + 1/2) / 4096."""
    table = np.zeros(4096, np.int32)
    logarithm = 0  # ln(2k + 1), each from the one before: ln(n+2) - ln(n) = 2 atanh(1 / (n + 1))
    odd = []
    for n in range(1, 8192, 2):
        odd.append(logarithm)
        power = (1 << _PRECISION) // (n + 1)
        total, k = power, 1
        while power:
            power //= (n + 1) * (n + 1)
            k += 2
            total += power // k
        logarithm += 2 * total
    half = 1 << (_PRECISION - LOGIT_BITS - 1)
    for i in range(2048):
        logit = (odd[4095 - i] - odd[i] + half) >> (_PRECISION - LOGIT_BITS)
        table[i], table[4095 - i] = -logit, logit
    return table


SQUASH = _squash_table()
_SQUASH = SQUASH.astype(np.uint32)  # half the cache lines
STRETCH = _stretch_table()


@inline
def clamp_logit(x):
    """Clamp a logit to ±LOGIT_MAX."""
    return min(max(x, -LOGIT_MAX), LOGIT_MAX)


@inline
def squash(x):
    """Return the 32-bit probability, 1 to 2^32 - 1, of a Q12 logit within ±LOGIT_MAX."""
    position = np.uint32(x + (16 << LOGIT_BITS))
    i = np.uint64(position >> np.uint32(5))
    fraction = np.int64(position & np.uint32(31))
    return (np.int64(_SQUASH[i]) * (32 - fraction) + np.int64(_SQUASH[i + np.uint64(1)]) * fraction) >> 5
