"""One binary decision in coding a token: mixer inputs, the probability of a one, and learning.

A decision is a bit of the token's next byte, or whether the token ends. Its inputs are the language model's logit,
bytewise contexts and matches, a match model of tokens, and contexts of tokens. Weight sets and APMs are those of PAQ8.
"""

import numpy as np

from squeeze.codecs.bytewise import model as bytewise
from squeeze.codecs.tokenwise import token_match
from squeeze.codecs.tokenwise.arrays import (
    APM,
    CONFIDENCES,
    EXTRA,
    FIRST_APM,
    FIRST_ROW,
    INPUT,
    SET,
    STOP_BITS,
    STOP_ORDERS,
    TOP_CLASSES,
)
from squeeze.numerics.bitmodels import contexts, histories, mixer
from squeeze.numerics.jit import inline
from squeeze.numerics.logistic import STRETCH, squash

# Learning rates in 1/4096: that of weights is _RATE plus a part that halves at _HALF decisions.
_RATE, _RATE_AT_START, _HALF, _FINAL_RATE = 12, 48, 30000, 1
APM_RATE = 6
STOP_LIMIT = 250


@inline
def _hashed_row(a, b, bits):
    return np.int64(contexts.mix_hash(a, np.uint64(b)) >> np.uint64(64 - bits))


@inline
def clear_extra(m):
    """Zero the inputs that are not of the bytewise models."""
    for i in range(m.state.first_extra, m.state.first_extra + EXTRA):
        m.inputs[i] = 0


@inline
def gather_byte(m, x):
    """Write inputs and select weight sets and APM rows for a bit of a byte."""
    bytewise.gather(m)
    clear_extra(m)
    bytewise.select(m)
    bytewise.mix(m)
    m.inputs[m.state.first_extra + INPUT.bytewise] = np.int32(m.state.logit) if x.state.has_bytewise else 0
    registers = m.registers
    partial, match_length = m.state.partial, m.state.matched
    phase = np.int64(registers[contexts.PHASE] >> np.uint64(8))
    history = registers[contexts.HISTORY]
    latest = np.int64(history & np.uint64(0xFF))
    column = np.int64((registers[contexts.LINE] >> np.uint64(8)) & np.uint64(0xFF))
    x.rows[SET.match] = FIRST_ROW.match + match_length
    x.rows[SET.bits] = FIRST_ROW.bits + partial + 256 * phase
    x.rows[SET.latest] = FIRST_ROW.latest + latest * 8 + m.state.shift
    x.rows[SET.known] = FIRST_ROW.known + m.state.known * 16 + match_length
    x.rows[SET.column] = FIRST_ROW.column + column * 8
    x.apm_rows[APM.bits] = FIRST_APM.bits + partial + 256 * phase
    x.apm_rows[APM.latest] = FIRST_APM.latest + _hashed_row(history & np.uint64(0xFFFF), partial, 16)
    x.apm_rows[APM.column] = FIRST_APM.column + (column << 8 | partial)
    x.apm_rows[APM.word] = FIRST_APM.word + _hashed_row(registers[contexts.WORD], partial, 16)
    x.apm_rows[APM.model] = FIRST_APM.model + (latest << 8 | partial)
    x.state.final_row = match_length


@inline
def gather_stop(m, x, node):
    """Write inputs and select weight sets and APM rows for the decision whether a token ends."""
    for i in range(m.inputs.size):
        m.inputs[i] = 0
    registers = m.registers
    for k in range(STOP_ORDERS):
        if k < 3:
            row = _hashed_row(registers[contexts.TOKEN_1 + k], k, STOP_BITS)
        elif k == 3:
            row = _hashed_row(registers[contexts.HISTORY] & np.uint64(0xFFFFFFFF), k, STOP_BITS)
        elif k == 4:
            row = _hashed_row(registers[contexts.WORD], k, STOP_BITS)
        else:
            row = _hashed_row(np.uint64(node), k, STOP_BITS)
        x.stop_entries[k] = row
        entry = np.int64(x.stop_maps[k, row])
        m.inputs[k] = STRETCH[entry >> 20] if entry & 1023 and x.state.has_stops else 0
    m.inputs[m.state.bias] = bytewise.BIAS
    depth = min(np.int64(registers[contexts.PHASE] & np.uint64(0xFF)), 7)
    latest = np.int64(registers[contexts.HISTORY] & np.uint64(0xFF))
    x.rows[SET.match] = FIRST_ROW.match + 31
    x.rows[SET.bits] = FIRST_ROW.bits + 256 * (depth & 1)  # row 0 is free: no partial byte is 0
    x.rows[SET.latest] = FIRST_ROW.latest + latest * 8 + 7
    x.rows[SET.known] = FIRST_ROW.known + 128 + depth
    x.rows[SET.column] = FIRST_ROW.column + 255 * 8
    x.apm_rows[APM.bits] = FIRST_APM.bits + 512 + depth
    x.apm_rows[APM.latest] = FIRST_APM.latest + (node & 65535)
    x.apm_rows[APM.column] = FIRST_APM.column
    x.apm_rows[APM.word] = FIRST_APM.word + _hashed_row(registers[contexts.TOKEN_1], 7, 16)
    x.apm_rows[APM.model] = FIRST_APM.model + (latest << 8)
    x.state.final_row = 16 + depth


@inline
def _refine(x, k, logit, probability):
    """Return the probability after APM `k`, or `probability` if that APM is left out."""
    return mixer.refine(x.apms, x.apm_rows[k], logit) if x.refines[k] else probability


@inline
def predict(m, x, t, node, logit):
    """Return the 32-bit probability that the decision is a one.

    Args:
        m: the bytewise models.
        x: the tokenwise arrays.
        t: trie of the vocabulary.
        node: of the trie.
        logit: of the language model, fixed point.
    """
    first = m.state.first_extra
    confidence = min(abs(logit) >> 11, CONFIDENCES - 1)
    top_class = min(x.state.top_nll >> 22, TOP_CLASSES - 1)
    m.inputs[first + INPUT.model] = np.int32(logit)
    token_match.gather(x, t, node, m.inputs, first + INPUT.token_match)
    refined = STRETCH[mixer.refine(x.apms, x.apm_rows[APM.model], logit) >> 20]
    m.inputs[first + INPUT.refined] = refined if x.state.has_refined else 0
    x.state.model_logit = logit
    x.rows[SET.match] += 16 * (x.state.matched > 0) if x.rows[SET.match] < 16 else 0
    x.rows[SET.confidence] = FIRST_ROW.confidence + confidence * TOP_CLASSES + top_class
    x.rows[SET.column] += confidence >> 1
    bits = np.uint64(m.state.partial)
    x.rows[SET.token] = FIRST_ROW.token + _hashed_row(m.registers[contexts.TOKEN_1], bits, 12)
    x.rows[SET.node] = FIRST_ROW.node + node
    final = 32 * x.state.matched + x.state.final_row
    x.state.final_row = final
    for k in x.sets:
        x.logits[k] = np.int32(mixer.dot_fine(x.weights[x.rows[k]], m.inputs))
    mixed = mixer.dot_fine(x.final_weights[final], x.logits)
    x.state.logit, probability = mixed, squash(mixed)
    x.state.mixed = probability
    total = 2 * probability
    total += _refine(x, APM.bits, mixed, probability) + _refine(x, APM.latest, mixed, probability)
    total += 2 * _refine(x, APM.column, mixed, probability) + 2 * _refine(x, APM.word, mixed, probability)
    return min(max(total >> 3, 1), (1 << 32) - 1)


@inline
def correct(m, x, bit):
    """Train weight sets, APMs and the token match on the decision."""
    rate = _RATE + _RATE_AT_START * _HALF // (_HALF + x.state.decisions + 1)
    target, logit = (bit << 32) - bit, x.state.logit
    for k in range(APM.model):
        mixer.learn_apm(x.apms, x.apm_rows[k], logit, bit, APM_RATE)
    mixer.learn_apm(x.apms, x.apm_rows[APM.model], x.state.model_logit, bit, APM_RATE)
    x.state.decisions += 1
    for k in x.sets:
        error = (target - squash(np.int64(x.logits[k]))) >> 12
        mixer.train_fine(x.weights[x.rows[k]], m.inputs, error, rate)
    error = (target - x.state.mixed) >> 12
    mixer.train_fine(x.final_weights[x.state.final_row], x.logits, error, _FINAL_RATE)
    token_match.update_bit(x, bit)


@inline
def learn_byte(m, bit):
    """Train the bytewise models, without the other inputs."""
    clear_extra(m)
    bytewise.learn(m, bit)
    bytewise.advance(m, bit)


@inline
def learn_stop(x, bit):
    """Train the contexts of tokens on whether the token ended."""
    for k in range(STOP_ORDERS):
        histories.learn(x.stop_maps[k], x.stop_entries[k], bit, STOP_LIMIT)
