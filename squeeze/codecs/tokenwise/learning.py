"""What all lanes share learns from a batch of them, once all are coded.

Learning is cut into tasks, each of which changes arrays, or parts of one, that no other task reads or changes. So
tasks may run in any order and on any threads, and how finely it is cut (the log's `cut`) changes nothing. What a task
learns it takes from the log, lane by lane, and decision by decision.

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
from squeeze.codecs.tokenwise.log import APM_BYTE, APM_ORDER2, CUT, STOP
from squeeze.codecs.tokenwise.model import ESCAPE_LIMIT
from squeeze.numerics.jit import inline, part

_BITS = np.array([24, 24, 22, 22])  # after the point of a step times an input, by row of scales

# Weights that are learned apart: sets, final weights, and both of the bytewise models.
_FINAL = len(SET)
_BYTE_SETS = _FINAL + 1
_BYTE_FINAL = _BYTE_SETS + 3
_WEIGHTS = _BYTE_FINAL + 1
# Maps of single cells: of probabilities, and of stops.
_APMS = len(APM) + 2
_CELLS = _APMS + STOP_ORDERS


@inline
def _map_tasks(m, cut):
    return (m.hashes.size + cut[CUT.contexts] - 1) // cut[CUT.contexts]


@inline
def tasks(m, log):
    """How many there are."""
    cut = log.cut
    weights, cells = _WEIGHTS * cut[CUT.columns], (_CELLS + _map_tasks(m, cut)) * cut[CUT.cells]
    return cut[CUT.slots] + weights + cells + m.matches.size + 3


@inline
def learn(task, m, x, log, first_lane, lanes):
    """Do a task for the lanes of a batch, the first of which is `first_lane`. The longest tasks come first."""
    parts = log.cut[CUT.slots]
    if task < parts:
        _learn_slots(m, log, lanes, task, parts)
        return
    task -= parts
    parts = log.cut[CUT.columns]
    if task < _WEIGHTS * parts:
        _learn_weights_of(task // parts, m, x, log, lanes, task % parts, parts)
        return
    task -= _WEIGHTS * parts
    parts = log.cut[CUT.cells]
    if task < _CELLS * parts:
        _learn_cells(task // parts, m, x, log, lanes, task % parts, parts)
        return
    task -= _CELLS * parts
    if task <= m.matches.size:
        _learn_matches(m, x, log, lanes, task)
        return
    task -= m.matches.size + 1
    if task == 0:
        learn_tokens(x, log, first_lane, lanes)
    elif task == 1:
        learn_escapes(x, log, lanes)
    else:
        task -= 2
        _learn_maps(m, log, lanes, task // parts * log.cut[CUT.contexts], task % parts, parts)


@inline
def _learn_weights_of(group, m, x, log, lanes, part, parts):
    if group < _FINAL:
        for k in x.sets:
            if k == group:
                hits, rows, steps = log.hits[part], log.rows, log.steps
                _learn_weights(
                    x.weights, m.inputs.size, hits, log.inputs, rows, steps, k, logs.FINE, log, lanes, part, parts
                )
    elif group == _FINAL:
        hits, rows, steps = log.final_hits[part], log.final_rows, log.final_steps
        _learn_weights(x.final_weights, len(SET), hits, log.logits, rows, steps, 0, logs.FINAL, log, lanes, part, parts)
    elif group < _BYTE_FINAL:
        k, hits, rows, steps = group - _BYTE_SETS, log.byte_hits[part], log.byte_rows, log.byte_steps
        if k < m.rows.size:
            width = m.state.first_extra
            _learn_weights(m.weights, width, hits, log.inputs, rows, steps, k, logs.BYTE_FINE, log, lanes, part, parts)
    else:
        hits, rows, steps = log.byte_final_hits[part], log.byte_final_rows, log.byte_final_steps
        _learn_weights(
            m.final_weights,
            m.rows.size,
            hits,
            log.byte_logits,
            rows,
            steps,
            0,
            logs.BYTE_FINAL,
            log,
            lanes,
            part,
            parts,
        )


@inline
def _learn_cells(k, m, x, log, lanes, part, parts):
    if k >= _APMS:
        _learn_stops(x, log, lanes, k - _APMS, part, parts)
    elif k == APM_BYTE:
        _learn_apm(m.apm_byte, log, lanes, k, bytewise.APM_RATES[0], part, parts)
    elif k == APM_ORDER2:
        _learn_apm(m.apm_order2, log, lanes, k, bytewise.APM_RATES[1], part, parts)
    else:
        _learn_apm(x.apms, log, lanes, k, APM_RATE, part, parts)


@part
def _learn_slots(m, log, lanes, part, parts):
    """Bit histories, of one of so many parts of the cache lines; parts is a power of two."""
    mask = np.uint64(m.state.line_mask)
    for p in range(lanes):
        for nibble in range(log.nibbles[p]):
            path = np.int64(log.paths[p, nibble])
            if path & 15 == 0:
                continue
            for i in range(m.hashes.size):
                h = log.hashes[p, nibble, i]
                if np.int64(h >> np.uint64(20)) & np.int64(mask) & (parts - 1) != part:
                    continue
                learn_slot(m, h, path)


@inline
def learn_slot(m, h, path):
    """The bits of a nibble, in the context of a hash: `path` of the log."""
    slot = np.int64(histories.find_slot(m.slots, h, np.uint64(m.state.line_mask)))
    for place in range(3, -1, -1):
        if (path >> place) & 1:
            after = path >> (4 + place)
            index = slot + (after >> 1)
            m.slots[index] = histories.NEXT[(after & 1) << 8 | np.int64(m.slots[index])]


@inline
def scaled_step(log, kind, uses, step):
    """A step of a weight set that was used so often."""
    scales = log.scales[kind]
    return np.int64(np.int32((step * scales[min(uses, scales.size - 1)]) >> 16))


@inline
def change(kind, step, seen):
    """What a step adds to the weight of an input."""
    bits = _BITS[kind]
    return (step * np.int64(seen) + (np.int64(1) << (bits - 1))) >> bits


@part
def _learn_weights(weights, width, hits, inputs, rows, steps, k, kind, log, lanes, part, parts):
    """One of so many parts of the columns.

    weights: int32 [*, >= width]; hits: int32 [*], zeros; inputs [P, D, >= width]; rows and steps [P, D, sets];
    kind: a row of the log's scales.
    """
    begin, end = width * part // parts, width * (part + 1) // parts
    for p in range(lanes):
        for d in range(log.decisions[p]):
            if rows[p, d, k] >= 0:
                hits[rows[p, d, k]] += 1
    for p in range(lanes):
        for d in range(log.decisions[p]):
            row = rows[p, d, k]
            if row >= 0:
                step = scaled_step(log, kind, hits[row], steps[p, d, k])
                seen, present = inputs[p, d], weights[row]
                for i in range(begin, end):
                    present[i] = np.int32(present[i] + change(kind, step, seen[i]))
    for p in range(lanes):
        for d in range(log.decisions[p]):
            if rows[p, d, k] >= 0:
                hits[rows[p, d, k]] = 0


@part
def _learn_apm(apm, log, lanes, k, rate, part, parts):
    for p in range(lanes):
        for d in range(log.decisions[p]):
            cell = np.int64(log.cells[p, d, k])
            if cell >= 0 and cell & (parts - 1) == part:
                mixer.learn_step(apm, cell >> 6, cell & 63, np.int64(log.outcomes[p, d]) & 1, rate)


@part
def _learn_maps(m, log, lanes, first, part, parts):
    """Adaptive maps of some contexts."""
    for p in range(lanes):
        for d in range(log.decisions[p]):
            outcome = np.int64(log.outcomes[p, d])
            if outcome < STOP:
                for i in range(first, min(first + log.cut[CUT.contexts], m.hashes.size)):
                    slot = log.slots[p, d, i]
                    if np.int64(slot) & (parts - 1) == part:
                        histories.learn(m.maps, slot, outcome, bytewise.MAP_LIMIT)


@part
def _learn_stops(x, log, lanes, k, part, parts):
    for p in range(lanes):
        for d in range(log.decisions[p]):
            outcome, slot = np.int64(log.outcomes[p, d]), log.slots[p, d, k]
            if outcome >= STOP and np.int64(slot) & (parts - 1) == part:
                histories.learn(x.stop_maps[k], slot, outcome & 1, STOP_LIMIT)


@part
def _learn_matches(m, x, log, lanes, k):
    """Maps and table of a match of bytes, or, after the last of these, maps of those of tokens."""
    last = m.matches.size
    for p in range(lanes):
        for d in range(log.decisions[p]):
            noted = np.int64(log.matches[p, d, k])
            if noted >= 0 and k < last:
                histories.learn(m.match_maps, noted >> 1, noted & 1, bytewise.MATCH_LIMIT)
            elif noted >= 0:
                histories.learn(x.token_maps, noted >> 1, noted & 1, token_match.LIMIT)
        if k < last:
            for position in range(log.begins[p], log.ends[p]):
                match.note_byte(m.least_lengths, m.match_table, m.data, position, k)


@inline
def learn_escapes(x, log, lanes):
    for p in range(lanes):
        histories.learn(x.escape, 0, np.int64(log.entries[p] < 0), ESCAPE_LIMIT)


@inline
def learn_tokens(x, log, first_lane, lanes):
    for p in range(lanes):
        token_match.update_token(x, first_lane + p, log.entries[p])
