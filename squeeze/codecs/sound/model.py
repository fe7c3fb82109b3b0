"""The model of sounds: a sample is binary decisions, high bit first, mixed as by the bytewise models.

A bit halves the interval that the sample is in. Each prediction (predictions.py) with the scale of its latest errors is
a logistic distribution, which has a probability for each half. Curves learn what that probability is worth. Bit
histories of hashed contexts and a match model know what distributions cannot: values that are rare, and repeats.
"""

import numpy as np

from squeeze.codecs.sound import predictions
from squeeze.codecs.sound.state import BUCKETS, FIRST_ROWS, FRACTION, MARGIN, WIDTHS
from squeeze.numerics.bitmodels import coder as arithmetic, histories, match, mixer
from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.jit import inline, part
from squeeze.numerics.logistic import STRETCH, clamp_logit, squash

BIAS = 1024
MAP_LIMIT, CURVE_LIMIT, MATCH_LIMIT = 255, 1023, 255
RATE, FINAL_RATE = 6, 1
APM_RATES = (6, 6)
_TO_LOGIT = 28  # 40 bits of an inverse scale, less the 12 of a logit


@inline
def _at(m, k, place):
    """Return the probability by prediction `k`, of 32 bits, of a sample below a place, which has 8 fractional bits."""
    distance = min(max(place - m.values[k], -m.reach[k]), m.reach[k])
    return squash(clamp_logit(distance * m.inverse[k] >> _TO_LOGIT))


@part
def _hash_contexts(m, i):
    """Write the hash of each context of sample `i`: samples before it, and predictions."""
    at, step, h = MARGIN + i, m.state.channels, m.hashes
    a, b, c = m.samples[at - step], m.samples[at - 2 * step], m.samples[at - 3 * step]
    other = m.samples[at - 1] if step > 1 else np.int64(0)
    first, span = m.values[0], max(m.state.span - 2, 0)
    h[0] = np.uint64(first >> span)
    h[1] = np.uint64(a)
    if h.size > 2:
        h[2] = np.uint64(0)
        h[3] = mix_hash(np.uint64(a), np.uint64(b))
        h[4] = mix_hash(h[3], np.uint64(c))
        h[5] = mix_hash(np.uint64(other), np.uint64(1))
        h[6] = mix_hash(np.uint64(a), np.uint64(other))
        h[7] = np.uint64((first + 128) >> FRACTION)
        h[8] = np.uint64(m.values[m.outputs.size + 1] >> max(span - 1, 0))
        h[9] = np.uint64(m.values[m.outputs.size + 2] >> span)
        h[10] = mix_hash(np.uint64(2 * a - b), np.uint64(m.state.pattern))
        h[11] = mix_hash(h[0], np.uint64(m.values[m.outputs.size + 1] >> span))
    for k in range(h.size):
        h[k] = mix_hash(h[k], np.uint64(k) << np.uint64(8) | np.uint64(m.state.channel))


@inline
def begin_sample(m, i):
    """Predict sample `i`, and hash its contexts."""
    state = m.state
    state.channel = i % state.channels
    predictions.predict(m, i)
    _hash_contexts(m, i)
    histories.fetch_slots(m, np.uint64(1))
    low = -(np.int64(1) << (state.bits - 1))
    for k in range(m.values.size):
        m.below[k] = 0
        m.upto[k] = np.int64(1) << 32
    state.at = low
    state.shift = state.bits - 1


@inline
def gather(m, partial, shift):
    """Write the logits of all maps to the mixer's inputs; `partial` and `shift` are those of the byte."""
    node, state = np.uint64(m.state.node), m.state
    for k in range(m.slot.size):
        history = m.slots[np.uint64(m.slot[k]) + node]
        entry = np.uint32(k * 256) + np.uint32(history)
        m.entry[k] = entry
        m.inputs[k] = STRETCH[m.maps[entry] >> np.uint32(20)] if history else 0
    middle = (state.at + (np.int64(1) << state.shift) << FRACTION) - (1 << (FRACTION - 1))
    width = min(max(state.shift + FRACTION - state.span + 6, 0), WIDTHS - 1)
    state.width = width
    at = m.slot.size
    for k in range(m.values.size):
        share = _at(m, k, middle)
        share = min(max(share, m.below[k]), m.upto[k])
        m.middle[k] = share
        logit = np.int64(STRETCH[((m.upto[k] - share + 1) << 12) // (m.upto[k] - m.below[k] + 2)])
        bucket = min(max((logit + (BUCKETS // 2 * 512)) >> 9, 0), BUCKETS - 1)
        entry = (k * WIDTHS + width) * BUCKETS + bucket
        m.curve_at[k] = entry
        m.inputs[at + k] = logit
        m.inputs[state.first_map + k] = STRETCH[m.curves[entry] >> np.uint32(20)]
        if k == 0:
            state.bucket = bucket
    state.matched = match.gather(m.matches, m.match_maps, partial, shift, m.inputs, state.first_match)
    m.inputs[state.bias] = BIAS
    _select(m)


@inline
def _select(m):
    """Select a row of each mixer weight set."""
    state = m.state
    second = state.channel > 0
    m.rows[0] = FIRST_ROWS[0] + (state.width * 2 + second) * 2 + (state.matched > 0)
    m.rows[1] = FIRST_ROWS[1] + state.shift * 8 + state.ratio
    if m.rows.size > 2:
        m.rows[2] = FIRST_ROWS[2] + state.width * BUCKETS + state.bucket
        m.rows[3] = FIRST_ROWS[3] + state.matched * 32 + state.shift
        m.rows[5] = FIRST_ROWS[5] + state.pattern
        m.rows[4] = FIRST_ROWS[4] + state.ratio * WIDTHS + state.width


@inline
def mix(m):
    """Return the 32-bit probability that the next bit is a one: two mixer layers, then two APMs."""
    total, state = np.int64(0), m.state
    final = m.final_weights[state.shift]
    for k in range(m.rows.size):
        logit = mixer.dot(m.weights[m.rows[k]], m.inputs)
        m.logits[k] = np.int32(logit)
        total += logit * np.int64(final[k])
    logit = clamp_logit(total >> 16)
    mixed = squash(logit)
    state.logit = logit
    state.mixed = mixed
    state.apm_row = state.width * BUCKETS + state.bucket
    state.apm_place = state.shift * 64 + (state.at >> state.shift + 1 & 63)
    refined = mixer.refine(m.apm_width, state.apm_row, logit) + mixer.refine(m.apm_place, state.apm_place, logit)
    return min(max((2 * mixed + refined) >> 2, 1), (1 << 32) - 1)


@inline
def learn(m, bit, shift):
    """Train everything on the coded bit; `shift` is its place in the byte."""
    logit, target, state = m.state.logit, (bit << 32) - bit, m.state
    mixer.learn_apm(m.apm_width, state.apm_row, logit, bit, APM_RATES[0])
    mixer.learn_apm(m.apm_place, state.apm_place, logit, bit, APM_RATES[1])
    for k in range(m.rows.size):
        error = (target - squash(np.int64(m.logits[k]))) >> 16
        mixer.train(m.weights[m.rows[k]], m.inputs, error, RATE)
    error = (target - state.mixed) >> 16
    mixer.train(m.final_weights[state.shift], m.logits, error, FINAL_RATE)
    node, offset = np.uint64(state.node), np.uint32(bit << 8)
    for k in range(m.slot.size):
        index = np.uint64(m.slot[k]) + node
        m.slots[index] = histories.NEXT[offset | np.uint32(m.slots[index])]
        histories.learn(m.maps, m.entry[k], bit, MAP_LIMIT)
    for k in range(m.values.size):
        histories.learn(m.curves, m.curve_at[k], bit, CURVE_LIMIT)
        if bit:
            m.below[k] = m.middle[k]
        else:
            m.upto[k] = m.middle[k]
    match.update_bit(m.matches, m.match_maps, bit, shift, MATCH_LIMIT)


@part
def code_sample(m, coder, coded, i, decoding):
    """Code sample `i` in either direction."""
    begin_sample(m, i)
    state, sample, first = m.state, m.samples[MARGIN + i], 8 + i * (m.state.bits >> 3)
    offset = sample + (np.int64(1) << (state.bits - 1))
    prefix = np.int64(1)
    for place in range(state.bits >> 3):
        match.expect(m.matches, m.data)
        partial = np.int64(1)
        for shift in range(7, -1, -1):
            if shift == 7 or shift == 3:
                histories.find_slots(m, np.uint64(prefix))
            gather(m, partial, shift)
            probability = mix(m)
            if decoding:
                bit = arithmetic.decode(probability, coder, coded)
            else:
                bit = (offset >> state.shift) & 1
                arithmetic.encode(bit, probability, coder, coded)
            learn(m, bit, shift)
            partial = 2 * partial + bit
            prefix = 2 * prefix + bit
            if shift == 5 or (shift == 1 and state.shift > 1):
                histories.fetch_next_slots(m, prefix)
            state.node = 2 * state.node + bit
            state.at += bit << state.shift
            state.shift -= 1
        m.data[first + place] = np.uint8(partial & 255)
        match.update_byte(m.matches, m.least_lengths, m.match_table, m.data, first + place)
    m.samples[MARGIN + i] = state.at
    predictions.learn(m, i)
