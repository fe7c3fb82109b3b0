"""Tokenwise context mixing: a token is a walk through the vocabulary's trie. The levels that use a language model.

At every node of the walk the language model's logit, the bytewise contexts and matches, and contexts of whole
tokens are mixed and coded as one binary decision: a bit of the token's next byte, or whether the token stops.
Tokens come in *lanes*, which take turns, one token each: tables and weights are shared by all lanes, and what
belongs to a place in the text is kept for every lane.
"""

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic, contexts, histories, mixer
from squeeze.codecs.bytewise import coder as bytecoder, model as bytewise
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
from squeeze.numerics import trie
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.logistic import STRETCH, squash
from squeeze.numerics.trie import STOP

# Learning rates, in 4096ths; that of the weights falls from both together to the first, half way at _HALF decisions.
_RATE, _RATE_AT_START, _HALF, _FINAL_RATE = 12, 48, 30000, 1
_APM_RATE = 6
_STOP_LIMIT = 250


@inline
def spare_bytes(decisions):
    """More bytes than an entry of so many decisions can add to the coded bytes."""
    return 4 * decisions + bytecoder.SPARE


@inline
def top_nll(counts):
    """-ln(p) of the model's top token, with 24 fractional bits, from its cumulative counts."""
    return trie.logarithm(np.int64(counts[counts.size - 1])) - trie.FIRST_CHOICE


@inline
def _hashed_row(a, b, bits):
    return np.int64(contexts.mix_hash(a, np.uint64(b)) >> np.uint64(64 - bits))


@inline
def _clear_extra(m):
    for i in range(m.state.first_extra, m.state.first_extra + EXTRA):
        m.inputs[i] = 0


@inline
def _gather_byte(m, x):
    """Inputs, weight sets and refinements of a bit of a byte."""
    bytewise.gather(m)
    _clear_extra(m)
    bytewise.select(m)
    bytewise.mix(m)
    m.inputs[m.state.first_extra + INPUT.bytewise] = np.int32(m.state.logit) if x.state.has_bytewise else 0
    registers = m.registers
    partial, found = m.state.partial, m.state.matched
    phase = np.int64(registers[contexts.PHASE] >> np.uint64(8))
    history = registers[contexts.HISTORY]
    latest = np.int64(history & np.uint64(0xFF))
    column = np.int64((registers[contexts.LINE] >> np.uint64(8)) & np.uint64(0xFF))
    x.rows[SET.match] = FIRST_ROW.match + found
    x.rows[SET.bits] = FIRST_ROW.bits + partial + 256 * phase
    x.rows[SET.latest] = FIRST_ROW.latest + latest * 8 + m.state.shift
    x.rows[SET.known] = FIRST_ROW.known + m.state.known * 16 + found
    x.rows[SET.column] = FIRST_ROW.column + column * 8
    x.apm_rows[APM.bits] = FIRST_APM.bits + partial + 256 * phase
    x.apm_rows[APM.latest] = FIRST_APM.latest + _hashed_row(history & np.uint64(0xFFFF), partial, 16)
    x.apm_rows[APM.column] = FIRST_APM.column + (column << 8 | partial)
    x.apm_rows[APM.word] = FIRST_APM.word + _hashed_row(registers[contexts.WORD], partial, 16)
    x.apm_rows[APM.model] = FIRST_APM.model + (latest << 8 | partial)
    x.state.final_row = found


@inline
def _gather_stop(m, x, node):
    """Inputs, weight sets and refinements of the decision whether a token stops."""
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
    x.rows[SET.bits] = FIRST_ROW.bits + 256 * (depth & 1)  # free: no partial byte is 0
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
    """The probability by refinement `k`, or `probability` where that is left out."""
    return mixer.refine(x.apms, x.apm_rows[k], logit) if x.refines[k] else probability


@inline
def _predict(m, x, t, node, logit):
    """The 32-bit probability that the decision is a one."""
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
def _correct(m, x, bit):
    """Update weight sets and refinements by what the decision was."""
    target, logit = (bit << 32) - bit, x.state.logit
    for k in range(APM.model):
        mixer.learn_apm(x.apms, x.apm_rows[k], logit, bit, _APM_RATE)
    mixer.learn_apm(x.apms, x.apm_rows[APM.model], x.state.model_logit, bit, _APM_RATE)
    x.state.decisions += 1
    rate = _RATE + _RATE_AT_START * _HALF // (_HALF + x.state.decisions)
    for k in x.sets:
        error = (target - squash(np.int64(x.logits[k]))) >> 12
        mixer.train_fine(x.weights[x.rows[k]], m.inputs, error, rate)
    error = (target - x.state.mixed) >> 12
    mixer.train_fine(x.final_weights[x.state.final_row], x.logits, error, _FINAL_RATE)
    token_match.update_bit(x, bit)


@inline
def _learn_byte(m, x, bit):
    """Update the bytewise models, which never saw the inputs from outside."""
    _clear_extra(m)
    bytewise.learn(m, bit)
    bytewise.advance(m, bit)


@inline
def _end_byte(m, position, byte):
    m.state.partial = 256 | np.int64(byte)
    bytewise.end_byte(m, position)
    contexts.update_token_byte(m.registers, np.uint64(byte))


@inline
def _enter_lane(m, x, lane):
    for i in range(m.registers.size):
        m.registers[i] = x.registers[lane, i]
    for k in range(m.matches.size):
        m.matches[k] = x.matches[lane, k]
    token_match.expect(x, lane)


@inline
def _leave_lane(m, x, lane, entry):
    contexts.update_token(m.registers, np.uint64(entry + 256))
    for i in range(m.registers.size):
        x.registers[lane, i] = m.registers[i]
    for k in range(m.matches.size):
        x.matches[lane, k] = m.matches[k]
    token_match.update_token(x, lane, entry)


@inline
def _code_escape(x, coder, coded, escaped, decoding):
    """Whether the next entry is a byte that no token spells."""
    probability = max((np.int64(x.escape[0]) >> 10) << 10, 1 << 8)
    if decoding:
        escaped = arithmetic.decode(probability, coder, coded)
    else:
        arithmetic.encode(escaped, probability, coder, coded)
    histories.learn(x.escape, 0, escaped, 1000)
    return escaped


@inline
def _code_byte(m, x, lane, entry, coder, coded, decoding):
    """Code a byte by the bytewise models alone; returns its entry."""
    position = x.places[lane]
    if not decoding:
        m.data[position] = np.uint8(-1 - entry)
    bytecoder.code(m, coder, coded, position, position + 1, decoding)
    byte = m.data[position]
    contexts.update_token_byte(m.registers, np.uint64(byte))
    x.places[lane] = position + 1
    return -1 - np.int64(byte)


@inline
def _code_token(m, x, t, lane, entry, counts, logits, coder, coded, decoding):
    """Walk from the root to a leaf; returns it."""
    position, depth, begun, decisions = x.places[lane], 0, False, 0
    node = 0 if t.low.size > 0 else -1
    while node >= 0:
        spelling = t.offsets[t.low[node]]
        while depth < t.depth[node]:
            _end_byte(m, position + depth, t.spelling[spelling + depth])
            depth += 1
            begun = False
        logit = trie.logit_of(t, counts, node) if decoding else np.int64(logits[decisions])
        stop = t.shift[node] == STOP
        if stop:
            _gather_stop(m, x, node)
        else:
            if not begun:
                bytewise.begin_byte(m)
                begun = True
            byte = np.int64(t.spelling[spelling + depth])
            while m.state.shift > t.shift[node]:
                bytewise.advance(m, (byte >> m.state.shift) & 1)
            _gather_byte(m, x)
        probability = _predict(m, x, t, node, logit)
        if decoding:
            bit = arithmetic.decode(probability, coder, coded)
        else:
            bit = np.int64(entry >= t.middle[node])
            arithmetic.encode(bit, probability, coder, coded)
        _correct(m, x, bit)
        if stop:
            for k in range(STOP_ORDERS):
                histories.learn(x.stop_maps[k], x.stop_entries[k], bit, _STOP_LIMIT)
        else:
            _learn_byte(m, x, bit)
        node = t.children[node, bit]
        decisions += 1
    leaf = np.int64(~node)
    begin, length = t.offsets[leaf], t.offsets[leaf + 1] - t.offsets[leaf]
    while depth < length:
        _end_byte(m, position + depth, t.spelling[begin + depth])
        depth += 1
    x.places[lane] = position + length
    return leaf


@inline
def code_entry(m, x, t, lane, entry, counts, logits, coder, coded, decoding):
    """Code one entry of a lane in either direction; returns it. An entry is a leaf, or -1 - byte.

    The model's logits come from `counts`, uint64 [leaves + 1], when decoding, and else from `logits`, int32,
    those along the path of `entry`.
    """
    _enter_lane(m, x, lane)
    if _code_escape(x, coder, coded, np.int64(entry < 0), decoding):
        entry = _code_byte(m, x, lane, entry, coder, coded, decoding)
    else:
        entry = _code_token(m, x, t, lane, entry, counts, logits, coder, coded, decoding)
    _leave_lane(m, x, lane, entry)
    return entry


@kernel
def code_steps(m, x, t, known, counts, first_lane, active, ends, logits, starts, top_nlls, coder, coded, decoding):
    """Code entries of lanes from `first_lane` on, one step of all lanes after the other, in either direction.

    known: int64 [lanes, steps], the entries, which decoding fills in; active: int64 [steps], the lanes that
    have one; ends: int64 [all lanes], where each lane's bytes end. Decoding takes one step, its model's
    cumulative counts uint64 [lanes, leaves + 1]; encoding takes logits, where each path starts in them, and
    top_nlls, int64 [lanes, steps]. Returns False where `coded` is full, or cannot have been coded so.
    """
    for step in range(known.shape[1]):
        for i in range(active[step]):
            lane = first_lane + i
            room = bytecoder.SPARE if decoding else -spare_bytes(t.decisions[max(known[i, step], 0)])
            if np.int64(coder[arithmetic.POSITION]) > coded.size + room:
                return False
            if x.places[lane] >= ends[lane]:
                return False
            path, row = logits, counts[0]
            if decoding:
                row = counts[i]
                x.state.top_nll = top_nll(row)
            else:
                path = logits[starts[i, step] :]
                x.state.top_nll = top_nlls[i, step]
            known[i, step] = code_entry(m, x, t, lane, known[i, step], row, path, coder, coded, decoding)
            if x.places[lane] > ends[lane]:
                return False
    return True


@kernel
def follow(t, counts, entries, starts, logits, top_nlls):
    """The model's logits along the path of each entry, from its start in `logits` on, and -ln(p) of its top token."""
    for r in range(entries.size):
        entry, row, at = entries[r], counts[r], starts[r]
        top_nlls[r] = top_nll(row)
        node = 0 if entry >= 0 and t.low.size > 0 else -1
        while node >= 0:
            logits[at] = np.int32(trie.logit_of(t, row, node))
            at += 1
            node = t.children[node, 1 if entry >= t.middle[node] else 0]
