"""What all lanes share learns from a batch of them, once all are coded.

Learning is cut into tasks, each of which changes arrays, or parts of one, that no other task reads or changes. So
tasks may run in any order and on any threads. What a task learns it takes from the log, lane by lane, and decision by
decision.

Updates of a weight set are made for the same weights, so they are added; a set that was used n times learns slower, by
K / (K + n - 1), since n steps of one size from the same place would go too far. Adaptive maps, probability maps and bit
histories change one after the other as ever: their rates depend on what they hold.
"""

import numpy as np

from squeeze.codecs.bitmodels import histories, match, mixer
from squeeze.codecs.bytewise import model as bytewise
from squeeze.codecs.tokenwise import log as logs, token_match
from squeeze.codecs.tokenwise.arrays import APM, SET, STOP_ORDERS
from squeeze.codecs.tokenwise.decision import APM_RATE, STOP_LIMIT
from squeeze.codecs.tokenwise.log import APM_BYTE, APM_ORDER2, STOP
from squeeze.codecs.tokenwise.model import ESCAPE_LIMIT
from squeeze.numerics.jit import inline, part

_BITS = np.array([24, 24, 22, 22])  # after the point of a step times an input, by row of scales

# Tasks: the longest first.
_PARTS = 8  # of the slots
_CONTEXTS = 4  # a task
_SETS = _PARTS
_FINAL = _SETS + len(SET)
_BYTE_SETS = _FINAL + 1
_BYTE_FINAL = _BYTE_SETS + 3
_APMS = _BYTE_FINAL + 1
_STOPS = _APMS + len(APM) + 2
_MATCHES = _STOPS + STOP_ORDERS
_TOKENS = _MATCHES + 1
_MAPS = _TOKENS + 1


@inline
def tasks(m):
    """How many there are."""
    return _MAPS + (m.hashes.size + _CONTEXTS - 1) // _CONTEXTS


@inline
def learn(task, m, x, log, first_lane, lanes):
    """Do a task for the lanes of a batch, the first of which is `first_lane`."""
    if task < _SETS:
        _learn_slots(m, log, lanes, task)
    elif task < _FINAL:
        for k in x.sets:
            if k == task - _SETS:
                _learn_weights(
                    x.weights, m.inputs.size, log.hits, log.inputs, log.rows, log.steps, k, logs.FINE, log, lanes
                )
    elif task == _FINAL:
        rows, steps = log.final_rows, log.final_steps
        _learn_weights(x.final_weights, len(SET), log.final_hits, log.logits, rows, steps, 0, logs.FINAL, log, lanes)
    elif task < _BYTE_FINAL:
        k, rows, steps = task - _BYTE_SETS, log.byte_rows, log.byte_steps
        if k < m.rows.size:
            width, hits = m.state.first_extra, log.byte_hits
            _learn_weights(m.weights, width, hits, log.inputs, rows, steps, k, logs.BYTE_FINE, log, lanes)
    elif task == _BYTE_FINAL:
        rows, steps, hits = log.byte_final_rows, log.byte_final_steps, log.byte_final_hits
        _learn_weights(m.final_weights, m.rows.size, hits, log.byte_logits, rows, steps, 0, logs.BYTE_FINAL, log, lanes)
    elif task < _STOPS:
        k = task - _APMS
        if k == APM_BYTE:
            _learn_apm(m.apm_byte, log, lanes, k, bytewise.APM_RATES[0])
        elif k == APM_ORDER2:
            _learn_apm(m.apm_order2, log, lanes, k, bytewise.APM_RATES[1])
        else:
            _learn_apm(x.apms, log, lanes, k, APM_RATE)
    elif task < _MATCHES:
        _learn_stops(x, log, lanes, task - _STOPS)
    elif task == _MATCHES:
        _learn_matches(m, x, log, lanes)
    elif task == _TOKENS:
        _learn_tokens(x, log, first_lane, lanes)
    else:
        _learn_maps(m, log, lanes, (task - _MAPS) * _CONTEXTS)


@part
def _learn_slots(m, log, lanes, task):
    """Bit histories, of every _PARTS-th cache line."""
    mask = np.uint64(m.state.line_mask)
    for p in range(lanes):
        for nibble in range(log.nibbles[p]):
            path = np.int64(log.paths[p, nibble])
            if path & 15 == 0:
                continue
            for i in range(m.hashes.size):
                h = log.hashes[p, nibble, i]
                if np.int64(h >> np.uint64(20)) & np.int64(mask) & (_PARTS - 1) != task:
                    continue
                slot = np.int64(histories.find_slot(m.slots, h, mask))
                for place in range(3, -1, -1):
                    if (path >> place) & 1:
                        after = path >> (4 + place)
                        index = slot + (after >> 1)
                        m.slots[index] = histories.NEXT[(after & 1) << 8 | np.int64(m.slots[index])]


@part
def _learn_weights(weights, width, hits, inputs, rows, steps, k, kind, log, lanes):
    """weights: int32 [*, >= width]; hits: int32 [*], zeros; inputs [P, D, >= width]; rows and steps [P, D, sets];
    kind: a row of the log's scales."""
    bits, scales = _BITS[kind], log.scales[kind]
    half = np.int64(1) << (bits - 1)
    for p in range(lanes):
        for d in range(log.decisions[p]):
            if rows[p, d, k] >= 0:
                hits[rows[p, d, k]] += 1
    for p in range(lanes):
        for d in range(log.decisions[p]):
            row = rows[p, d, k]
            if row >= 0:
                scale = scales[min(hits[row], scales.size - 1)]
                step = np.int64(np.int32((steps[p, d, k] * scale) >> 16))
                seen, present = inputs[p, d], weights[row]
                for i in range(width):
                    present[i] = np.int32(present[i] + ((step * np.int64(seen[i]) + half) >> bits))
    for p in range(lanes):
        for d in range(log.decisions[p]):
            if rows[p, d, k] >= 0:
                hits[rows[p, d, k]] = 0


@part
def _learn_apm(apm, log, lanes, k, rate):
    for p in range(lanes):
        for d in range(log.decisions[p]):
            cell = np.int64(log.cells[p, d, k])
            if cell >= 0:
                mixer.learn_step(apm, cell >> 6, cell & 63, np.int64(log.outcomes[p, d]) & 1, rate)


@part
def _learn_maps(m, log, lanes, first):
    """Adaptive maps of some contexts."""
    for p in range(lanes):
        for d in range(log.decisions[p]):
            outcome = np.int64(log.outcomes[p, d])
            if outcome < STOP:
                for i in range(first, min(first + _CONTEXTS, m.hashes.size)):
                    histories.learn(m.maps, log.slots[p, d, i], outcome, bytewise.MAP_LIMIT)


@part
def _learn_stops(x, log, lanes, k):
    for p in range(lanes):
        for d in range(log.decisions[p]):
            outcome = np.int64(log.outcomes[p, d])
            if outcome >= STOP:
                histories.learn(x.stop_maps[k], log.slots[p, d, k], outcome & 1, STOP_LIMIT)


@part
def _learn_matches(m, x, log, lanes):
    """Maps and tables of the matches of bytes, and maps of those of tokens and escapes."""
    last = m.matches.size
    for p in range(lanes):
        for d in range(log.decisions[p]):
            for k in range(last):
                noted = np.int64(log.matches[p, d, k])
                if noted >= 0:
                    histories.learn(m.match_maps, noted >> 1, noted & 1, bytewise.MATCH_LIMIT)
            noted = np.int64(log.matches[p, d, last])
            if noted >= 0:
                histories.learn(x.token_maps, noted >> 1, noted & 1, token_match.LIMIT)
        histories.learn(x.escape, 0, np.int64(log.entries[p] < 0), ESCAPE_LIMIT)
        for position in range(log.begins[p], log.ends[p]):
            for k in range(last):
                match.note_byte(m.least_lengths, m.match_table, m.data, position, k)


@part
def _learn_tokens(x, log, first_lane, lanes):
    for p in range(lanes):
        token_match.update_token(x, first_lane + p, log.entries[p])
