"""Deep context mixing, levels 4 to 6: many contexts, several inputs from each, and a pretrained network, in one mix.

It has the steps of bytewise/model.py (begin_byte and begin_nibble; eight times gather, select, mix, learn, advance;
end_byte). Up to 14 weight sets mix all inputs, each selected by a context of its own. A second layer of mixers mixes
their logits, and four APMs refine the result. PAQ8 and cmix have these two layers in integers, this model in float32.
predictors.py lists the inputs.
"""

import numpy as np

from squeeze.codecs.deep import predictors
from squeeze.codecs.deep.arrays import APM, FINAL, FIRST_APM, FIRST_FINAL, FIRST_ROW, SET
from squeeze.codecs.deep.contexts import share_means
from squeeze.codecs.deep.predictor import Shared
from squeeze.codecs.deep.predictors import CONTEXTS, MATCHES, NETWORK
from squeeze.numerics import mixer_vectors, vectors
from squeeze.numerics.bitmodels import (
    cells,
    coder as arithmetic,
    context_state,
    copied,
    fields,
    instructions,
    meter as meters,
    mixer,
    records,
    risc,
    strides,
)
from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.bitmodels.frequencies import BYTES
from squeeze.numerics.jit import inline, prefetch
from squeeze.numerics.logistic import squash

_FINALS = len(FINAL)
_LARGEST_LOGIT = np.float32(15.9)
_LEAST_ERROR = np.float32(0.002)  # smallest error that updates a weight set


@inline
def begin_byte(m):
    """Start a byte: predictors prefetch what its bits will need. Work that does not touch the model may follow."""
    m.state.partial = 1
    m.state.shift = 7
    m.state.node = 1
    predictors.begin_byte(Shared(m.data, m.state, m.registers, m.inputs), m.predictors)


@inline
def begin_nibble(m):
    """Let predictors find their slots for the next four bits."""
    predictors.begin_nibble(Shared(m.data, m.state, m.registers, m.inputs), m.predictors)


@inline
def gather(m):
    """Let all predictors write their mixer inputs for the next bit."""
    _select_apms(m)
    _select_by_bytes(m)
    predictors.gather(Shared(m.data, m.state, m.registers, m.inputs), m.predictors, m.first)


@inline
def _select_apms(m):
    """Select and prefetch the rows of the APMs, which are used after the mixers."""
    r, partial = m.registers, np.uint64(m.state.partial)
    history = r[context_state.HISTORY]
    m.apm_rows[APM.bits] = FIRST_APM.bits + np.int64(partial)
    m.apm_rows[APM.latest] = FIRST_APM.latest + np.int64((history & np.uint64(0xFF)) * np.uint64(256) + partial)
    m.apm_rows[APM.order2] = FIRST_APM.order2 + np.int64(
        mix_hash(history & np.uint64(0xFFFF), partial) >> np.uint64(48)
    )
    m.apm_rows[APM.word] = FIRST_APM.word + np.int64(
        mix_hash(r[context_state.WORD] + (history & np.uint64(0xFFFFFF)), partial) >> np.uint64(48)
    )
    if m.state.cells:
        cell = r[context_state.CELLS + cells.CELL]
        unusual = r[context_state.CELLS + cells.UNUSUAL]
        m.apm_rows[APM.order2] = FIRST_APM.order2 + np.int64(mix_hash(cell + unusual, partial) >> np.uint64(48))
        m.apm_rows[APM.word] = FIRST_APM.word + np.int64(mix_hash(cell, partial) >> np.uint64(48))
    for k in range(APM.latest, len(APM)):
        for step in range(0, mixer.APM_STEPS, 16):
            prefetch(m.apms, m.apm_rows[k] * mixer.APM_STEPS + step)


@inline
def _select_by_bytes(m):
    """Select the rows of weight sets that follow from the bytes before, and prefetch them."""
    r, rows = m.registers, m.rows
    shift = m.state.shift
    history = r[context_state.HISTORY]
    latest = np.int64(history & np.uint64(0xFF))
    classes = np.int64(r[context_state.CLASSES] & np.uint64(0xFF))
    column = np.int64((r[context_state.LINE] >> np.uint64(16)) & np.uint64(0xFF))
    bracket = np.int64(r[context_state.BRACKET] & np.uint64(0xFF))
    outer = classes
    if m.state.machine:
        present, before = np.int64(r[context_state.INSTRUCTION]), np.int64(r[context_state.INSTRUCTIONS])
        if m.state.machine == 1:
            outer, column, bracket = instructions.selectors(present, before)
        else:
            outer, column, bracket = risc.selectors(present, before)
    elif m.state.record > 0:
        outer = np.int64(r[context_state.RECORDS + records.COLUMN])
        column = np.int64(r[context_state.RECORD] & np.uint64(0xFF))
        bracket = np.int64((r[context_state.RECORDS + records.LINEAR] >> np.uint64(8)) & np.uint64(0xFF))
    second = np.int64((history >> np.uint64(8)) & np.uint64(0xFF))
    if m.state.copied:
        second = fields.place_of(r[context_state.FIELDS :])
    third = np.int64((history >> np.uint64(16)) & np.uint64(0xFF))
    if m.state.cells:
        outer, third = cells.selectors(r[context_state.CELLS :], third)
    rows[SET.always] = FIRST_ROW.always
    rows[SET.latest] = FIRST_ROW.latest + latest * 8 + shift
    rows[SET.second] = FIRST_ROW.second + second * 8 + shift
    rows[SET.classes] = FIRST_ROW.classes + outer * 8 + shift
    rows[SET.expected] = FIRST_ROW.expected + np.int64(r[context_state.MATCH] & np.uint64(0xFF)) * 8 + shift
    rows[SET.column] = FIRST_ROW.column + column * 8 + shift
    rows[SET.third] = FIRST_ROW.third + third * 8 + shift
    rows[SET.word_length] = (
        FIRST_ROW.word_length
        + np.int64(r[context_state.WORD_LENGTH] & np.uint64(15)) * 128
        + (classes & 15) * 8
        + shift
    )
    rows[SET.bracket] = FIRST_ROW.bracket + bracket * 8 + shift
    m.final_rows[FINAL.latest] = FIRST_FINAL.latest + (outer if m.state.cells else latest) * 8 + shift
    width = m.inputs.size
    for k in range(SET.latest, m.state.sets):
        if k not in (SET.known, SET.top_prediction, SET.history2, SET.history3):
            for i in range(0, width, 16):
                prefetch(m.weights, rows[k] * width + i)


@inline
def select(m):
    """Select the other rows of weight sets; a row's first weights are those of the set without a context."""
    rows = m.rows
    partial, found, shift, known = m.state.partial, m.state.matched, m.state.shift, m.state.known
    rows[SET.bits] = FIRST_ROW.bits + partial + (256 * (1 + (found & 1)) if found else 0)
    rows[SET.known] = FIRST_ROW.known + (known * 16 + found) * 8 + shift
    rows[SET.top_prediction] = FIRST_ROW.top_prediction + m.state.top_prediction * 8 + shift
    rows[SET.history2] = FIRST_ROW.history2 + m.state.history2 * 8 + shift
    rows[SET.history3] = FIRST_ROW.history3 + m.state.history3 * 8 + shift
    width = m.inputs.size
    for k in range(m.state.sets):
        row = np.uint64(rows[k])
        if m.visits[row] == 0:
            start = row * np.uint64(width)
            for i in range(width):
                m.weights[start + np.uint64(i)] = m.weights[i]
    m.final_rows[FINAL.bits] = FIRST_FINAL.bits + partial
    m.final_rows[FINAL.known] = FIRST_FINAL.known + known * 16 + found
    m.final_rows[FINAL.top_prediction] = FIRST_FINAL.top_prediction + m.state.top_prediction * 8 + shift


@inline
def mix(m):
    """Return the 32-bit probability that the next bit is a one: two mixer layers, then four APMs."""
    width, deep = m.inputs.size, m.logits.size
    mixer_vectors.products(m.weights, m.rows, m.state.sets, m.inputs, width, m.logits, _LARGEST_LOGIT)
    total, finals, share = np.float32(0), _FINALS - 1, np.float32(1 / (_FINALS - 1))
    if m.state.has_network:
        m.logits[m.state.sets] = m.state.network_logit
        finals, share = _FINALS, np.float32(1 / _FINALS)
    mixer_vectors.products(m.finals, m.final_rows, _FINALS, m.logits, deep, m.final_logits, _LARGEST_LOGIT)
    for k in range(finals):
        total += m.final_logits[k]
    logit = mixer.to_q12(total * share)
    m.state.logit = logit
    mixed = squash(logit)
    m.state.mixed = mixed
    refined = 2 * mixed
    for k in range(len(APM)):
        refined += mixer.refine(m.apms, m.apm_rows[k], logit)
    refined += mixer.refine(m.apms, m.apm_rows[APM.latest], logit)
    refined += mixer.refine(m.apms, m.apm_rows[APM.order2], logit)
    return min(max(refined >> 3, 1), (1 << 32) - 1)


@inline
def learn(m, bit):
    """Train APMs, mixers and predictors on the coded bit."""
    logit = m.state.logit
    for k in range(len(APM)):
        mixer.learn_apm(m.apms, m.apm_rows[k], logit, bit, 6 if k == 0 else 5)
    width, deep = m.inputs.size, m.logits.size
    for k in range(m.state.sets):
        visits = m.visits[m.rows[k]]
        error = mixer.error_of(bit, squash(mixer.to_q12(m.logits[k])))
        if abs(error) >= _LEAST_ERROR:
            m.visits[m.rows[k]] = visits + 1
            rate = m.state.rate + m.state.first_rate / (np.float32(1) + np.float32(visits) * m.state.fading)
            vectors.add_scaled(m.weights, m.rows[k] * width, error * rate, m.inputs, 0, width)
        elif visits == 0:
            m.visits[m.rows[k]] = 1
    for k in range(_FINALS if m.state.has_network else _FINALS - 1):
        error = mixer.error_of(bit, squash(mixer.to_q12(m.final_logits[k])))
        vectors.add_scaled(m.finals, m.final_rows[k] * deep, error * m.state.final_rate, m.logits, 0, deep)
    update(m, bit)


@inline
def update(m, bit):
    """Update the predictors by a bit; `learn` updates the mixers."""
    predictors.update(Shared(m.data, m.state, m.registers, m.inputs), m.predictors, bit)


@inline
def advance(m, bit):
    """Append a bit to the partial byte; after the fourth, start the second nibble."""
    m.state.partial = 2 * m.state.partial + bit
    m.state.node = 2 * m.state.node + bit
    m.state.shift -= 1
    if m.state.shift == 3:
        m.state.node = 1
        begin_nibble(m)


@inline
def end_byte(m, position):
    """Append the byte to the history registers, and let the predictors update."""
    m.data[position] = np.uint8(m.state.partial & 255)
    predictors.prefetch(Shared(m.data, m.state, m.registers, m.inputs), m.predictors, position)
    context_state.update_byte(
        m.registers, m.followed1, m.followed2, m.followed3, m.stack, m.data, position, m.state.record
    )
    if m.state.machine:
        context_state.update_instruction(m.registers, m.state.machine)
    if m.state.lines:
        of_fields = m.registers[context_state.FIELDS :]
        fields.update_byte(of_fields, m.places, m.numbers, m.data, position + 1)
        if m.state.copied:
            of_copied = m.registers[context_state.COPIED :]
            copied.update_byte(of_copied, of_fields, m.distances, m.data, position + 1)
    if m.state.strides:
        of_strides = m.registers[context_state.STRIDES :]
        strides.update_byte(of_strides, m.positions, m.data, position + 1)
    if m.state.record > 0:
        of_records = m.registers[context_state.RECORDS :]
        records.update_byte(of_records, m.data, position + 1, m.state.record)
        if m.state.cells:
            of_cells = m.registers[context_state.CELLS :]
            cells.update_byte(of_cells, of_records, m.usual, m.data, position + 1, m.state.record)
    predictors.end_byte(Shared(m.data, m.state, m.registers, m.inputs), m.predictors, position)


@inline
def code_byte(m, coder, coded, position, decoding, meter):
    """Code one byte of the block in either direction, after `begin_byte`; the meter notes every bit, if there is
    one."""
    begin_nibble(m)
    byte = np.int64(m.data[position])
    for shift in range(7, -1, -1):
        gather(m)
        select(m)
        probability = mix(m)
        if shift == 4:
            predictors.fetch_nibble(
                Shared(m.data, m.state, m.registers, m.inputs), m.predictors, 2 * m.state.partial + (probability >> 31)
            )
        if decoding:
            bit = arithmetic.decode(probability, coder, coded)
        else:
            bit = (byte >> shift) & 1
            arithmetic.encode(bit, probability, coder, coded)
        if meter is not None:
            meter_bit(meter, m, bit, probability)
        learn(m, bit)
        advance(m, bit)
    end_byte(m, position)


@inline
def meter_begin_byte(meter, m, unit, begin):
    """Start a unit of the meter for a byte: note the longest match and the network's candidates.

    Args:
        meter: bitmodels/meter.py.
        m: the model.
        unit: the byte's number in the block.
        begin: first byte of the block in the model's data.
    """
    meters.begin(meter)
    matches = m.predictors[MATCHES].state
    best = meters.longest(matches)
    if best >= 0:
        meters.follow(meter, unit, matches[best].pointer - begin, matches[best].length)
    if m.state.has_network:
        counts = m.predictors[NETWORK].counts
        filled, total = 0, np.float64(counts[1])
        for byte in range(BYTES):
            filled = meters.candidate(meter, unit, byte, counts[BYTES + byte] / total, filled)


@inline
def meter_end_byte(meter, m, unit, position):
    """Note the bits that the network alone would have needed for the byte, and finish its unit."""
    if m.state.has_network:
        counts = m.predictors[NETWORK].counts
        count = counts[BYTES + np.int64(m.data[position])]
        meter.model_bits[unit] = np.float32(np.log2(np.float64(counts[1]) / np.float64(count)))
    meters.finish(meter, unit)


@inline
def meter_bit(meter, m, bit, probability):
    """Note a coded bit's probability and each input's contribution, before anything is trained on it."""
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
