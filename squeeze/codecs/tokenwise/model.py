"""Tokenwise context mixing: a token is a walk through the vocabulary's trie. The levels that use a language model.

At every node of the walk the language model's logit, the bytewise contexts and matches, and contexts of whole
tokens are mixed and coded as one binary decision: a bit of the token's next byte, or whether the token stops.
Tokens come in *lanes*, which take turns, one token each: tables and weights are shared by all lanes, and what
belongs to a place in the text is kept for every lane.
"""

from typing import NamedTuple

import numpy as np

from squeeze.codecs import bytewise
from squeeze.codecs.bitmodels import coder as arithmetic
from squeeze.codecs.bitmodels import contexts, histories, mixer
from squeeze.numerics import trie
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.logistic import STRETCH, squash
from squeeze.numerics.trie import STOP

# Scalars of a mix.
(SURPRISE, MODEL_LOGIT, LOGIT, MIXED, MATCH_ENTRY, MATCH_LENGTH, EXPECTED, MATCHED, FINAL_ROW, DECISIONS) = range(10)

# Learning rates, in 4096ths; that of the weights falls from both together to the first, half way at _HALF decisions.
_RATE, _RATE_AT_START, _HALF, _FINAL_RATE = 12, 48, 30000, 1
_APM_RATE = 6
_FIRST_WEIGHT = mixer.FINE_ONE // 50  # of all inputs but the language model, which begins with 1

_STOP_ORDERS = 6
_STOP_BITS = 20
_STOP_LIMIT = 250
_MATCH_ORDER = 4
_MATCH_BITS = 18
_SETS = 8
# First rows of the weight sets.
_BY_MATCH, _BY_BITS, _BY_MODEL, _BY_LATEST, _BY_KNOWN, _BY_COLUMN, _BY_TOKEN, _BY_NODE = (
    *(0, 32, 544, 640, 2688, 2944, 4992, 9088),
)
_APMS = 5
_APM_ROWS = 1 << 16  # of each
_EXTRA = 5  # inputs: the model's logit, two of the token match, the bytewise models' own mix, the model's refined


class Mix(NamedTuple):
    """What the tokenwise levels add to the bytewise models."""

    scalars: np.ndarray  # int64
    registers: np.ndarray  # uint64 [lanes, REGISTERS]: those of the bytewise models, put aside
    matches: np.ndarray  # int64 [lanes, matches, 5]
    places: np.ndarray  # int64 [lanes]: where the lane's next byte goes
    tokens: np.ndarray  # int32: entries of all lanes, one lane after the other; -1 where there is none yet
    token_places: np.ndarray  # int64 [lanes]
    token_matches: np.ndarray  # int64 [lanes, 2]: pointer and length
    token_table: np.ndarray  # int32: where a hash of tokens was seen last
    token_maps: np.ndarray  # uint32 [32]
    escape: np.ndarray  # uint32 [1]: how often a byte is no token's
    weights: np.ndarray  # int32 [rows, inputs]
    rows: np.ndarray  # int64 [selectors]
    logits: np.ndarray  # int32 [selectors]
    final_weights: np.ndarray  # int32 [rows, selectors]
    apms: np.ndarray  # uint32 [rows, steps]
    apm_rows: np.ndarray  # int64 [apms]
    stop_maps: np.ndarray  # uint32 [orders, 2^bits]
    stop_entries: np.ndarray  # int64 [orders]


def extra_inputs() -> int:
    return _EXTRA


@inline
def spare_bytes(decisions):
    """More bytes than an entry of so many decisions can add to the coded bytes."""
    return 4 * decisions + bytewise.SPARE


def build_mix(m: bytewise.Model, t: trie.Trie, counts: np.ndarray) -> Mix:
    """Fresh models for a block whose lanes have int64 `counts` entries."""
    inputs, lanes = m.inputs.size, counts.size
    model_input = m.slot.size + 2 * m.matches.shape[0] + 1
    weights = np.full((_BY_NODE + max(t.low.size, 1), inputs), _FIRST_WEIGHT, np.int32)
    weights[:, model_input] = mixer.FINE_ONE
    weights[:, (model_input - 1, model_input + 4)] = 0  # bias, and what repeats the model
    return Mix(
        scalars=np.zeros(10, np.int64),
        registers=np.zeros((lanes, contexts.REGISTERS), np.uint64),
        matches=np.zeros((lanes, *m.matches.shape), np.int64),
        places=np.zeros(lanes, np.int64),
        tokens=np.full(int(counts.sum()), -1, np.int32),
        token_places=np.cumsum(counts) - counts,
        token_matches=np.zeros((lanes, 2), np.int64),
        token_table=np.zeros(1 << _MATCH_BITS, np.int32),
        token_maps=np.full(32, (3 << 20) << 10, np.uint32),
        escape=np.full(1, (1 << 12) << 10, np.uint32),
        weights=weights,
        rows=np.zeros(_SETS, np.int64),
        logits=np.zeros(_SETS, np.int32),
        final_weights=np.full((1024, _SETS), mixer.FINE_ONE // _SETS, np.int32),
        apms=mixer.fresh_apm(_APMS * _APM_ROWS),
        apm_rows=np.zeros(_APMS, np.int64),
        stop_maps=np.full((_STOP_ORDERS, 1 << _STOP_BITS), 1 << 31, np.uint32),
        stop_entries=np.zeros(_STOP_ORDERS, np.int64),
    )


@inline
def surprise_of(counts):
    """ln(1 / p) of the model's first choice, with 24 fractional bits, from its cumulative counts."""
    return trie.logarithm(np.int64(counts[counts.size - 1])) - trie.FIRST_CHOICE


@inline
def _match_tokens(x, t, node, inputs, at):
    """Fill two inputs with what followed the latest tokens before."""
    leaf = x.scalars[EXPECTED]
    x.scalars[MATCH_ENTRY], x.scalars[MATCHED] = -1, 0
    inputs[at], inputs[at + 1] = 0, 0
    if leaf >= t.low[node] and leaf < t.high[node]:
        bit = np.int64(leaf >= t.middle[node])
        entry = min(x.scalars[MATCH_LENGTH], 31)
        x.scalars[MATCH_ENTRY], x.scalars[MATCHED] = entry * 2 + bit, 1 + min(entry >> 2, 3)
        probability = np.int64(x.token_maps[entry] >> np.uint32(20))
        logit, tilt = np.int64(STRETCH[probability]), (probability - 2048) * 2
        inputs[at] = logit if bit else -logit
        inputs[at + 1] = tilt if bit else -tilt


@inline
def _note_token_match(x, bit):
    entry = x.scalars[MATCH_ENTRY]
    if entry >= 0:
        histories.learn(x.token_maps, entry >> 1, np.int64((entry & 1) == bit), 255)
        if (entry & 1) != bit:
            x.scalars[EXPECTED] = -1


@inline
def _hashed_row(a, b, bits):
    return np.int64(contexts.mix_hash(a, np.uint64(b)) >> np.uint64(64 - bits))


@inline
def _gather_byte(m, x):
    """Inputs, weight sets and refinements of a bit of a byte."""
    bytewise.gather(m)
    at = bytewise.first_extra(m)
    for i in range(at, at + _EXTRA):
        m.inputs[i] = 0
    bytewise.select(m)
    bytewise.mix(m)
    m.inputs[at + 3] = np.int32(m.scalars[bytewise.LOGIT])
    registers, scalars = m.registers, m.scalars
    partial, found = scalars[bytewise.PARTIAL], scalars[bytewise.MATCHED]
    phase = np.int64(registers[contexts.PHASE] >> np.uint64(8))
    history = registers[contexts.HISTORY]
    latest = np.int64(history & np.uint64(0xFF))
    column = np.int64((registers[contexts.LINE] >> np.uint64(8)) & np.uint64(0xFF))
    x.rows[0] = _BY_MATCH + found
    x.rows[1] = _BY_BITS + partial + 256 * phase
    x.rows[3] = _BY_LATEST + latest * 8 + scalars[bytewise.SHIFT]
    x.rows[4] = _BY_KNOWN + scalars[bytewise.KNOWN] * 16 + found
    x.rows[5] = _BY_COLUMN + column * 8
    x.apm_rows[0] = partial + 256 * phase
    x.apm_rows[1] = _APM_ROWS + _hashed_row(history & np.uint64(0xFFFF), partial, 16)
    x.apm_rows[2] = 2 * _APM_ROWS + (column << 8 | partial)
    x.apm_rows[3] = 3 * _APM_ROWS + _hashed_row(registers[contexts.WORD], partial, 16)
    x.apm_rows[4] = 4 * _APM_ROWS + (latest << 8 | partial)
    x.scalars[FINAL_ROW] = found


@inline
def _gather_stop(m, x, node):
    """Inputs, weight sets and refinements of the decision whether a token stops."""
    for i in range(m.inputs.size):
        m.inputs[i] = 0
    registers = m.registers
    for k in range(_STOP_ORDERS):
        if k < 3:
            row = _hashed_row(registers[contexts.TOKEN_1 + k], k, _STOP_BITS)
        elif k == 3:
            row = _hashed_row(registers[contexts.HISTORY] & np.uint64(0xFFFFFFFF), k, _STOP_BITS)
        elif k == 4:
            row = _hashed_row(registers[contexts.WORD], k, _STOP_BITS)
        else:
            row = _hashed_row(np.uint64(node), k, _STOP_BITS)
        x.stop_entries[k] = row
        entry = np.int64(x.stop_maps[k, row])
        m.inputs[k] = STRETCH[entry >> 20] if entry & 1023 else 0
    m.inputs[bytewise.first_extra(m) - 1] = 1024
    depth = min(np.int64(registers[contexts.PHASE] & np.uint64(0xFF)), 7)
    latest = np.int64(registers[contexts.HISTORY] & np.uint64(0xFF))
    x.rows[0] = _BY_MATCH + 31
    x.rows[1] = _BY_BITS + 256 * (depth & 1)  # free: no partial byte is 0
    x.rows[3] = _BY_LATEST + latest * 8 + 7
    x.rows[4] = _BY_KNOWN + 128 + depth
    x.rows[5] = _BY_COLUMN + 255 * 8
    x.apm_rows[0] = 512 + depth
    x.apm_rows[1] = _APM_ROWS + (node & 65535)
    x.apm_rows[2] = 2 * _APM_ROWS
    x.apm_rows[3] = 3 * _APM_ROWS + _hashed_row(registers[contexts.TOKEN_1], 7, 16)
    x.apm_rows[4] = 4 * _APM_ROWS + (latest << 8)
    x.scalars[FINAL_ROW] = 16 + depth


@inline
def _predict(m, x, t, node, logit):
    """The 32-bit probability that the decision is a one."""
    at = bytewise.first_extra(m)
    sure = min(abs(logit) >> 11, 11)
    surprise = min(x.scalars[SURPRISE] >> 22, 7)
    m.inputs[at] = np.int32(logit)
    _match_tokens(x, t, node, m.inputs, at + 1)
    m.inputs[at + 4] = STRETCH[mixer.refine(x.apms, x.apm_rows[4], logit) >> 20]
    x.scalars[MODEL_LOGIT] = logit
    x.rows[0] += 16 * (x.scalars[MATCHED] > 0) if x.rows[0] < 16 else 0
    x.rows[2] = _BY_MODEL + sure * 8 + surprise
    x.rows[5] += sure >> 1
    bits = np.uint64(m.scalars[bytewise.PARTIAL])
    x.rows[6] = _BY_TOKEN + _hashed_row(m.registers[contexts.TOKEN_1], bits, 12)
    x.rows[7] = _BY_NODE + node
    final = 32 * x.scalars[MATCHED] + x.scalars[FINAL_ROW]
    x.scalars[FINAL_ROW] = final
    for k in range(x.rows.size):
        x.logits[k] = np.int32(mixer.dot_fine(x.weights[x.rows[k]], m.inputs))
    mixed = mixer.dot_fine(x.final_weights[final], x.logits)
    x.scalars[LOGIT], probability = mixed, squash(mixed)
    x.scalars[MIXED] = probability
    refined = 2 * probability
    refined += mixer.refine(x.apms, x.apm_rows[0], mixed) + mixer.refine(x.apms, x.apm_rows[1], mixed)
    refined += 2 * mixer.refine(x.apms, x.apm_rows[2], mixed) + 2 * mixer.refine(x.apms, x.apm_rows[3], mixed)
    return min(max(refined >> 3, 1), (1 << 32) - 1)


@inline
def _correct(m, x, bit):
    """Tell weight sets and refinements what the decision was."""
    target, logit = (bit << 32) - bit, x.scalars[LOGIT]
    for k in range(4):
        mixer.learn_apm(x.apms, x.apm_rows[k], logit, bit, _APM_RATE)
    mixer.learn_apm(x.apms, x.apm_rows[4], x.scalars[MODEL_LOGIT], bit, _APM_RATE)
    x.scalars[DECISIONS] += 1
    rate = _RATE + _RATE_AT_START * _HALF // (_HALF + x.scalars[DECISIONS])
    for k in range(x.rows.size):
        error = (target - squash(np.int64(x.logits[k]))) >> 12
        mixer.train_fine(x.weights[x.rows[k]], m.inputs, error, rate)
    error = (target - x.scalars[MIXED]) >> 12
    mixer.train_fine(x.final_weights[x.scalars[FINAL_ROW]], x.logits, error, _FINAL_RATE)
    _note_token_match(x, bit)


@inline
def _learn_byte(m, x, bit):
    """Tell the bytewise models, which never saw the inputs from outside."""
    at = bytewise.first_extra(m)
    for i in range(at, at + _EXTRA):
        m.inputs[i] = 0
    bytewise.learn(m, bit)
    bytewise.advance(m, bit)


@inline
def _end_byte(m, position, byte):
    m.scalars[bytewise.PARTIAL] = 256 | np.int64(byte)
    bytewise.end_byte(m, position)
    contexts.note_token_byte(m.registers, np.uint64(byte))


@inline
def _enter_lane(m, x, lane):
    for i in range(m.registers.size):
        m.registers[i] = x.registers[lane, i]
    for k in range(m.matches.shape[0]):
        for i in range(m.matches.shape[1]):
            m.matches[k, i] = x.matches[lane, k, i]
    x.scalars[EXPECTED], x.scalars[MATCH_LENGTH] = -1, x.token_matches[lane, 1]
    if x.token_matches[lane, 1] > 0:
        x.scalars[EXPECTED] = x.tokens[x.token_matches[lane, 0]]


@inline
def _leave_lane(m, x, lane, entry):
    contexts.note_token(m.registers, np.uint64(entry + 256))
    for i in range(m.registers.size):
        x.registers[lane, i] = m.registers[i]
    for k in range(m.matches.shape[0]):
        for i in range(m.matches.shape[1]):
            x.matches[lane, k, i] = m.matches[k, i]
    _note_token(x, lane, entry)


@inline
def _note_token(x, lane, entry):
    """Follow the lane's match of tokens, or look for one."""
    at = x.token_places[lane]
    x.tokens[at] = entry
    x.token_places[lane] = at + 1
    pointer, length = x.token_matches[lane, 0], x.token_matches[lane, 1]
    if length > 0 and pointer + 1 < x.tokens.size and x.tokens[pointer] == entry:
        pointer, length = pointer + 1, length + 1
    else:
        length = 0
    h = np.uint64(0)
    for k in range(_MATCH_ORDER):
        h = contexts.mix_hash(h, np.uint64((x.tokens[at - k] if at >= k else -1) + 300))
    row = np.int64(h >> np.uint64(64 - _MATCH_BITS))
    candidate = np.int64(x.token_table[row])
    if length == 0 and candidate > 0:
        while (
            length < min(candidate, 32) and length <= at and x.tokens[candidate - 1 - length] == x.tokens[at - length]
        ):
            length += 1
        pointer, length = candidate, length if length >= _MATCH_ORDER - 1 else 0
    x.token_matches[lane, 0], x.token_matches[lane, 1] = pointer, length
    x.token_table[row] = at + 1 if at + 1 < x.tokens.size else 0


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
    bytewise.code(m, coder, coded, position, position + 1, decoding)
    byte = m.data[position]
    contexts.note_token_byte(m.registers, np.uint64(byte))
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
            while m.scalars[bytewise.SHIFT] > t.shift[node]:
                bytewise.advance(m, (byte >> m.scalars[bytewise.SHIFT]) & 1)
            _gather_byte(m, x)
        probability = _predict(m, x, t, node, logit)
        if decoding:
            bit = arithmetic.decode(probability, coder, coded)
        else:
            bit = np.int64(entry >= t.middle[node])
            arithmetic.encode(bit, probability, coder, coded)
        _correct(m, x, bit)
        if stop:
            for k in range(_STOP_ORDERS):
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
def code_steps(m, x, t, known, counts, first_lane, active, ends, logits, starts, surprises, coder, coded, decoding):
    """Code entries of lanes from `first_lane` on, one step of all lanes after the other, in either direction.

    known: int64 [lanes, steps], the entries, which decoding fills in; active: int64 [steps], the lanes that
    have one; ends: int64 [all lanes], where each lane's bytes end. Decoding takes one step, its model's
    cumulative counts uint64 [lanes, leaves + 1]; encoding takes logits, where each path starts in them, and
    surprises, int64 [lanes, steps]. Returns False where `coded` is full, or cannot have been coded so.
    """
    for step in range(known.shape[1]):
        for i in range(active[step]):
            lane = first_lane + i
            room = bytewise.SPARE if decoding else -spare_bytes(t.decisions[max(known[i, step], 0)])
            if np.int64(coder[arithmetic.POSITION]) > coded.size + room:
                return False
            if x.places[lane] >= ends[lane]:
                return False
            path, row = logits, counts[0]
            if decoding:
                row = counts[i]
                x.scalars[SURPRISE] = surprise_of(row)
            else:
                path = logits[starts[i, step] :]
                x.scalars[SURPRISE] = surprises[i, step]
            known[i, step] = code_entry(m, x, t, lane, known[i, step], row, path, coder, coded, decoding)
            if x.places[lane] > ends[lane]:
                return False
    return True


@kernel
def follow(t, counts, entries, starts, logits, surprises):
    """The model's logits along the path of each entry, from its start in `logits` on, and its surprise."""
    for r in range(entries.size):
        entry, row, at = entries[r], counts[r], starts[r]
        surprises[r] = surprise_of(row)
        node = 0 if entry >= 0 and t.low.size > 0 else -1
        while node >= 0:
            logits[at] = np.int32(trie.logit_of(t, row, node))
            at += 1
            node = t.children[node, 1 if entry >= t.middle[node] else 0]
