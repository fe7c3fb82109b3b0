"""The model of images: a byte is eight binary decisions, high bit first, mixed as by the bytewise models.

A sample is predicted by its neighbours in many ways (predictions.py). For each way, a relative map learns the
probability of a bit by how far the byte that the bit decides about is from the prediction. Direct maps learn it by the
prediction itself, and bit histories by hashed neighbours (contexts.py). Match models find repeated pixels.
"""

import numpy as np

from squeeze.codecs.image import nearby, predictions
from squeeze.codecs.image.contexts import hash_contexts
from squeeze.codecs.image.relative import BIN, BINS, LEVELS
from squeeze.codecs.image.state import DIRECT, FIRST_ROWS
from squeeze.numerics.bitmodels import coder as arithmetic, histories, match, mixer
from squeeze.numerics.jit import inline, part
from squeeze.numerics.logistic import STRETCH, clamp_logit, squash

BIAS = 1024
MAP_LIMIT, RELATIVE_LIMIT, DIRECT_LIMIT, MATCH_LIMIT = 511, 511, 255, 255
RATE, FINAL_RATE = 6, 1
APM_RATES = (6, 6)
DIRECT_OF = np.array(DIRECT, np.int64)


@inline
def begin_byte(m, i):
    """Predict the sample if a new one begins, hash every context of its next byte, and find their slots."""
    state = m.state
    step = state.column % state.pixel
    if step % state.sample == 0:
        state.plane = nearby.plane_of(m)
        predictions.predict(m, i)
    _centre(m, i, step % state.sample)
    hash_contexts(m, i)
    histories.fetch_slots(m, np.uint64(0))
    match.expect(m.matches, m.data)
    state.partial = 1
    state.shift = 7
    histories.find_slots(m, np.uint64(0))


@inline
def _centre(m, i, low):
    """Turn predictions of the sample into those of its byte."""
    for k in range(m.centres.size):
        value = m.values[k]
        if m.state.sample == 2:
            value = (value - (np.int64(m.data[i - 1]) << 8)) << 4 if low else value >> 4
        m.centres[k] = min(max(value, 0), 4080)


@inline
def gather(m):
    """Write the logits of all maps to the mixer's inputs."""
    node, state = np.uint64(m.state.node), m.state
    for k in range(m.slot.size):
        history = m.slots[np.uint64(m.slot[k]) + node]
        entry = np.uint32(k * 256) + np.uint32(history)
        m.entry[k] = entry
        m.inputs[k] = STRETCH[m.maps[entry] >> np.uint32(20)] if history else 0
    partial, shift = state.partial, state.shift
    middle = (((2 * partial + 1) << shift) - 256) << 4
    at = state.first_relative
    for k in range(m.centres.size):
        bin_of = BIN[middle - m.centres[k] + 4096]
        for j in range(2):
            n = 2 * k + j
            entry = ((n * LEVELS + (m.levels[k] if j == 0 else state.spread)) * 8 + shift) * BINS + bin_of
            m.relative_at[n] = entry
            m.inputs[at + n] = STRETCH[m.relative[entry] >> np.uint32(20)]
    at = state.first_direct
    for k in range(m.direct_at.size):
        entry = (k * 256 + ((m.centres[DIRECT_OF[k]] + 8) >> 4)) * 256 + partial
        m.direct_at[k] = entry
        m.inputs[at + k] = STRETCH[m.direct[entry] >> np.uint32(20)]
    state.matched = match.gather(m.matches, m.match_maps, partial, shift, m.inputs, state.first_match)
    m.inputs[state.bias] = BIAS
    _select(m, middle - m.centres[m.centres.size - 1])


@inline
def _select(m, distance):
    """Select a row of each mixer weight set; `distance` is that of the byte from the mean of all predictions."""
    close, state = np.int64(0), m.state
    while close < 15 and abs(distance) >> (close + 2) > 0:
        close += 1
    m.rows[0] = FIRST_ROWS[0] + (state.plane * 8 + state.shift) * 16 + state.activity
    m.rows[1] = FIRST_ROWS[1] + state.partial
    m.rows[2] = FIRST_ROWS[2] + (2 * close + (distance > 0)) * 16 + state.activity
    m.rows[3] = FIRST_ROWS[3] + (state.plane * 16 + state.matched) * 8 + state.shift
    m.rows[4] = FIRST_ROWS[4] + state.nearby
    if m.rows.size > 5:
        place = (state.line & 7) * 8 + (state.column // state.pixel & 7)
        m.rows[5] = FIRST_ROWS[5] + state.plane * 64 + place


@inline
def mix(m):
    """Return the 32-bit probability that the next bit is a one: two mixer layers, then two APMs."""
    total, state = np.int64(0), m.state
    final = m.final_weights[state.plane * 8 + state.shift]
    for k in range(m.rows.size):
        logit = mixer.dot(m.weights[m.rows[k]], m.inputs)
        m.logits[k] = np.int32(logit)
        total += logit * np.int64(final[k])
    logit = clamp_logit(total >> 16)
    mixed = squash(logit)
    state.logit = logit
    state.mixed = mixed
    state.apm_row = state.plane * 256 + state.partial
    state.apm_level = (state.activity * 4 + state.before) * 8 + state.shift
    refined = mixer.refine(m.apm_byte, state.apm_row, logit) + mixer.refine(m.apm_level, state.apm_level, logit)
    return min(max((2 * mixed + refined) >> 2, 1), (1 << 32) - 1)


@inline
def learn(m, bit):
    """Train everything on the coded bit."""
    logit, target, state = m.state.logit, (bit << 32) - bit, m.state
    mixer.learn_apm(m.apm_byte, state.apm_row, logit, bit, APM_RATES[0])
    mixer.learn_apm(m.apm_level, state.apm_level, logit, bit, APM_RATES[1])
    for k in range(m.rows.size):
        error = (target - squash(np.int64(m.logits[k]))) >> 16
        mixer.train(m.weights[m.rows[k]], m.inputs, error, RATE)
    error = (target - state.mixed) >> 16
    mixer.train(m.final_weights[state.plane * 8 + state.shift], m.logits, error, FINAL_RATE)
    node, offset = np.uint64(state.node), np.uint32(bit << 8)
    for k in range(m.slot.size):
        index = np.uint64(m.slot[k]) + node
        m.slots[index] = histories.NEXT[offset | np.uint32(m.slots[index])]
        histories.learn(m.maps, m.entry[k], bit, MAP_LIMIT)
    for k in range(m.relative_at.size):
        histories.learn(m.relative, m.relative_at[k], bit, RELATIVE_LIMIT)
    for k in range(m.direct_at.size):
        histories.learn(m.direct, m.direct_at[k], bit, DIRECT_LIMIT)
    match.update_bit(m.matches, m.match_maps, bit, state.shift, MATCH_LIMIT)


@part
def code_byte(m, coder, coded, i, decoding):
    """Code the byte at `i` in either direction."""
    begin_byte(m, i)
    state, byte = m.state, np.int64(m.data[i])
    for shift in range(7, -1, -1):
        gather(m)
        probability = mix(m)
        if decoding:
            bit = arithmetic.decode(probability, coder, coded)
        else:
            bit = (byte >> shift) & 1
            arithmetic.encode(bit, probability, coder, coded)
        learn(m, bit)
        state.partial = 2 * state.partial + bit
        state.node = 2 * state.node + bit
        state.shift -= 1
        if shift == 5:
            histories.fetch_next_slots(m, state.partial)
        if shift == 4:
            histories.find_slots(m, np.uint64(state.partial))
    m.data[i] = np.uint8(state.partial & 255)
    step = state.column % state.pixel
    if step % state.sample == state.sample - 1:
        predictions.learn(m, i - state.sample + 1)
    match.update_byte(m.matches, m.least_lengths, m.match_table, m.data, i)
    state.column += 1
