"""The model of deep context mixing: what levels 4 to 6 know of the next bit, and how they mix it.

As bytewise.py in its steps (begin_byte; eight times gather, select, mix,
learn, advance; end_byte), with more contexts, more evidence from each, weight
sets chosen in more ways, and a predictor beside them: the state-space model.
A context gives four inputs: the adaptive map of its bit history as a logit and
as a distance from one half, its counter, and the byte that last followed it. The
mixers see how far each of them is from the mean of its kind, that mean, and
how far from it the means of three groups of contexts are.
"""

import numpy as np

from squeeze.codecs.bitmodels import evidence, histories, match, mixer, network, ssm
from squeeze.codecs.bitmodels import surroundings as around
from squeeze.codecs.bitmodels.contexts import mix_hash
from squeeze.codecs.deep.arrays import (
    APM_ROWS,
    APMS,
    BUCKETS,
    FADING,
    FINAL_RATE,
    FINAL_ROWS,
    FINALS,
    FIRST_RATE,
    KNOWN,
    LEARNED,
    LOGIT,
    MATCHED,
    MIXED,
    NODE,
    OUTLOOK,
    OUTLOOKS,
    PARTIAL,
    PER_CONTEXT,
    RATE,
    RECORD,
    RUN_MASK,
    SETS,
    SHIFT,
    SSM,
    SSM_ENTRY,
)
from squeeze.codecs.deep.presets import GROUPS
from squeeze.numerics import vectors
from squeeze.numerics.jit import inline, prefetch
from squeeze.numerics.logistic import squash

_MEAN_SCALE = np.float32(2)
_LEAST_ERROR = np.float32(0.002)  # from which a weight set learns
_MAP_LIMIT, _MATCH_LIMIT = 511, 255  # observations that an adaptive map remembers


@inline
def _find_slots(m, salt):
    """Enter the slots of this nibble: all are asked for before any is read."""
    buckets = m.settings[BUCKETS]
    n = m.hashes.size
    for i in range(n):
        evidence.fetch(m.slots, mix_hash(m.hashes[i], salt), buckets)
    for i in range(n):
        h = mix_hash(m.hashes[i], salt)
        slot = evidence.find_slot(m.slots, m.counters, h, buckets)
        m.history_at[i] = evidence.histories_at(slot)
        if m.settings[LEARNED] and m.slots[m.history_at[i] + 1] == 0:
            evidence.recall(m.slots, m.counters, slot, m.learned, m.learned_counters, h, m.settings[LEARNED])
        m.counter_at[i] = evidence.counters_at(slot)
    m.scalars[NODE] = 1


@inline
def begin_byte(m):
    """Hash the contexts of a byte and enter their slots."""
    r = m.registers
    match.begin_byte(m.matches, m.data)
    first, second, length = np.int64(0), np.int64(0), np.int64(0)
    for k in range(m.matches.shape[0] - 1, -1, -1):
        if m.matches[k, match.EXPECTED] and m.matches[k, match.LENGTH] >= length:
            second = first
            first = m.matches[k, match.EXPECTED]
            length = m.matches[k, match.LENGTH]
    cls = min(length, 15) if length < 16 else min(12 + (length >> 4), 15)
    r[around.MATCH] = np.uint64(first | (cls << 9) | (second << 16))
    for i in range(m.hashes.size):
        h = mix_hash(r[around.HISTORY] & m.specs[i, 3], np.uint64(i))
        h = mix_hash(r[m.specs[i, 0]] & m.specs[i, 1], h)
        m.hashes[i] = mix_hash(r[m.specs[i, 2]], h)
        m.run_at[i] = np.int64(m.hashes[i] >> np.uint64(40)) & m.settings[RUN_MASK]
        prefetch(m.runs, i * m.runs.shape[1] + m.run_at[i])
    m.scalars[PARTIAL] = 1
    m.scalars[SHIFT] = 7
    _find_slots(m, np.uint64(0))


@inline
def _note_outlook(m):
    """What the state-space model's likeliest byte says of the next bit."""
    outside = np.int64(m.registers[around.OUTSIDE])
    top, sure, shift = (outside & 255) | 256, (outside >> 8) & 7, m.scalars[SHIFT]
    says = 1 + ((top >> shift) & 1) if top >> (shift + 1) == m.scalars[PARTIAL] else 0
    m.scalars[OUTLOOK] = sure * 3 + says


@inline
def _centre(m):
    """Take from every input of a context that is not 0 the mean of those of its kind; the means become inputs too, and
    those of each group of contexts less the whole mean.

    What contexts agree on is most of what they say. Apart from it, a step of learning can tell them from each other.
    """
    n = m.hashes.size
    zero, one = np.float32(0), np.float32(1)
    total0, total1, total2, total3 = zero, zero, zero, zero
    count0, count1, count2, count3 = zero, zero, zero, zero
    at = PER_CONTEXT * (n + 1)
    for g in range(GROUPS):
        sum0, sum1, sum2, sum3 = zero, zero, zero, zero
        some0, some1, some2, some3 = zero, zero, zero, zero
        for i in range(PER_CONTEXT * m.groups[g], PER_CONTEXT * m.groups[g + 1], PER_CONTEXT):
            x0, x1, x2, x3 = m.inputs[i], m.inputs[i + 1], m.inputs[i + 2], m.inputs[i + 3]
            sum0 += x0
            sum1 += x1
            sum2 += x2
            sum3 += x3
            some0 += one if x0 != zero else zero
            some1 += one if x1 != zero else zero
            some2 += one if x2 != zero else zero
            some3 += one if x3 != zero else zero
        m.inputs[at] = sum0 / max(some0, one)
        m.inputs[at + 1] = sum1 / max(some1, one)
        m.inputs[at + 2] = sum2 / max(some2, one)
        m.inputs[at + 3] = sum3 / max(some3, one)
        total0, total1, total2, total3 = total0 + sum0, total1 + sum1, total2 + sum2, total3 + sum3
        count0, count1, count2, count3 = count0 + some0, count1 + some1, count2 + some2, count3 + some3
        at += PER_CONTEXT
    mean0, mean1 = total0 / max(count0, one), total1 / max(count1, one)
    mean2, mean3 = total2 / max(count2, one), total3 / max(count3, one)
    for i in range(0, PER_CONTEXT * n, PER_CONTEXT):
        x0, x1, x2, x3 = m.inputs[i], m.inputs[i + 1], m.inputs[i + 2], m.inputs[i + 3]
        m.inputs[i] = x0 - mean0 if x0 != zero else zero
        m.inputs[i + 1] = x1 - mean1 if x1 != zero else zero
        m.inputs[i + 2] = x2 - mean2 if x2 != zero else zero
        m.inputs[i + 3] = x3 - mean3 if x3 != zero else zero
    at = PER_CONTEXT * n
    m.inputs[at] = mean0 * _MEAN_SCALE
    m.inputs[at + 1] = mean1 * _MEAN_SCALE
    m.inputs[at + 2] = mean2 * _MEAN_SCALE
    m.inputs[at + 3] = mean3 * _MEAN_SCALE
    for i in range(at + PER_CONTEXT, at + PER_CONTEXT * (1 + GROUPS), PER_CONTEXT):
        m.inputs[i] = (m.inputs[i] - mean0) * _MEAN_SCALE
        m.inputs[i + 1] = (m.inputs[i + 1] - mean1) * _MEAN_SCALE
        m.inputs[i + 2] = (m.inputs[i + 2] - mean2) * _MEAN_SCALE
        m.inputs[i + 3] = (m.inputs[i + 3] - mean3) * _MEAN_SCALE


@inline
def gather(m, s):
    """Fill the inputs with what everything says of the next bit."""
    node, known, n = m.scalars[NODE], 0, m.hashes.size
    partial, shift = m.scalars[PARTIAL], m.scalars[SHIFT]
    for i in range(n):
        history = np.int64(m.slots[m.history_at[i] + node])
        entry = i * 256 + history
        m.entry[i] = entry
        p = np.int64(m.maps[entry] >> np.uint32(20))
        live = np.float32(1.0) if history else np.float32(0.0)
        m.inputs[4 * i] = evidence.STRETCH_FLOAT[p] * live
        m.inputs[4 * i + 1] = np.float32(p - 2048) * np.float32(1 / 1024) * live
        c = np.int64(m.counters[m.counter_at[i] + node])
        m.inputs[4 * i + 2] = evidence.STRETCH_FLOAT[c >> 4] * evidence.CONFIDENCE[c & 15]
        known += history > 0
        run = np.int64(m.runs[i, m.run_at[i]])
        value, at = np.float32(0), -1
        if run and ((run & 255) | 256) >> (shift + 1) == partial:
            at = i * evidence.RUN_MAP + min(run >> 8, 63) * 8 + shift
            value = evidence.STRETCH_FLOAT[m.run_maps[at] >> np.uint32(20)]
            if (run >> shift) & 1 == 0:
                value = -value
        m.run_entry[i] = at
        m.inputs[4 * i + 3] = value
    found = match.gather(m.matches, m.match_maps, partial, shift, m.match_inputs, 0)
    _centre(m)
    at = PER_CONTEXT * (n + 1 + GROUPS)
    for k in range(m.match_inputs.size):
        m.inputs[at + k] = np.float32(m.match_inputs[k]) * np.float32(1 / 4096)
    at += m.match_inputs.size
    m.inputs[at] = np.float32(0.3)
    if m.settings[SSM]:
        _note_outlook(m)
        p = ssm.probability(s, partial)
        m.inputs[at + 1] = evidence.STRETCH_FLOAT[p >> 4]
        m.inputs[at + 2] = np.float32(p - 32768) * np.float32(1 / 16384)
        entry = np.int64(p >> 11) * (OUTLOOKS * 8) + m.scalars[OUTLOOK] * 8 + shift
        m.scalars[SSM_ENTRY] = entry
        m.inputs[at + 3] = evidence.STRETCH_FLOAT[m.ssm_map[entry] >> np.uint32(20)]
    m.scalars[KNOWN] = known * 15 // n
    m.scalars[MATCHED] = found


@inline
def _select_apms(m):
    """Choose the rows of the adaptive probability maps, and ask for them: they are used after the mixers."""
    r, partial = m.registers, np.uint64(m.scalars[PARTIAL])
    history = r[around.HISTORY]
    m.apm_rows[0] = np.int64(partial)
    m.apm_rows[1] = APM_ROWS + np.int64((history & np.uint64(0xFF)) * np.uint64(256) + partial)
    m.apm_rows[2] = 2 * APM_ROWS + np.int64(mix_hash(history & np.uint64(0xFFFF), partial) >> np.uint64(48))
    m.apm_rows[3] = 3 * APM_ROWS + np.int64(
        mix_hash(r[around.WORD] + (history & np.uint64(0xFFFFFF)), partial) >> np.uint64(48)
    )
    for k in range(1, APMS):
        for step in range(0, mixer.APM_STEPS, 16):
            prefetch(m.apms, m.apm_rows[k] * mixer.APM_STEPS + step)


@inline
def select(m):
    """Choose the weight sets; a row that is new begins as the one that is always used."""
    _select_apms(m)
    r, rows = m.registers, m.rows
    partial, found, shift, known = m.scalars[PARTIAL], m.scalars[MATCHED], m.scalars[SHIFT], m.scalars[KNOWN]
    history = r[around.HISTORY]
    latest = np.int64(history & np.uint64(0xFF))
    classes = np.int64(r[around.CLASSES] & np.uint64(0xFF))
    rows[0] = 0
    rows[1] = partial + (256 * (1 + (found & 1)) if found else 0)
    rows[2] = latest * 8 + shift
    rows[3] = (known * 16 + found) * 8 + shift
    rows[4] = np.int64((history >> np.uint64(8)) & np.uint64(0xFF)) * 8 + shift
    rows[5] = classes * 8 + shift
    rows[6] = np.int64(r[around.MATCH] & np.uint64(0xFF)) * 8 + shift
    rows[7] = np.int64((r[around.LINE] >> np.uint64(16)) & np.uint64(0xFF)) * 8 + shift
    rows[8] = np.int64((history >> np.uint64(16)) & np.uint64(0xFF)) * 8 + shift
    rows[9] = m.scalars[OUTLOOK] * 8 + shift
    rows[10] = np.int64(r[around.WORD_LENGTH] & np.uint64(15)) * 128 + (classes & 15) * 8 + shift
    rows[11] = np.int64(r[around.BRACKET] & np.uint64(0xFF)) * 8 + shift
    rows[12] = (m.entry[2] & 255) * 8 + shift
    rows[13] = (m.entry[3] & 255) * 8 + shift
    width = m.inputs.size
    for k in range(m.settings[SETS]):
        row = rows[k] + m.first_row[k]
        rows[k] = row
        if m.visits[row] == 0:
            for i in range(width):
                m.weights[row * width + i] = m.weights[i]
    m.final_rows[0] = partial
    m.final_rows[1] = FINAL_ROWS[0] + latest * 8 + shift
    m.final_rows[2] = FINAL_ROWS[0] + FINAL_ROWS[1] + known * 16 + found
    m.final_rows[3] = FINAL_ROWS[0] + FINAL_ROWS[1] + FINAL_ROWS[2] + m.scalars[OUTLOOK] * 8 + shift


@inline
def mix(m):
    """The 32-bit probability that the next bit is a one."""
    width, deep = m.inputs.size, m.logits.size
    for k in range(m.settings[SETS]):
        logit = vectors.dot(m.weights, m.rows[k] * width, m.inputs, 0, width)
        m.logits[k] = min(max(logit, np.float32(-15.9)), np.float32(15.9))
    total, finals, share = np.float32(0), FINALS - 1, np.float32(1 / (FINALS - 1))
    if m.settings[SSM]:
        m.logits[m.settings[SETS]] = m.inputs[PER_CONTEXT * (m.hashes.size + 1 + GROUPS) + m.match_inputs.size + 1]
        finals, share = FINALS, np.float32(1 / FINALS)
    for k in range(finals):
        logit = vectors.dot(m.finals, m.final_rows[k] * deep, m.logits, 0, deep)
        logit = min(max(logit, np.float32(-15.9)), np.float32(15.9))
        m.final_logits[k] = logit
        total += logit
    logit = network.to_q12(total * share)
    m.scalars[LOGIT] = logit
    mixed = squash(logit)
    m.scalars[MIXED] = mixed
    refined = 2 * mixed
    for k in range(APMS):
        refined += mixer.refine(m.apms, m.apm_rows[k], logit)
    refined += mixer.refine(m.apms, m.apm_rows[1], logit)
    refined += mixer.refine(m.apms, m.apm_rows[2], logit)
    return min(max(refined >> 3, 1), (1 << 32) - 1)


@inline
def learn(m, bit):
    """Tell everything that predicted what the bit was."""
    logit = m.scalars[LOGIT]
    for k in range(APMS):
        mixer.learn_apm(m.apms, m.apm_rows[k], logit, bit, 6 if k == 0 else 5)
    width, deep = m.inputs.size, m.logits.size
    for k in range(m.settings[SETS]):
        visits = m.visits[m.rows[k]]
        error = network.error_of(bit, squash(network.to_q12(m.logits[k])))
        if abs(error) >= _LEAST_ERROR:
            m.visits[m.rows[k]] = visits + 1
            rate = m.rates[RATE] + m.rates[FIRST_RATE] / (np.float32(1) + np.float32(visits) * m.rates[FADING])
            vectors.add_scaled(m.weights, m.rows[k] * width, error * rate, m.inputs, 0, width)
        elif visits == 0:
            m.visits[m.rows[k]] = 1
    for k in range(FINALS if m.settings[SSM] else FINALS - 1):
        error = network.error_of(bit, squash(network.to_q12(m.final_logits[k])))
        vectors.add_scaled(m.finals, m.final_rows[k] * deep, error * m.rates[FINAL_RATE], m.logits, 0, deep)
    if m.settings[SSM]:
        histories.learn(m.ssm_map, m.scalars[SSM_ENTRY], bit, 255)
    note(m, bit)


@inline
def note(m, bit):
    """Tell the contexts and matches what the bit was; the mixers are told by `learn`."""
    node, limit, taken = m.scalars[NODE], _MAP_LIMIT, np.uint32(bit << 8)
    shift = m.scalars[SHIFT]
    for i in range(m.hashes.size):
        at = m.history_at[i] + node
        m.slots[at] = histories.NEXT[taken | np.uint32(m.slots[at])]
        histories.learn(m.maps, m.entry[i], bit, limit)
        evidence.learn_counter(m.counters, m.counter_at[i] + node, bit)
        at = m.run_entry[i]
        if at >= 0:
            hit = np.int64(((np.int64(m.runs[i, m.run_at[i]]) >> shift) & 1) == bit)
            histories.learn(m.run_maps, at, hit, 255)
    match.note_bit(m.matches, m.match_maps, bit, shift, _MATCH_LIMIT)


@inline
def advance(m, bit):
    """Move past a bit."""
    m.scalars[PARTIAL] = 2 * m.scalars[PARTIAL] + bit
    m.scalars[NODE] = 2 * m.scalars[NODE] + bit
    m.scalars[SHIFT] -= 1
    if m.scalars[SHIFT] == 3:
        _find_slots(m, np.uint64(m.scalars[PARTIAL]))


@inline
def end_byte(m, position):
    byte = m.scalars[PARTIAL] & 255
    m.data[position] = np.uint8(byte)
    match.fetch(m.least_lengths, m.match_table, m.data, position)
    for i in range(m.hashes.size):
        at = m.run_at[i]
        m.runs[i, at] = np.uint16(evidence.note_run(np.int64(m.runs[i, at]), byte))
    around.note_byte(m.registers, m.followed1, m.followed2, m.followed3, m.stack, m.data, position, m.settings[RECORD])
    match.note_byte(m.matches, m.least_lengths, m.match_table, m.data, position)
