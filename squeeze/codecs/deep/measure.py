"""What levels 4 to 6 tell a meter (bitmodels/meter.py) of every byte and bit."""

import numpy as np

from squeeze.codecs.deep.arrays import FINAL
from squeeze.codecs.deep.contexts import share_means
from squeeze.codecs.deep.predictor import Shared
from squeeze.codecs.deep.predictors import CONTEXTS, MATCHES, NETWORK
from squeeze.numerics import vectors
from squeeze.numerics.bitmodels import meter as meters
from squeeze.numerics.bitmodels.frequencies import BYTES
from squeeze.numerics.jit import inline


@inline
def begin_byte(meter, m, network, unit, begin):
    """A byte begins, which is a unit of its own; the block begins at `begin`, and before that is a dictionary."""
    meters.begin(meter)
    matches = m.predictors[MATCHES].state
    best = meters.longest(matches)
    if best >= 0:
        meters.follow(meter, unit, matches[best].pointer - begin, matches[best].length)
    if m.state.has_network:
        filled, total = 0, np.float64(network.counts[1])
        for byte in range(BYTES):
            filled = meters.candidate(meter, unit, byte, network.counts[BYTES + byte] / total, filled)


@inline
def end_byte(meter, m, network, unit, position):
    """The byte is known; the network still says what it said before."""
    if m.state.has_network:
        count = network.counts[BYTES + np.int64(m.data[position])]
        meter.model_bits[unit] = np.float32(np.log2(np.float64(network.counts[1]) / np.float64(count)))
    meters.finish(meter, unit)


@inline
def note_bit(meter, m, bit, probability):
    """A bit of a byte was coded, and nothing has learned from it yet."""
    meters.decide(meter, bit, probability, m.state.shift)
    width, deep, finals = m.inputs.size, m.logits.size, len(FINAL) if m.state.has_network else len(FINAL) - 1
    meter.weights[:] = np.float32(0)
    for k in range(m.state.sets):
        scale = np.float32(0)
        for f in range(finals):
            scale += m.finals[m.final_rows[f] * deep + k]
        vectors.add_scaled(meter.weights, 0, scale / np.float32(finals), m.weights, m.rows[k] * width, width)
    for i in range(width):
        meter.terms[i] = meter.weights[i] * m.inputs[i]
    if m.state.has_network:
        scale = np.float32(0)
        for f in range(finals):
            scale += m.finals[m.final_rows[f] * deep + m.state.sets]
        meter.terms[m.first[NETWORK]] += scale / np.float32(finals) * m.state.network_logit
    shared = Shared(m.data, m.state, m.registers, m.inputs)
    share_means(shared, m.predictors[CONTEXTS], m.inputs, meter.weights, meter.known, meter.terms)
    meters.share(meter, 0, bit, probability, m.state.mixed)
