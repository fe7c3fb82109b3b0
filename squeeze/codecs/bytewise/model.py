"""Bytewise context mixing, levels 1 to 3: a byte is eight binary decisions, high bit first, as in PAQ.

Each context is hashed to a slot of bit histories, and an adaptive map turns a history into a probability (indirect
context modelling, as in lpaq). Match models predict the bit that followed the longest match. Weight sets that small
contexts select mix the stretched probabilities, and a second mixer mixes their logits. Two adaptive probability maps
(APM, or SSE) refine the result. The parts are those of Mahoney's PAQ8 and lpaq.

The steps of one byte, so that other coders can drive the model too:

    begin_byte
    eight times: gather, select, mix -> probability, [code the bit], learn, advance
    end_byte

`code_byte` is one such driver, for both directions. A caller's own predictor asks `build_model` for extra inputs, and
writes its logits to `inputs[state.first_extra:]` between `gather` and `mix`. If a bit is forced and not coded, the
driver calls `gather` and `advance` only, and `learn` too if the models should train on it.
"""

import numpy as np

from squeeze.codecs.bytewise.state import FIRST_ROW
from squeeze.numerics.bitmodels import (
    coder as arithmetic,
    contexts,
    fields,
    histories,
    match,
    meter as meters,
    mixer,
    records,
)
from squeeze.numerics.jit import inline, prefetch
from squeeze.numerics.logistic import STRETCH, clamp_logit, squash

BIAS = 1024  # Q12: a constant input
MAP_LIMIT, MATCH_LIMIT = 511, 255  # largest counts of adaptive maps: the rate falls to 1 / limit
RATE, FINAL_RATE = 10, 1
APM_RATES = (6, 5)


@inline
def begin_byte(m):
    """Hash every context for the next byte, and find the slots of its first nibble."""
    hash_contexts(m)
    expect_byte(m)


@inline
def hash_contexts(m):
    """Hash every context for the next byte, and prefetch what `expect_byte` and the first bit look up."""
    for i in range(m.hashes.size):
        spec = m.specs[i]
        m.hashes[i] = contexts.context_hash(m.registers, np.int64(spec[0]), spec[1], spec[2], np.uint64(i))
    histories.fetch_slots(m, np.uint64(0))
    _fetch_apm(m, 1)


@inline
def expect_byte(m):
    """Start the next byte: find the slots of its first nibble, and the byte that each match expects."""
    match.expect(m.matches, m.data)
    m.state.partial = 1
    m.state.shift = 7
    histories.find_slots(m, np.uint64(0))


@inline
def _apm_row(m, partial):
    """Return the row of the second APM for the bit after `partial`, by the last two bytes."""
    order2 = m.registers[contexts.HISTORY] & np.uint64(0xFFFF)
    return np.int64(contexts.mix_hash(order2, np.uint64(partial)) >> np.uint64(48))


@inline
def _fetch_apm(m, partial):
    first = _apm_row(m, partial) * mixer.APM_STEPS
    for step in range(0, mixer.APM_STEPS, 16):
        prefetch(m.apm_order2, first + step)


@inline
def gather(m):
    """Write the stretched probabilities of all contexts and match models to the mixer's inputs."""
    node, known, n = np.uint64(m.state.node), 0, m.slot.size
    m.state.apm_row = _apm_row(m, m.state.partial)
    if m.state.shift:
        _fetch_apm(m, 2 * m.state.partial)
        _fetch_apm(m, 2 * m.state.partial + 1)
    for i in range(n):
        history = m.slots[np.uint64(m.slot[i]) + node]
        entry = np.uint32(i * 256) + np.uint32(history)
        m.entry[i] = entry
        m.inputs[i] = STRETCH[m.maps[entry] >> np.uint32(20)] if history else 0
        known += history > 0
    partial = m.state.partial
    found = match.gather(m.matches, m.match_maps, partial, m.state.shift, m.inputs, n)
    m.inputs[m.state.bias] = BIAS
    m.state.known = known * 7 // n
    m.state.matched = found


@inline
def select(m):
    """Select a row of each mixer weight set by its context."""
    partial, found = m.state.partial, m.state.matched
    latest = np.int64(m.registers[contexts.HISTORY] & np.uint64(0xFF))
    if m.state.record > 0:
        latest = np.int64(m.registers[contexts.RECORDS + records.COLUMN])
    selectors = m.rows.size
    m.state.match_row = 256 * found + partial
    m.rows[0] = FIRST_ROW.bits + m.state.match_row
    if selectors > 1:
        m.rows[1] = FIRST_ROW.latest + latest * 8 + m.state.shift
    if selectors > 2:
        m.rows[2] = FIRST_ROW.known + m.state.known * 16 + found


@inline
def mix(m):
    """Return the 32-bit probability that the next bit is a one: two mixer layers, then two APMs."""
    total = np.int64(0)
    final = m.final_weights[m.state.partial]
    for k in range(m.rows.size):
        logit = mixer.dot(m.weights[m.rows[k]], m.inputs)
        m.logits[k] = np.int32(logit)
        total += logit * np.int64(final[k])
    logit = clamp_logit(total >> 16)
    m.state.logit = logit
    mixed = squash(logit)
    m.state.mixed = mixed
    refined = mixed + mixer.refine(m.apm_match, m.state.match_row, logit)
    refined += 2 * mixer.refine(m.apm_order2, m.state.apm_row, logit)
    return min(max(refined >> 2, 1), (1 << 32) - 1)


@inline
def learn(m, bit):
    """Train APMs, mixers, maps and histories on the coded bit."""
    logit, target = m.state.logit, (bit << 32) - bit
    mixer.learn_apm(m.apm_match, m.state.match_row, logit, bit, APM_RATES[0])
    mixer.learn_apm(m.apm_order2, m.state.apm_row, logit, bit, APM_RATES[1])
    for k in range(m.rows.size):
        error = (target - squash(np.int64(m.logits[k]))) >> 16
        mixer.train(m.weights[m.rows[k]], m.inputs, error, RATE)
    error = (target - m.state.mixed) >> 16
    mixer.train(m.final_weights[m.state.partial], m.logits, error, FINAL_RATE)
    _update(m, bit)


@inline
def _update(m, bit):
    """Update bit histories, adaptive maps and match models by a bit; `learn` updates the mixers."""
    node, offset = np.uint64(m.state.node), np.uint32(bit << 8)
    for i in range(m.slot.size):
        index = np.uint64(m.slot[i]) + node
        m.slots[index] = histories.NEXT[offset | np.uint32(m.slots[index])]
        histories.learn(m.maps, m.entry[i], bit, MAP_LIMIT)
    match.update_bit(m.matches, m.match_maps, bit, m.state.shift, MATCH_LIMIT)


@inline
def advance(m, bit):
    """Append a bit to the partial byte; after the fourth, find the slots of the second nibble."""
    m.state.partial = 2 * m.state.partial + bit
    m.state.node = 2 * m.state.node + bit
    m.state.shift -= 1
    if m.state.shift == 4:
        histories.fetch_next_slots(m, m.state.partial)
    if m.state.shift == 3:
        histories.find_slots(m, np.uint64(m.state.partial))


@inline
def end_byte(m, position):
    """Append the byte to the history registers, and update the match models."""
    append_byte(m, position)
    match.update_byte(m.matches, m.least_lengths, m.match_table, m.data, position)


@inline
def append_byte(m, position):
    """Append the byte to the history registers, and prefetch what the match models look up."""
    m.data[position] = np.uint8(m.state.partial & 255)
    match.fetch(m.least_lengths, m.match_table, m.data, position)
    record = -1 if m.state.lines else m.state.record
    contexts.update_byte(m.registers, m.followed1, m.followed2, m.data, position, record)
    if m.state.lines:
        with_above = m.state.above > 0
        fields.update_byte(m.registers[contexts.FIELDS :], m.places, m.numbers, m.data, position + 1, with_above)
    if m.state.record > 0:
        records.update_byte(m.registers[contexts.RECORDS :], m.data, position + 1, m.state.record)


@inline
def code_byte(m, coder, coded, position, decoding, meter):
    """Code one byte of the block in either direction; the meter, if there is one, notes every bit."""
    begin_byte(m)
    code_bits(m, coder, coded, position, decoding, meter)
    end_byte(m, position)


@inline
def code_bits(m, coder, coded, position, decoding, meter):
    """Code the eight bits of a byte that has begun."""
    byte = np.int64(m.data[position])
    for shift in range(7, -1, -1):
        gather(m)
        select(m)
        probability = mix(m)
        if decoding:
            bit = arithmetic.decode(probability, coder, coded)
        else:
            bit = (byte >> shift) & 1
            arithmetic.encode(bit, probability, coder, coded)
        if meter is not None:
            meter_bit(meter, m, bit, probability)
        learn(m, bit)
        advance(m, bit)


@inline
def meter_begin_byte(meter, m, unit):
    """Start a unit of the meter for a byte, and note the longest match."""
    meters.begin(meter)
    best = meters.longest(m.matches)
    if best >= 0:
        meters.follow(meter, unit, m.matches[best].pointer, m.matches[best].length)


@inline
def meter_bit(meter, m, bit, probability):
    """Note a coded bit's probability and each input's contribution, before anything is trained on it."""
    meters.decide(meter, bit, probability, m.state.shift)
    meter.terms[:] = 0.0
    final = m.final_weights[m.state.partial]
    for k in range(m.rows.size):
        weights, scale = m.weights[m.rows[k]], final[k] * 2.0**-44
        for i in range(m.inputs.size):
            meter.terms[i] += scale * weights[i] * m.inputs[i]
    meters.share(meter, 0, bit, probability, m.state.mixed)
