"""What learning.py does, by the warps of a GPU: threads that do the same at the same time, on neighbouring things.

Steps of weights are added by all threads at once, since sums of integers have no order. What changes one after the
other, as bit histories and maps do, is cut into tasks by its cells: a warp reads the log, as many notes at a time as it
has threads, and those whose note is of its cells learn it in turn. So cells see their notes in the order of the log,
and hold what the processor's tasks leave in them.

How threads of a warp speak to each other is cuda.py's; tests run a warp of one thread.
"""

import numpy as np

from squeeze.codecs.bitmodels import histories, match, mixer
from squeeze.codecs.bytewise import model as bytewise
from squeeze.codecs.tokenwise import learning, log as logs, token_match
from squeeze.codecs.tokenwise.arrays import APM, SET, STOP_ORDERS
from squeeze.codecs.tokenwise.decision import APM_RATE, STOP_LIMIT
from squeeze.codecs.tokenwise.log import APM_BYTE, APM_ORDER2, CUT, STOP
from squeeze.numerics.jit import inline

_COUNT, _ADD, _CLEAR = range(3)  # what is done with the uses of weight sets
_APMS = len(APM) + 2
_SPREAD = 0x9E3779B1  # an odd number that mixes the bits of a cell


@inline
def fill_in(own, t, log, lanes, rank, size):
    """The bytes of all lanes of a batch, in all copies of the block."""
    copies = own.data.shape[0]
    each = max(1, size // copies)  # threads to a copy
    if rank < each * copies:
        for copy in range(rank // each, copies, size // each):
            for p in range(rank % each, lanes, each):
                logs.fill_in(own.data[copy], t, log, p)


@inline
def list_notes(log, lanes, rank, size):
    """Fill in the notes of a batch, a lane a thread."""
    for p in range(rank, lanes, size):
        decision, nibble = np.int64(0), np.int64(0)
        for before in range(p):
            decision += log.decisions[before]
            nibble += log.nibbles[before]
        for d in range(log.decisions[p]):
            log.notes.decisions[decision + d] = p << 16 | d
        for n in range(log.nibbles[p]):
            log.notes.nibbles[nibble + n] = p << 16 | n
        if p == lanes - 1:
            log.notes.totals[0] = decision + log.decisions[p]
            log.notes.totals[1] = nibble + log.nibbles[p]


@inline
def count_uses(m, x, log, rank, size, add):
    """How often the batch used each weight set."""
    _each_use(m, x, log, _COUNT, rank, size, 0, 1, add)


@inline
def clear_uses(m, x, log, rank, size, add):
    _each_use(m, x, log, _CLEAR, rank, size, 0, 1, add)


@inline
def learn(m, x, log, first_lane, lanes, rank, size, width, vote, first_of, settle, add):
    """Learn from a batch, once its uses are counted, by one of `size` threads in warps of `width`."""
    warps = size // width
    warp, lane = rank % warps, rank // warps
    _each_use(m, x, log, _ADD, warp, warps, lane, width, add)
    parts, cells = log.cut[CUT.slots], log.cut[CUT.cells]
    matches = m.matches.size
    singles = 2 + matches
    tasks = singles + parts + (m.hashes.size + STOP_ORDERS + _APMS + matches + 1) * cells
    for task in range(warp, tasks, warps):
        if task == 0:
            if lane == 0:
                learning.learn_tokens(x, log, first_lane, lanes)
        elif task == 1:
            if lane == 0:
                learning.learn_escapes(x, log, lanes)
        elif task < singles:
            _note_bytes(m, log, lanes, task - 2, lane, width, vote, settle)
        elif task < singles + parts:
            _learn_slots(m, log, task - singles, parts, lane, width, vote, first_of, settle)
        else:
            cell = task - singles - parts
            _learn_cells(cell // cells, m, x, log, cell % cells, cells, lane, width, vote, first_of, settle)


@inline
def _each_use(m, x, log, what, begin, step, lane, width, add):
    """Do `what` with each use of a weight set, the columns of which are added to by the threads of a warp."""
    sets, selectors = len(SET), m.rows.size
    groups = sets + 1 + selectors + 1
    for use in range(begin, log.notes.totals[0] * groups, step):
        at, group = np.int64(log.notes.decisions[use // groups]), use % groups
        p, d = at >> 16, at & 0xFFFF
        if group < sets:
            for k in x.sets:
                if k == group:
                    row, step_of = log.rows[p, d, k], log.steps[p, d, k]
                    inputs, width_of = log.inputs[p, d], m.inputs.size
                    _use(x.weights, width_of, log.hits[0], inputs, row, step_of, logs.FINE, log, what, lane, width, add)
        elif group == sets:
            row, step_of = log.final_rows[p, d, 0], log.final_steps[p, d, 0]
            inputs, hits = log.logits[p, d], log.final_hits[0]
            _use(x.final_weights, sets, hits, inputs, row, step_of, logs.FINAL, log, what, lane, width, add)
        elif group <= sets + selectors:
            k = group - sets - 1
            row, step_of = log.byte_rows[p, d, k], log.byte_steps[p, d, k]
            inputs, hits, width_of = log.inputs[p, d], log.byte_hits[0], m.state.first_extra
            _use(m.weights, width_of, hits, inputs, row, step_of, logs.BYTE_FINE, log, what, lane, width, add)
        else:
            row, step_of = log.byte_final_rows[p, d, 0], log.byte_final_steps[p, d, 0]
            inputs, hits = log.byte_logits[p, d], log.byte_final_hits[0]
            _use(m.final_weights, selectors, hits, inputs, row, step_of, logs.BYTE_FINAL, log, what, lane, width, add)


@inline
def _use(weights, columns, hits, inputs, row, step, kind, log, what, lane, width, add):
    if row < 0:
        return
    if what == _COUNT:
        add(hits, row, np.int32(1))
    elif what == _CLEAR:
        hits[row] = 0
    else:
        scaled = learning.scaled_step(log, kind, hits[row], step)
        for i in range(lane, columns, width):
            add(weights[row], i, np.int32(learning.change(kind, scaled, inputs[i])))


@inline
def _learn_slots(m, log, part, parts, lane, width, vote, first_of, settle):
    """As that of learning.py."""
    mask, contexts = np.uint64(m.state.line_mask), m.hashes.size
    n, i = np.int64(0), np.int64(lane)
    for _ in range(0, log.notes.totals[1] * contexts, width):
        while i >= contexts:
            i -= contexts
            n += 1
        path, h, mine = np.int64(0), np.uint64(0), False
        if n < log.notes.totals[1]:
            at = np.int64(log.notes.nibbles[n])
            path = np.int64(log.paths[at >> 16, at & 0xFFFF])
            h = log.hashes[at >> 16, at & 0xFFFF, i]
            mine = path & 15 != 0 and np.int64(h >> np.uint64(20)) & np.int64(mask) & (parts - 1) == part
        found = vote(mine)
        while found != 0:
            if first_of(found) == lane:
                learning.learn_slot(m, h, path)
            settle()
            found &= found - 1
        i += width


@inline
def _learn_cells(number, m, x, log, part, parts, lane, width, vote, first_of, settle):
    """Maps of a number: those of contexts, then of stops, of refinements, and of matches."""
    for begin in range(0, log.notes.totals[0], width):
        n, noted = begin + lane, np.int64(-1)
        if n < log.notes.totals[0]:
            at = np.int64(log.notes.decisions[n])
            noted = _noted(number, m, log, at >> 16, at & 0xFFFF)
        mine = noted >= 0 and ((noted >> 1) * _SPREAD >> 16) & (parts - 1) == part
        found = vote(mine)
        while found != 0:
            if first_of(found) == lane:
                _learn_cell(number, m, x, noted >> 1, noted & 1)
            settle()
            found &= found - 1


@inline
def _noted(number, m, log, p, d):
    """A cell, twice, and the bit that it is to learn; -1 where there is none."""
    outcome, contexts = np.int64(log.outcomes[p, d]), m.hashes.size
    bit, noted = outcome & 1, np.int64(-1)
    if number < contexts:
        if outcome < STOP:
            noted = np.int64(log.slots[p, d, number]) << 1 | bit
    elif number < contexts + STOP_ORDERS:
        if outcome >= STOP:
            noted = np.int64(log.slots[p, d, number - contexts]) << 1 | bit
    elif number < contexts + STOP_ORDERS + _APMS:
        cell = np.int64(log.cells[p, d, number - contexts - STOP_ORDERS])
        if cell >= 0:
            noted = cell << 1 | bit
    else:
        noted = np.int64(log.matches[p, d, number - contexts - STOP_ORDERS - _APMS])
    return noted


@inline
def _learn_cell(number, m, x, cell, bit):
    contexts = m.hashes.size
    if number < contexts:
        histories.learn(m.maps, cell, bit, bytewise.MAP_LIMIT)
    elif number < contexts + STOP_ORDERS:
        histories.learn(x.stop_maps[number - contexts], cell, bit, STOP_LIMIT)
    elif number < contexts + STOP_ORDERS + _APMS:
        k = number - contexts - STOP_ORDERS
        if k == APM_BYTE:
            mixer.learn_step(m.apm_byte, cell >> 6, cell & 63, bit, bytewise.APM_RATES[0])
        elif k == APM_ORDER2:
            mixer.learn_step(m.apm_order2, cell >> 6, cell & 63, bit, bytewise.APM_RATES[1])
        else:
            mixer.learn_step(x.apms, cell >> 6, cell & 63, bit, APM_RATE)
    elif number < contexts + STOP_ORDERS + _APMS + m.matches.size:
        histories.learn(m.match_maps, cell, bit, bytewise.MATCH_LIMIT)
    else:
        histories.learn(x.token_maps, cell, bit, token_match.LIMIT)


@inline
def _note_bytes(m, log, lanes, k, lane, width, vote, settle):
    """The table of a match. In a row that several positions of a batch go to, the last of them stays: the largest."""
    least = m.least_lengths[k]
    for begin in range(0, lanes, width):
        position, end = np.int64(0), np.int64(0)
        if begin + lane < lanes:
            position, end = log.begins[begin + lane], log.ends[begin + lane]
        first, wrote = True, True
        while vote(wrote) != 0:
            wrote = first
            for at in range(max(position, least - 1), end):
                row = match.row_of(m.match_table, m.data, at, least)
                if first or m.match_table[k, row] < at + 1:
                    m.match_table[k, row] = at + 1
                    wrote = True
            first = False
            settle()
