"""A cascade of adaptive filters in integers: each stage predicts what the one before it left, from what it left before.

A stage is a normalised least mean squares filter (Widrow and Hoff, 1960; Nagumo and Noda, 1967), as in OptimFROG and
Monkey's Audio.
"""

import numpy as np

from squeeze.numerics.jit import inline

WEIGHT_BITS = 20
_LIMIT = (1 << 22) - 1  # of an input, in sixteenths of the last bit of 16
_STEP = 36
_MOST, _LARGEST = 1 << 38, 1 << 30


@inline
def _reduced(m, value):
    """Return a difference with 8 fractional bits as an input of a filter."""
    return min(max(value >> (4 + m.state.keep), -_LIMIT), _LIMIT)


@inline
def estimate(m, number):
    """Write what each stage predicts, for sample `number` of the channel."""
    for s in range(m.outputs.size):
        n = m.taps[s, 0]
        at = number % n
        h, w, total = m.latest[m.state.channel, s], m.weights_of[m.state.channel, s], np.int64(0)
        for j in range(n):
            total += np.int64(h[at + j]) * np.int64(w[j])
        m.outputs[s] = (total >> (WEIGHT_BITS - 4)) << m.state.keep


@inline
def learn(m, number, rest):
    """Train all stages; `rest` is what the predictions before the cascade left of the sample."""
    for s in range(m.outputs.size):
        n, rate = m.taps[s, 0], m.taps[s, 1]
        at = number % n
        h, w = m.latest[m.state.channel, s], m.weights_of[m.state.channel, s]
        error = _reduced(m, rest - m.outputs[s])
        power = m.power[m.state.channel, s] + (n << 4)
        step = min(max((error << _STEP) // power, -_MOST), _MOST) >> rate
        for j in range(n):
            weight = np.int64(w[j]) + ((step * np.int64(h[at + j])) >> (_STEP - WEIGHT_BITS))
            w[j] = np.int32(min(max(weight, -_LARGEST), _LARGEST))
        new, old = _reduced(m, rest), np.int64(h[at])
        m.power[m.state.channel, s] += new * new - old * old
        h[at] = np.int32(new)
        h[at + n] = np.int32(new)
        rest -= m.outputs[s]
