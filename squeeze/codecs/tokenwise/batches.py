"""Coding lanes in batches: all lanes of a batch are coded by one state of what they share, which then learns from all.

In turns (model.py) each lane learns from those before it, so that one thread has to do it all. The lanes of a batch
know nothing of each other. Each arithmetic coder of a batch has lanes of its own, and any worker may take a coder, or a
task of learning (learning.py): what is coded is the same for any number of workers. These are threads of the processor
here; on_gpu.py runs the same code by those of a GPU.
"""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic, contexts, layout
from squeeze.codecs.bytewise.arrays import ByteModel
from squeeze.codecs.tokenwise import learning, log as logs, model as tokenwise
from squeeze.codecs.tokenwise.arrays import TokenMix
from squeeze.numerics.frequencies import Cdf
from squeeze.numerics.jit import inline, kernel, part, replaced
from squeeze.numerics.team import take, wait
from squeeze.numerics.trie import Trie

CODER = 16  # cells, two cache lines, so that threads do not write to the same one
_CODING, _LEARNING, _FAILED, _DECISIONS, _TICKETS = 0, 16, 32, 48, 64
_APART = 16  # rows from one worker's to the next one's, so that threads do not write to the same cache line


def fresh_tickets() -> np.ndarray:
    return np.zeros(_TICKETS, np.int64)


class Own(NamedTuple):
    """What each of W workers has to itself of the models and the log: their fields of these names. Of the first three
    there are W rows, of the others W * _APART."""

    data: np.ndarray
    followed1: np.ndarray
    followed2: np.ndarray
    state: np.ndarray
    registers: np.ndarray
    hashes: np.ndarray
    slot: np.ndarray
    entry: np.ndarray
    matches: np.ndarray
    inputs: np.ndarray
    rows: np.ndarray
    logits: np.ndarray
    token_state: np.ndarray
    token_rows: np.ndarray
    token_logits: np.ndarray
    apm_rows: np.ndarray
    stop_entries: np.ndarray
    cursor: np.ndarray


def build(
    m: ByteModel, x: TokenMix, t: Trie, batch: int, workers: int, cut: logs.Cut = logs.THREADS
) -> tuple[ByteModel, logs.Log, Own]:
    """The models of bytes as batches need them, a log, and what so many workers have to themselves."""
    assert not (m.specs[:, 0] == contexts.FOLLOWED).any(), "what followed a byte is not noted"
    m = m._replace(slots=layout.aligned_zeros(m.slots.size + layout.LINE))
    log = logs.build(m, x, t, batch, cut)

    def each(name: str, values: Any) -> np.ndarray:
        if name == "data":  # nothing is coded yet, and memory that nobody touches costs nothing
            return np.zeros((workers, values.size), values.dtype)
        return np.repeat(np.asarray(values)[None], workers * (1 if name in Own._fields[:3] else _APART), 0)

    of_tokens = {"token_state": x.state, "token_rows": x.rows, "token_logits": x.logits}
    own = {**m._asdict(), **of_tokens, "apm_rows": x.apm_rows, "stop_entries": x.stop_entries, "cursor": log.cursor}
    return m, log, Own(*(each(name, own[name]) for name in Own._fields))


@inline
def take_first(tickets, rank):
    """The number of the coder that a thread begins with."""
    return take(tickets, _CODING)


@inline
def take_next(tickets, number, size):
    """The number after `number` that nobody else has."""
    return take(tickets, _CODING)


@inline
def learn_by_tasks(m, x, t, log, own, first, lanes, tickets, rank, size, barrier):
    """Learn from a batch, whose bytes each thread fills in for itself. Returns False where the team was broken off."""
    for copy in range(rank, own.data.shape[0], size):
        for p in range(lanes):
            logs.fill_in(own.data[copy], t, log, p)
    task = take(tickets, _LEARNING)
    while task < learning.tasks(m, log):
        learning.learn(task, m, x, log, first, lanes)
        task = take(tickets, _LEARNING)
    return wait(barrier, size)


class Steps(NamedTuple):
    """Entries of some steps of all lanes, and what the language model says of them: as `code_steps` of model.py has
    them. ends: int64 [all lanes], where each lane's bytes end."""

    known: np.ndarray
    counts: Cdf
    rows: np.ndarray
    active: np.ndarray
    ends: np.ndarray
    logits: np.ndarray
    starts: np.ndarray
    top_nlls: np.ndarray


class Codes(NamedTuple):
    """The arithmetic coders of a batch. share: lanes of a batch to a coder."""

    coders: np.ndarray  # uint64 [coders, CODER]
    coded: np.ndarray  # uint8 [coders, *]
    sizes: np.ndarray  # int64 [coders]: how much of it may be used
    batch: int
    share: int


@kernel
def code_batches(m, x, t, log, own, steps, codes, decoding, tickets, rank, size, barrier, meter=None):
    """Code steps of all lanes, in either direction, by one thread of a team, which must wait for the others.

    Where `coded` is full, or cannot have been coded so, `tickets` say so: is_sound.
    """
    work(
        m,
        x,
        t,
        log,
        own,
        steps,
        codes,
        decoding,
        tickets,
        rank,
        size,
        barrier,
        meter,
        take_first,
        take_next,
        wait,
        learn_by_tasks,
    )


@inline
def work(
    m,
    x,
    t,
    log,
    own,
    steps,
    codes,
    decoding,
    tickets,
    rank,
    size,
    barrier,
    meter,
    first_number,
    next_number,
    meet,
    learn,
):
    """What `code_batches` does, by one worker of so many, and by how these take coders, wait for each other, and learn.
    More of them than own.data has copies of the block take part in learning alone."""
    copies, batch, share = own.data.shape[0], codes.batch, codes.share
    active = steps.active
    worker = rank % copies
    m = replaced(m, "data", own.data[worker])
    m = replaced(m, "followed1", own.followed1[worker])
    m = replaced(m, "followed2", own.followed2[worker])
    row = worker * _APART
    m = replaced(m, "state", own.state[row])
    m = replaced(m, "registers", own.registers[row])
    m = replaced(m, "hashes", own.hashes[row])
    m = replaced(m, "slot", own.slot[row])
    m = replaced(m, "entry", own.entry[row])
    m = replaced(m, "matches", own.matches[row])
    m = replaced(m, "inputs", own.inputs[row])
    m = replaced(m, "rows", own.rows[row])
    m = replaced(m, "logits", own.logits[row])
    x = replaced(x, "state", own.token_state[row])
    x = replaced(x, "rows", own.token_rows[row])
    x = replaced(x, "logits", own.token_logits[row])
    x = replaced(x, "apm_rows", own.apm_rows[row])
    x = replaced(x, "stop_entries", own.stop_entries[row])
    log = replaced(log, "cursor", own.cursor[row])
    for step in range(steps.known.shape[1]):
        for first in range(0, active[step], batch):
            lanes = min(batch, active[step] - first)
            if rank == 0:
                tickets[_LEARNING] = 0
            if rank < copies:
                x.state.decisions = tickets[_DECISIONS]
                unit = first_number(tickets, rank)
                while unit * share < lanes:
                    for place in range(unit * share, min(unit * share + share, lanes)):
                        if not _code(m, x, t, log, steps, codes, unit, place, first + place, step, decoding, meter):
                            tickets[_FAILED] = 1
                            break
                    unit = next_number(tickets, unit, min(size, copies))
            if not meet(barrier, size) or tickets[_FAILED] != 0:
                return
            if rank == 0:
                tickets[_CODING] = 0
                decisions = 0
                for place in range(lanes):
                    decisions += log.decisions[place]
                tickets[_DECISIONS] += decisions
            if not learn(m, x, t, log, own, first, lanes, tickets, rank, size, barrier):
                return


@part
def _code(m, x, t, log, steps, codes, unit, place, lane, step, decoding, meter):
    """Code an entry of a lane by a coder. Returns False where that cannot be."""
    known, coder, coded = steps.known, codes.coders[unit], codes.coded[unit]
    path, row = steps.logits, 0
    if decoding:
        row = steps.rows[lane]
        x.state.top_nll = tokenwise.top_nll(steps.counts, row)
    else:
        path = steps.logits[steps.starts[lane, step] :]
        x.state.top_nll = steps.top_nlls[lane, step]
    room = arithmetic.SPARE if decoding else -tokenwise.spare_bytes(t.decisions[max(known[lane, step], 0)])
    if np.int64(coder[arithmetic.POSITION]) > codes.sizes[unit] + room or x.places[lane] >= steps.ends[lane]:
        return False
    logs.begin_entry(log, place, x.places[lane])
    known[lane, step] = tokenwise.code_entry(
        m, x, t, lane, known[lane, step], steps.counts, row, path, coder, coded, decoding, meter, log
    )
    return x.places[lane] <= steps.ends[lane]


def is_sound(tickets: np.ndarray) -> bool:
    """Whether nothing was impossible so far."""
    return bool(tickets[_FAILED] == 0)
