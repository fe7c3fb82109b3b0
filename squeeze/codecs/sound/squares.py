"""Least squares in integers: a sample as a weighted sum of samples before it, in its own channel and the one before.

Sums of products decay exponentially. From time to time the normal equations are solved by an LDL decomposition in fixed
point. By the Cauchy-Schwarz inequality its sums of products are bounded, so that 64 bits hold them.
"""

import numpy as np

from squeeze.codecs.sound.state import DOWN, FINE, MARGIN, OTHER, RATE, RIDGE, SIZE, SOLVE
from squeeze.numerics.jit import inline, part

FACTOR_BITS, HALF = 24, 20
_MOST = 1 << 34


@inline
def gather(m, r, i):
    """Write the inputs of least squares `r` for sample `i`."""
    x, size, other, step = m.inputs_of[r], m.sizes[r, SIZE], m.sizes[r, OTHER], m.state.channels
    at = MARGIN + i
    for j in range(size - other):
        x[j] = m.samples[at - step * (j + 1)]
    for j in range(other):
        x[size - other + j] = m.samples[at - 1 - step * j]


@inline
def estimate(m, r):
    """Return the sum of the inputs of least squares `r`, each with its factor, with 24 fractional bits."""
    x, factors, total = m.inputs_of[r], m.factors[r, m.state.channel], np.int64(0)
    for j in range(m.sizes[r, SIZE]):
        total += x[j] * factors[j]
    return total


@part
def learn(m, r, sample, number):
    """Add a sample to the sums of least squares `r`, and solve them if it is time.

    Args:
        m: The model of the sound.
        r: The number of the least squares.
        sample: The sample.
        number: The number of the sample in its channel.
    """
    x, sums = m.inputs_of[r], m.sums[r, m.state.channel]
    size, rate, down, fine = m.sizes[r, SIZE], m.sizes[r, RATE], m.sizes[r, DOWN], m.sizes[r, FINE]
    for j in range(size):
        x[j] >>= down
    sample >>= down
    for i in range(size):
        factor, row = x[i] << fine, sums[i]
        for j in range(i + 1):
            row[j] += factor * x[j] - (row[j] >> rate)
    factor, row = sample << fine, sums[size]
    for j in range(size):
        row[j] += factor * x[j] - (row[j] >> rate)
    if number % m.sizes[r, SOLVE] == 0:
        _solve(m, sums, m.factors[r, m.state.channel], r)


@inline
def _product(value, whole, part):
    """Return a value times a factor in two parts of 20 bits, less the second 20 of its fractional bits."""
    return value * whole + (value * part >> HALF)


@inline
def _solve(m, sums, factors, r):
    """Solve the normal equations: the sums are L D L', with `scaled` for L D, and `whole` and `part` for L."""
    whole, part, scaled, work = m.whole, m.part, m.scaled, m.work
    size, rate, ridge = m.sizes[r, SIZE], m.sizes[r, RATE], m.sizes[r, RIDGE]
    for i in range(size):
        for j in range(i):
            total = np.int64(0)
            for k in range(j):
                total += _product(scaled[i, k], whole[j, k], part[j, k])
            value = (sums[i, j] >> rate) - (total >> HALF)
            scaled[i, j] = value
            first = (value << HALF) // scaled[j, j]
            whole[i, j] = first
            part[i, j] = ((value << HALF) - first * scaled[j, j] << HALF) // scaled[j, j]
        total, other = np.int64(0), np.int64(0)
        for k in range(i):
            total += _product(scaled[i, k], whole[i, k], part[i, k])
            other += _product(work[k], whole[i, k], part[i, k])
        scaled[i, i] = max((sums[i, i] >> rate) + ridge - (total >> HALF), ridge)
        work[i] = (sums[size, i] >> rate) - (other >> HALF)
    for i in range(size - 1, -1, -1):
        first = (work[i] << HALF) // scaled[i, i]
        rest = (work[i] << HALF) - first * scaled[i, i]
        total = (first << FACTOR_BITS) + ((rest << FACTOR_BITS) // scaled[i, i])
        for k in range(i + 1, size):
            total -= _product(factors[k], whole[k, i], part[k, i])
        factors[i] = min(max(total >> HALF, -_MOST), _MOST)
