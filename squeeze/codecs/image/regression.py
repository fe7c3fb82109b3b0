"""Linear regression of a sample on its neighbours, in integers: the weights follow the image.

Covariances of the neighbours, and their products with the sample, decay exponentially. After each sample, one sweep of
the Gauss-Seidel method brings the factors nearer to the solution of the normal equations. Zakharov, White and Liu
(2008) describe such least squares by coordinate descent.
"""

import numpy as np

from squeeze.codecs.image.state import RATES, SIZES
from squeeze.numerics.jit import inline

FACTOR_BITS = 16
_MOST = 4 << FACTOR_BITS


@inline
def estimate(m, r, plane):
    """Return the sum of the neighbours of regression `r`, each with its factor, in sixteenths."""
    total = np.int64(0)
    for j in range(SIZES[r]):
        total += np.int64(m.neighbours[j]) * np.int64(m.factors[r, plane, j])
    return (total + (1 << (FACTOR_BITS - 5))) >> (FACTOR_BITS - 4)


@inline
def learn(m, r, plane, target, fine):
    """Learn a sample.

    Args:
        m: The model of the image.
        r: The number of the regression.
        plane: The plane of the sample, which has its own factors.
        target: The sample less what was taken from its neighbours.
        fine: Fractional bits of covariances.
    """
    rate, size = RATES[r], SIZES[r]
    for i in range(size):
        v = np.int64(m.neighbours[i]) << fine
        for j in range(size):
            known = np.int64(m.covariances[r, plane, i, j])
            m.covariances[r, plane, i, j] = np.int32(known + ((v * np.int64(m.neighbours[j]) - known) >> rate))
        known = m.products[r, plane, i]
        m.products[r, plane, i] = known + ((v * target - known) >> rate)
    for i in range(size):
        own = np.int64(m.covariances[r, plane, i, i])
        if own > 0:
            total = m.products[r, plane, i] << FACTOR_BITS
            for j in range(size):
                total -= np.int64(m.covariances[r, plane, i, j]) * np.int64(m.factors[r, plane, j])
            step = total // (own + (np.int64(1) << fine))
            factor = np.int64(m.factors[r, plane, i]) + step
            m.factors[r, plane, i] = np.int32(min(max(factor, -_MOST), _MOST))
