"""What a batch of lanes teaches the tokenwise models, in plain Python: lane by lane, decision by decision, all arrays
at once. Weights are what they were before the batch plus a sum.
"""

from collections import Counter

import numpy as np

from squeeze.codecs.bitmodels import mixer
from squeeze.codecs.bitmodels.histories import NEXT, RATES
from squeeze.codecs.bitmodels.match import _MULTIPLY

STOP_LIMIT, MAP_LIMIT, MATCH_LIMIT, TOKEN_LIMIT, ESCAPE_LIMIT = 250, 511, 255, 255, 1000
SLOW = 64  # K of docs/format.md


def shared(m, x):
    """All that lanes share but their tokens."""
    of_m = ("slots", "maps", "match_maps", "match_table", "weights", "final_weights", "apm_byte", "apm_order2")
    of_x = ("weights", "final_weights", "apms", "stop_maps", "token_maps", "escape")
    return {f"m.{name}": getattr(m, name) for name in of_m} | {f"x.{name}": getattr(x, name) for name in of_x}


def learn(arrays, m, log, lanes):
    """Bring copies from before a batch up to date."""
    for p in range(lanes):
        for d in range(log.decisions[p]):
            _learn_decision(arrays, m, log, p, d)
        adapt(arrays["x.escape"], 0, int(log.entries[p] < 0), ESCAPE_LIMIT)
        for nibble in range(log.nibbles[p]):
            _learn_nibble(arrays["m.slots"], int(m.state.line_mask), log.hashes[p, nibble], int(log.paths[p, nibble]))
        for position in range(log.begins[p], log.ends[p]):
            for k, least in enumerate(m.least_lengths):
                if position + 1 >= least:
                    table = arrays["m.match_table"][k]
                    table[_row(m.data, position, int(least), table.size)] = position + 1
    events = [(p, d) for p in range(lanes) for d in range(log.decisions[p])]
    first_extra = int(m.state.first_extra)
    for name, inputs, rows, steps, bits in (
        ("x.weights", log.inputs, log.rows, log.steps, 24),
        ("x.final_weights", log.logits, log.final_rows, log.final_steps, 24),
        ("m.weights", log.inputs[:, :, :first_extra], log.byte_rows, log.byte_steps, 22),
        ("m.final_weights", log.byte_logits, log.byte_final_rows, log.byte_final_steps, 22),
    ):
        _add(arrays[name], inputs, rows, steps, bits, events)


def _add(weights, inputs, rows, steps, bits, events):
    for k in range(rows.shape[2]):
        uses = Counter(int(rows[p, d, k]) for p, d in events)
        width = min(weights.shape[1], inputs.shape[2])
        change = {row: np.zeros(width, object) for row in uses}
        for p, d in reversed(events):
            row = int(rows[p, d, k])
            step = (int(steps[p, d, k]) * (65536 * SLOW // (SLOW + uses[row] - 1))) >> 16
            seen = inputs[p, d].astype(object)
            change[row] += (step * seen + (1 << (bits - 1))) >> bits
        for row, value in change.items():
            if row >= 0:
                weights[row, :width] = (weights[row, :width].astype(object) + value).astype(np.int32)


def _learn_decision(arrays, m, log, p, d):
    bit, is_stop = int(log.outcomes[p, d]) & 1, log.outcomes[p, d] >= 2
    apms = {5: ("m.apm_byte", 6), 6: ("m.apm_order2", 5)}
    for k in range(7):
        cell, (name, rate) = int(log.cells[p, d, k]), apms.get(k, ("x.apms", 6))
        if cell >= 0:
            row, step = cell >> 6, cell & 63
            identity = int(mixer.IDENTITY[step])
            value = int(arrays[name][row, step]) ^ identity
            arrays[name][row, step] = (value + ((((1 << 32) - 1 if bit else 0) - value) >> rate)) ^ identity
    for k in range(6 if is_stop else m.hashes.size):
        if is_stop:
            adapt(arrays["x.stop_maps"][k], int(log.slots[p, d, k]), bit, STOP_LIMIT)
        else:
            adapt(arrays["m.maps"], int(log.slots[p, d, k]), bit, MAP_LIMIT)
    for k in range(m.matches.size + 1):
        noted = int(log.matches[p, d, k])
        if noted >= 0 and k < m.matches.size:
            adapt(arrays["m.match_maps"], noted >> 1, noted & 1, MATCH_LIMIT)
        elif noted >= 0:
            adapt(arrays["x.token_maps"], noted >> 1, noted & 1, TOKEN_LIMIT)


def adapt(entries, i, bit, limit):
    """docs/format.md, 5.7."""
    count, probability = int(entries[i]) & 1023, int(entries[i]) >> 10
    probability += ((((1 << 22) - 1 if bit else 0) - probability) * int(RATES[count])) >> 16
    entries[i] = probability << 10 | min(count + 1, max(limit, count))


def _learn_nibble(slots, mask, hashes, path):
    """docs/format.md, 5.5 and 5.6."""
    if path & 15 == 0:
        return
    for h in map(int, hashes):
        line = ((h >> 20) & mask) * 64
        check, places = h >> 8 & 255, range(line, line + 64, 16)
        slot = next((place for place in places if slots[place] == check), None)
        if slot is None:
            slot = min(places, key=lambda place: slots[place + 1])
            slots[slot : slot + 16] = 0
            slots[slot] = check
        for place in range(3, -1, -1):
            if path >> place & 1:
                after = path >> (4 + place)
                slots[slot + (after >> 1)] = NEXT[(after & 1) << 8 | int(slots[slot + (after >> 1)])]


def _row(data, position, least, size):
    h = 0
    for i in range(least):
        h = (h + int(data[position - i]) + 1) * int(_MULTIPLY) % (1 << 64)
    return h >> 40 & (size - 1)
