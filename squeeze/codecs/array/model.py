"""The model of arrays: a number is binary decisions, high bit first, mixed as by the bytewise models.

A bit halves the interval that the number is in. Each prediction (predictions.py) with the scale of its latest errors is
a logistic distribution, which has a probability for each half. Curves learn what that probability is worth. Bit
histories of hashed contexts (contexts.py) know repeated numbers and the patterns of bytes.
"""

import numpy as np

from squeeze.codecs.array import predictions
from squeeze.codecs.array.contexts import find_slots, hash_byte, hash_number
from squeeze.codecs.array.state import BUCKETS, DISTANCES, FIRST_ROWS, MARGIN, WIDTHS
from squeeze.numerics.bitmodels import coder as arithmetic, histories, mixer
from squeeze.numerics.jit import inline, part
from squeeze.numerics.logistic import LOGIT_MAX, STRETCH, clamp_logit, squash

BIAS = 1024
MAP_LIMIT, CURVE_LIMIT = 1023, 1023
RATE, FINAL_RATE = 5, 1
APM_RATE = 6
POWERS = np.array([4096, 3922, 3756, 3597, 3444, 3298, 3158, 3025, 2896, 2774, 2656, 2543, 2435, 2332, 2233, 2139])


@inline
def _share(m, k, middle):
    """Return the probability by prediction `k`, of 32 bits, of a number below `middle`."""
    d, whole = 2 * predictions.distance(middle, m.values[k]) - 1, m.scales[k] >> 4
    if abs(d) >> (whole + 5) > 0:
        return squash(LOGIT_MAX if d > 0 else -LOGIT_MAX)
    if whole > 40:
        d >>= whole - 40
        whole = 40
    return squash(clamp_logit(((d << 12) >> whole) * POWERS[m.scales[k] & 15] >> 12))


@inline
def _class(m, k, middle):
    """Return the entry of prediction `k` for a place of the bit, and the distance of `middle` from the prediction."""
    d, n = predictions.distance(middle, m.values[k]), np.int64(0)
    size = abs(d)
    while size >> n > 0:
        n += 1
    leading = (size >> (n - 3) if n > 3 else size << (3 - n)) & 3
    nearness = min(max(n - m.state.place + 9, 0), DISTANCES // 4 - 1)
    return ((k * 64 + m.state.place) * 2 + (d > 0)) * DISTANCES + 4 * nearness + leading


@inline
def gather(m, place, partial):
    """Write the logits of all maps to the mixer's inputs; `partial` has the bits of the byte after a leading one."""
    node, state = np.uint64(m.state.node), m.state
    for k in range(m.slot.size):
        history = m.slots[np.uint64(m.slot[k]) + node]
        entry = np.uint32(k * 256) + np.uint32(history)
        m.entry[k] = entry
        m.inputs[k] = STRETCH[m.maps[entry] >> np.uint32(20)] if history else 0
    middle = state.at + (np.int64(1) << state.place)
    for k in range(m.values.size):
        share = min(max(_share(m, k, middle), m.below[k]), m.upto[k])
        m.middle[k] = share
        logit = np.int64(STRETCH[((m.upto[k] - share + 1) << 12) // (m.upto[k] - m.below[k] + 2)])
        bucket = min(max((logit + 16384) >> 9, 0), BUCKETS - 1)
        width = min(max(state.place + 7 - (m.scales[k] >> 4), 0), WIDTHS - 1)
        entry = (k * WIDTHS + width) * BUCKETS + bucket
        m.curve_at[k] = entry
        m.inputs[m.slot.size + k] = logit
        m.inputs[state.first_curve + k] = STRETCH[m.curves[entry] >> np.uint32(20)]
        entry = _class(m, k, middle)
        m.place_at[k] = entry
        m.inputs[state.first_place + k] = STRETCH[m.places[entry] >> np.uint32(20)]
        if k == state.best:
            state.width = width
            state.bucket = bucket
    m.inputs[state.bias] = BIAS
    state.apm_byte = place * 256 + partial
    state.apm_width = state.width * BUCKETS + state.bucket
    m.rows[0] = FIRST_ROWS[0] + state.apm_width
    m.rows[1] = FIRST_ROWS[1] + state.apm_byte
    if m.rows.size > 2:
        m.rows[2] = FIRST_ROWS[2] + state.place * 4 + min(state.column, 3)
        m.rows[3] = FIRST_ROWS[3] + state.best * WIDTHS + state.width


@inline
def mix(m):
    """Return the 32-bit probability that the next bit is a one: two mixer layers, then two APMs."""
    total, state = np.int64(0), m.state
    final = m.final_weights[state.place]
    for k in range(m.rows.size):
        logit = mixer.dot(m.weights[m.rows[k]], m.inputs)
        m.logits[k] = np.int32(logit)
        total += logit * np.int64(final[k])
    logit = clamp_logit(total >> 16)
    mixed = squash(logit)
    state.logit = logit
    state.mixed = mixed
    refined = mixer.refine(m.byte_apm, state.apm_byte, logit) + mixer.refine(m.width_apm, state.apm_width, logit)
    return min(max((2 * mixed + refined) >> 2, 1), (1 << 32) - 1)


@inline
def learn(m, bit):
    """Train everything on the coded bit."""
    logit, target, state = m.state.logit, (bit << 32) - bit, m.state
    mixer.learn_apm(m.byte_apm, state.apm_byte, logit, bit, APM_RATE)
    mixer.learn_apm(m.width_apm, state.apm_width, logit, bit, APM_RATE)
    for k in range(m.rows.size):
        error = (target - squash(np.int64(m.logits[k]))) >> 16
        mixer.train(m.weights[m.rows[k]], m.inputs, error, RATE)
    error = (target - state.mixed) >> 16
    mixer.train(m.final_weights[state.place], m.logits, error, FINAL_RATE)
    node, offset = np.uint64(state.node), np.uint32(bit << 8)
    for k in range(m.slot.size):
        index = np.uint64(m.slot[k]) + node
        m.slots[index] = histories.NEXT[offset | np.uint32(m.slots[index])]
        histories.learn(m.maps, m.entry[k], bit, MAP_LIMIT)
    for k in range(m.values.size):
        histories.learn(m.curves, m.curve_at[k], bit, CURVE_LIMIT)
        histories.learn(m.places, m.place_at[k], bit, CURVE_LIMIT)
        if bit:
            m.below[k] = m.middle[k]
        else:
            m.upto[k] = m.middle[k]


@part
def code_number(m, coder, coded, i, decoding):
    """Code number `i` in either direction."""
    state, number = m.state, m.numbers[MARGIN + i]
    state.column = i % state.columns
    predictions.predict(m, i)
    hash_number(m, i)
    for k in range(m.values.size):
        m.below[k] = 0
        m.upto[k] = np.int64(1) << 32
    state.at = -(np.int64(1) << (state.bits - 1))
    state.place = state.bits - 1
    prefix = np.int64(1)
    for byte in range((state.bits >> 3) - 1, -1, -1):
        hash_byte(m, i, byte, prefix)
        partial = np.int64(1)
        for shift in range(7, -1, -1):
            if shift == 7 or shift == 3:
                find_slots(m, prefix, partial)
            gather(m, byte, partial)
            probability = mix(m)
            if decoding:
                bit = arithmetic.decode(probability, coder, coded)
            else:
                bit = (number >> state.place) & 1
                if state.place == state.bits - 1:
                    bit = 1 - bit
                arithmetic.encode(bit, probability, coder, coded)
            learn(m, bit)
            partial = 2 * partial + bit
            prefix = 2 * prefix + bit
            state.node = 2 * state.node + bit
            state.at += bit << state.place
            state.place -= 1
    m.numbers[MARGIN + i] = state.at
    predictions.learn(m, i)
