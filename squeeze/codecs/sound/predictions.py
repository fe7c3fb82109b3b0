"""Predictions of a sample, and how wrong each of them was lately."""

import numpy as np

from squeeze.codecs.sound import cascade, squares
from squeeze.codecs.sound.state import FRACTION, MARGIN, PATTERNS, SIZE
from squeeze.numerics.jit import inline, part

SOON, LATE = 4, 7  # log2 of the samples that mean errors remember
_ONE = 1524246769571  # 2 ln 2, the mean error of a logistic distribution of scale 1, with 40 fractional bits
_LEAST = 24  # mean error, with 8 fractional bits
_FINER = squares.FACTOR_BITS - FRACTION


@part
def predict(m, i):
    """Write all predictions of sample `i` to `values`: of all others, the cascade's, least squares, the linear ones."""
    number, stages, direct = i // m.state.channels, m.outputs.size, m.state.direct
    k = m.state.stacked + stages
    for r in range(direct):
        squares.gather(m, r, i)
        m.values[k + r] = _limited(m, squares.estimate(m, r) >> _FINER)
    cascade.estimate(m, number)
    value = m.values[k]
    if m.state.stacked:
        value = _limited(m, value + _stack(m, direct, k))
    m.state.base = value
    for s in range(stages):
        value = _limited(m, value + m.outputs[s])
        m.values[k - 1 - s] = value
    at, step, last = MARGIN + i, m.state.channels, k + direct
    m.values[last] = _limited(m, (2 * m.samples[at - step] - m.samples[at - 2 * step]) << FRACTION)
    if m.state.linear > 1:
        m.values[last + 1] = m.samples[at - step] << FRACTION
    if m.state.stacked:
        m.values[0] = _limited(m, m.values[1] + _stack(m, direct + 1, 1))
    _measure(m, last)


@inline
def _limited(m, value):
    """Return a prediction within the range of samples."""
    most = np.int64(1) << (m.state.bits - 1 + FRACTION)
    return min(max(value, -most), most - 1)


@inline
def _reduced(m, value):
    return min(max(value >> (4 + m.state.keep), -32767), 32767)


@inline
def _stack(m, r, first):
    """Return what least squares `r` of the predictions after number `first` add to that."""
    x = m.inputs_of[r]
    for j in range(m.sizes[r, SIZE]):
        x[j] = _reduced(m, m.values[first + 1 + j] - m.values[first])
    return (squares.estimate(m, r) >> (squares.FACTOR_BITS - 4)) << m.state.keep


@inline
def _measure(m, linear):
    """Write the inverse of the scale of each prediction's error, and contexts of that of the first."""
    for k in range(m.values.size):
        soon, late = m.misses[m.state.channel, k, 0] >> SOON, m.misses[m.state.channel, k, 1] >> LATE
        mean = (soon + late) >> 1
        if k == linear:
            m.state.pattern = m.recent[m.state.channel] & (PATTERNS - 1)
            mean = m.patterns[m.state.channel, m.state.pattern] >> 3
        mean = max(mean, _LEAST)
        m.inverse[k] = _ONE // mean
        m.reach[k] = mean << 4
        if k == 0:
            span, ratio = 0, 0
            while span < 31 and mean >> span > 0:
                span += 1
            m.state.span = span
            while ratio < 7 and 5 * soon > (2 + ratio) * late:
                ratio += 1
            m.state.ratio = ratio


@part
def learn(m, i):
    """Train all predictions on sample `i`, which is known by now."""
    number, sample, c = i // m.state.channels, m.samples[MARGIN + i], m.state.channel
    exact = sample << FRACTION
    for k in range(m.values.size):
        miss = abs(exact - m.values[k])
        m.misses[c, k, 0] += miss - (m.misses[c, k, 0] >> SOON)
        m.misses[c, k, 1] += miss - (m.misses[c, k, 1] >> LATE)
    k = m.state.stacked + m.outputs.size
    last = k + m.state.direct
    cascade.learn(m, number, exact - m.state.base)
    if m.state.stacked:
        squares.learn(m, m.state.direct, _reduced(m, exact - m.values[k]), number)
        squares.learn(m, m.state.direct + 1, _reduced(m, exact - m.values[1]), number)
    for r in range(m.state.direct):
        squares.learn(m, r, sample, number)
    miss = abs(exact - m.values[last])
    m.patterns[c, m.state.pattern] += miss - (m.patterns[c, m.state.pattern] >> 3)
    m.recent[c] = 2 * m.recent[c] + (miss <= 1 << FRACTION)
