"""Logistic mixing in float32, for levels whose inputs are so many that speed asks for it.

As mixer.py, but a logit is natural here and weights are float32; sums have the
one order of vectors.py. Probabilities stay integers.
"""

import numpy as np

from squeeze.numerics.jit import inline
from squeeze.numerics.logistic import clamp_logit


@inline
def to_q12(logit):
    """Q12 integer logit, clamped, of a natural float32 one."""
    return clamp_logit(np.int64(logit * np.float32(4096)))


@inline
def error_of(bit, probability):
    """float32 difference of a bit and a 32-bit probability."""
    return np.float32((bit << 32) - probability) * np.float32(2.0**-32)
