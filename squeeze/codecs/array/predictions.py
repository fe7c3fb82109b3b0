"""Predictions of a number by those before it, in its own column and the one before, and how wrong each was lately.

Numbers have 64 bits and wrap around. How wrong a prediction was is a logarithm, so that one outlier tells little.
"""

import numpy as np

from squeeze.codecs.array.state import MARGIN
from squeeze.numerics.jit import inline, part

SOON, LATE = 3, 6  # log2 of the numbers that mean logarithms remember
_FAR = 1 << 60  # the largest distance


@inline
def distance(a, b):
    """Return a - b, limited to 2^60."""
    d = a - b
    if (a ^ b) & (a ^ d) < 0:
        d = np.int64(_FAR) if a > b else np.int64(-_FAR)
    return min(max(d, -_FAR), _FAR)


@part
def predict(m, i):
    """Write all predictions of number `i` to `values`, and the scales of their errors."""
    step, at = m.state.columns, MARGIN + i
    a, b, c = m.numbers[at - step], m.numbers[at - 2 * step], m.numbers[at - 3 * step]
    v = m.values
    v[0] = a
    v[1] = 2 * a - b
    v[2] = a + (m.drifts[m.state.column] >> 5)
    if step > 1:
        v[3] = a + (m.numbers[at - 1] - m.numbers[at - 1 - step])
    else:
        v[3] = (a >> 1) + (b >> 2) + (c >> 2)
    if m.state.full:
        v[4] = 3 * a - 3 * b + c
        v[5] = (a >> 1) + (b >> 1)
        v[6] = b
    if m.state.across:
        _predict_from_above(m, i, a, v[7 if m.state.full else 4 :])
    edge = np.int64(1) << (m.state.bits - 1)
    best = 0
    for k in range(v.size):
        if m.state.bits < 64:
            v[k] = min(max(v[k], -edge), edge - 1)
        soon, late = m.logs[m.state.column, k, 0], m.logs[m.state.column, k, 1]
        m.scales[k] = (soon + late) >> 13
        if soon + late < m.logs[m.state.column, best, 0] + m.logs[m.state.column, best, 1]:
            best = k
    m.state.best = best


@inline
def above(m, i):
    """Return the number above number `i` of a grid, or in its first line the one before in its column."""
    over = i - m.state.across
    return m.numbers[MARGIN + (over if over >= 0 else i - m.state.columns)]


@inline
def _predict_from_above(m, i, a, v):
    """Write the predictions of number `i` that the line above has a part in, `a` being the one before in its column."""
    step, over = m.state.columns, MARGIN + i - m.state.across
    up, left, right, second = above(m, i), a, a, a
    if i >= m.state.across:
        left, right = m.numbers[over - step], m.numbers[over + step]
        second = m.numbers[over - m.state.across] if i >= 2 * m.state.across else up
    v[0] = up
    v[1] = a + (up - left)
    if m.state.full:
        v[2] = (a >> 1) + (up >> 1)
        v[3] = (a >> 1) + (up >> 2) + (right >> 2)
        v[4] = 2 * up - second


@part
def learn(m, i):
    """Learn number `i`, which is known by now."""
    column, number = m.state.column, m.numbers[MARGIN + i]
    for k in range(m.values.size):
        x = 2 * abs(distance(number, m.values[k])) + 1
        n = np.int64(0)
        while x >> (n + 1) > 0:
            n += 1
        log = ((n << 4) + (((x << 4 if n < 4 else x >> (n - 4) << n) >> n) & 15)) << 12
        m.logs[column, k, 0] += (log - m.logs[column, k, 0]) >> SOON
        m.logs[column, k, 1] += (log - m.logs[column, k, 1]) >> LATE
    delta = number - m.numbers[MARGIN + i - m.state.columns]
    m.drifts[column] += delta - (m.drifts[column] >> 5)
