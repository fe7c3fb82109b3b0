"""What the lanes of a batch saw while they were coded: all that learning needs, and in a place of each lane's own.

Lanes of a batch are coded by the same state of all that they share. What they would have changed in it is noted here,
and learning.py does it when all of them are coded.
"""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.bitmodels import layout, match, mixer
from squeeze.codecs.bytewise import model as bytewise
from squeeze.codecs.bytewise.arrays import ByteModel
from squeeze.codecs.tokenwise.arrays import APM, SET, STOP_ORDERS, TokenMix
from squeeze.numerics.jit import inline
from squeeze.numerics.logistic import squash
from squeeze.numerics.trie import Trie

CURSOR = layout.fields("place decision nibble")
NONE, BYTE, STOP = -1, 0, 2  # kinds of decisions, beside the lowest bit, which is the outcome
APM_BYTE, APM_ORDER2 = len(APM), len(APM) + 1  # cells of the bytewise models, after those of APM


class Cut(NamedTuple):
    """How finely learning is cut into tasks: parts of the slots, of the columns of weights and of the cells of maps,
    all powers of two but the columns'; and contexts whose maps one task has."""

    slots: int
    columns: int
    cells: int
    contexts: int


CUT = Cut(*range(len(Cut._fields)))
THREADS = Cut(slots=8, columns=1, cells=1, contexts=4)  # for a few threads


_MOST = 4096  # uses of a weight set that are told apart
FINE, FINAL, BYTE_FINE, BYTE_FINAL = range(4)  # rows of scales: of weights, final weights, and those of bytewise models
HALVES = [64, 64, 64, 64]  # uses from which on a weight set learns half as fast from each


def scales(*halves: int) -> np.ndarray:
    """int64 [*, _MOST]: K / (K + n - 1) of n uses, with 16 fractional bits."""
    uses = np.maximum(np.arange(_MOST), 1)
    return np.array([65536 * half // (half + uses - 1) for half in halves])


class Notes(NamedTuple):
    """Where a log has its decisions and its nibbles: lane << 16 | number, one after the other. totals: how many."""

    decisions: np.ndarray  # int32 [P * D]
    nibbles: np.ndarray  # int32 [P * N]
    totals: np.ndarray  # int64 [2]


class Log(NamedTuple):
    """Of P lanes, with D decisions and N nibbles each. A worker has a cursor of its own; all else is shared."""

    cursor: Any  # a record of CURSOR: what is noted now
    cut: np.ndarray  # int64 [4]: a Cut
    begins: np.ndarray  # int64 [P]: where the entry's bytes begin
    ends: np.ndarray  # int64 [P]
    entries: np.ndarray  # int64 [P]
    decisions: np.ndarray  # int64 [P]: how many there were
    nibbles: np.ndarray  # int64 [P]
    outcomes: np.ndarray  # uint8 [P, D]: kind and bit
    slots: np.ndarray  # uint32 [P, D, contexts]: entries of adaptive maps, of bytes or of stops
    matches: np.ndarray  # int32 [P, D, matches + 1]: entries of match maps, twice, and whether they were right; or NONE
    cells: np.ndarray  # int32 [P, D, maps]: row * 64 + step of each adaptive probability map, or NONE
    inputs: np.ndarray  # int32 [P, D, inputs]
    rows: np.ndarray  # int64 [P, D, SET]: weight sets, or NONE
    steps: np.ndarray  # int64 [P, D, SET]: rate times error
    logits: np.ndarray  # int32 [P, D, SET]
    final_rows: np.ndarray  # int64 [P, D, 1]
    final_steps: np.ndarray  # int64 [P, D, 1]
    byte_rows: np.ndarray  # as the five before, of the bytewise models
    byte_steps: np.ndarray
    byte_logits: np.ndarray
    byte_final_rows: np.ndarray
    byte_final_steps: np.ndarray
    hashes: np.ndarray  # uint64 [P, N, contexts]
    paths: np.ndarray  # uint16 [P, N]: the node after the last bit of a nibble << 4, and which bits were learned
    hits: np.ndarray  # int32 [parts, rows]: how often each weight set was used; zeros, but while that is counted
    final_hits: np.ndarray
    byte_hits: np.ndarray
    byte_final_hits: np.ndarray
    scales: np.ndarray  # int64 [4, _MOST], what each of n uses of a weight set counts, with 16 fractional bits
    notes: Notes  # which a GPU fills in


def build(m: ByteModel, x: TokenMix, t: Trie, places: int, cut: Cut = THREADS) -> Log:
    """A log of so many lanes."""
    decisions = max(int(t.decisions.max(initial=0)), 8)
    nibbles = 2 * int(np.diff(t.offsets).max(initial=1))
    each, sets, selectors = (places, decisions), len(SET), m.rows.size
    return Log(
        cursor=layout.record(CURSOR),
        cut=np.array(cut, np.int64),
        begins=np.zeros(places, np.int64),
        ends=np.zeros(places, np.int64),
        entries=np.zeros(places, np.int64),
        decisions=np.zeros(places, np.int64),
        nibbles=np.zeros(places, np.int64),
        outcomes=np.zeros(each, np.uint8),
        slots=np.zeros((*each, max(m.hashes.size, STOP_ORDERS)), np.uint32),
        matches=np.zeros((*each, m.matches.size + 1), np.int32),
        cells=np.zeros((*each, len(APM) + 2), np.int32),
        inputs=np.zeros((*each, m.inputs.size), np.int32),
        rows=np.zeros((*each, sets), np.int64),
        steps=np.zeros((*each, sets), np.int64),
        logits=np.zeros((*each, sets), np.int32),
        final_rows=np.zeros((*each, 1), np.int64),
        final_steps=np.zeros((*each, 1), np.int64),
        byte_rows=np.zeros((*each, selectors), np.int64),
        byte_steps=np.zeros((*each, selectors), np.int64),
        byte_logits=np.zeros((*each, selectors), np.int32),
        byte_final_rows=np.zeros((*each, 1), np.int64),
        byte_final_steps=np.zeros((*each, 1), np.int64),
        hashes=np.zeros((places, nibbles, m.hashes.size), np.uint64),
        paths=np.zeros((places, nibbles), np.uint16),
        hits=np.zeros((cut.columns, len(x.weights)), np.int32),
        final_hits=np.zeros((cut.columns, len(x.final_weights)), np.int32),
        byte_hits=np.zeros((cut.columns, len(m.weights)), np.int32),
        byte_final_hits=np.zeros((cut.columns, len(m.final_weights)), np.int32),
        scales=scales(*HALVES),
        notes=Notes(*(np.zeros(places * each, np.int32) for each in (decisions, nibbles)), np.zeros(2, np.int64)),
    )


@inline
def begin_entry(log, place, position):
    """A lane's entry begins, whose bytes go to `position`."""
    log.cursor.place, log.cursor.decision, log.cursor.nibble = place, 0, -1
    log.begins[place] = position


@inline
def end_entry(log, position, entry):
    """It ended before `position`."""
    place = log.cursor.place
    log.ends[place] = position
    log.entries[place] = entry
    log.decisions[place] = log.cursor.decision
    log.nibbles[place] = log.cursor.nibble + 1


@inline
def _next_nibble(log):
    log.cursor.nibble += 1
    log.paths[log.cursor.place, log.cursor.nibble] = 0


@inline
def begin_byte(m, log):
    """As that of the bytewise models."""
    _next_nibble(log)
    bytewise.begin_byte(m, log.hashes[log.cursor.place, log.cursor.nibble])


@inline
def advance(m, bit, log):
    """As that of the bytewise models."""
    if m.state.shift == 4:
        _next_nibble(log)
    bytewise.advance(m, bit, log.hashes[log.cursor.place, log.cursor.nibble])


@inline
def _cell(row, logit):
    return np.int32(row << 6 | mixer.nearest_step(logit))


@inline
def note_mix(m, x, log, bit, rate, final_rate):
    """What weight sets and refinements are to learn: first of what is noted of a token's decision."""
    p, d, target = log.cursor.place, log.cursor.decision, (bit << 32) - bit
    for i in range(m.inputs.size):
        log.inputs[p, d, i] = m.inputs[i]
    for k in range(APM.model):
        log.cells[p, d, k] = _cell(x.apm_rows[k], x.state.logit)
    log.cells[p, d, APM.model] = _cell(x.apm_rows[APM.model], x.state.model_logit)
    for k in x.sets:
        log.rows[p, d, k], log.logits[p, d, k] = x.rows[k], x.logits[k]
        log.steps[p, d, k] = np.int32(((target - squash(np.int64(x.logits[k]))) >> 12) * rate)
    log.final_rows[p, d, 0] = x.state.final_row
    log.final_steps[p, d, 0] = np.int32(((target - x.state.mixed) >> 12) * final_rate)
    log.matches[p, d, m.matches.size] = x.state.match_entry ^ bit ^ 1 if x.state.match_entry >= 0 else NONE


@inline
def note_no_mix(m, x, log):
    """In place of `note_mix`, for a bit of a byte that no token spells."""
    p, d = log.cursor.place, log.cursor.decision
    for i in range(m.state.first_extra):
        log.inputs[p, d, i] = m.inputs[i]
    for k in range(len(APM)):
        log.cells[p, d, k] = NONE
    for k in x.sets:
        log.rows[p, d, k] = NONE
    log.final_rows[p, d, 0] = NONE
    log.matches[p, d, m.matches.size] = NONE


@inline
def note_byte(m, log, bit):
    """What the bytewise models are to learn from a bit of a byte: last of what is noted of it."""
    p, d, target = log.cursor.place, log.cursor.decision, (bit << 32) - bit
    log.outcomes[p, d] = BYTE | bit
    for i in range(m.hashes.size):
        log.slots[p, d, i] = m.entry[i]
    for k in range(m.matches.size):
        entry = m.matches[k].entry
        log.matches[p, d, k] = (
            np.int32(entry << 1 | match.follow_bit(m.matches, k, bit, m.state.shift)) if entry >= 0 else NONE
        )
    log.cells[p, d, APM_BYTE] = _cell(m.state.partial, m.state.logit)
    log.cells[p, d, APM_ORDER2] = _cell(m.state.apm_row, m.state.logit)
    for k in range(m.rows.size):
        log.byte_rows[p, d, k], log.byte_logits[p, d, k] = m.rows[k], m.logits[k]
        log.byte_steps[p, d, k] = np.int32(((target - squash(np.int64(m.logits[k]))) >> 16) * bytewise.RATE)
    log.byte_final_rows[p, d, 0] = m.state.partial
    log.byte_final_steps[p, d, 0] = np.int32(((target - m.state.mixed) >> 16) * bytewise.FINAL_RATE)
    nibble, learned = log.cursor.nibble, np.int64(log.paths[p, log.cursor.nibble]) & 15
    place = m.state.shift & 3
    node = (2 * m.state.node + bit) << place
    log.paths[p, nibble] = np.uint16(node << 4 | learned | 1 << place)
    log.cursor.decision = d + 1


@inline
def note_stop(m, x, log, bit):
    """What the contexts of whole tokens are to learn: last of what is noted of a stop."""
    p, d = log.cursor.place, log.cursor.decision
    log.outcomes[p, d] = STOP | bit
    for k in range(STOP_ORDERS):
        log.slots[p, d, k] = x.stop_entries[k]
    for k in range(m.matches.size):
        log.matches[p, d, k] = NONE
    log.cells[p, d, APM_BYTE] = log.cells[p, d, APM_ORDER2] = NONE
    for k in range(m.rows.size):
        log.byte_rows[p, d, k] = NONE
    log.byte_final_rows[p, d, 0] = NONE
    log.cursor.decision = d + 1


@inline
def fill_in(data, t, log, p):
    """The bytes of a lane's entry."""
    entry, begin = log.entries[p], log.begins[p]
    if entry < 0:
        data[begin] = np.uint8(-1 - entry)
    else:
        spelling = t.offsets[entry]
        for i in range(log.ends[p] - begin):
            data[begin + i] = t.spelling[spelling + i]
