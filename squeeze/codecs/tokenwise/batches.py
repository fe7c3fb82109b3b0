"""Coding lanes in batches: all lanes of a batch are coded by one state of what they share, which then learns from all.

In turns (model.py) each lane learns from those before it, so that one thread has to do it all. The lanes of a batch
know nothing of each other. Each arithmetic coder of a batch has lanes of its own, and any thread may take a coder, or a
task of learning (learning.py): what is coded is the same for any number of threads.
"""

from typing import Any

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic, contexts, layout
from squeeze.codecs.bytewise.arrays import ByteModel
from squeeze.codecs.tokenwise import learning, log as logs, model as tokenwise
from squeeze.codecs.tokenwise.arrays import TokenMix
from squeeze.numerics.jit import kernel, part
from squeeze.numerics.team import take, wait
from squeeze.numerics.trie import Trie

CODER = 16  # cells, two cache lines, so that threads do not write to the same one
_CODING, _LEARNING, _FAILED, _DECISIONS, _TICKETS = 0, 16, 32, 48, 64


def fresh_tickets() -> np.ndarray:
    return np.zeros(_TICKETS, np.int64)


def workers(m: ByteModel, x: TokenMix, t: Trie, batch: int, threads: int) -> list[tuple[ByteModel, TokenMix, logs.Log]]:
    """For each thread the models, of which it shares all but what belongs to the lane that it codes, and the log."""
    assert not (m.specs[:, 0] == contexts.FOLLOWED).any(), "what followed a byte is not noted"
    m = m._replace(slots=layout.aligned_zeros(m.slots.size + layout.LINE))
    log = logs.build(m, x, t, batch, threads)
    found = []
    for data in log.data:
        of_bytes = (
            "registers",
            "followed1",
            "followed2",
            "hashes",
            "slot",
            "entry",
            "matches",
            "inputs",
            "rows",
            "logits",
        )
        of_tokens = ("rows", "logits", "apm_rows", "stop_entries")
        own_m = m._replace(data=data, state=_copy(m.state), **{name: getattr(m, name).copy() for name in of_bytes})
        own_x = x._replace(state=_copy(x.state), **{name: getattr(x, name).copy() for name in of_tokens})
        found.append((own_m, own_x, log._replace(cursor=logs.cursor())))
    return found


def _copy(record: Any) -> Any:
    return np.array([record]).view(np.recarray)[0]


@kernel
def code_batches(
    m,
    x,
    t,
    log,
    known,
    counts,
    rows,
    active,
    ends,
    logits,
    starts,
    top_nlls,
    coders,
    coded,
    sizes,
    decoding,
    batch,
    share,
    tickets,
    rank,
    size,
    barrier,
    meter=None,
):
    """As `code_steps` of model.py, of all lanes, by one thread of a team, which must wait for the others.

    coders: uint64 [coders, CODER]; coded: uint8 [coders, *], of which sizes, int64 [coders], may be used; share: lanes
    of a batch to a coder. Where `coded` is full, or cannot have been coded so, `tickets` say so: is_sound.
    """
    for step in range(known.shape[1]):
        for first in range(0, active[step], batch):
            lanes = min(batch, active[step] - first)
            x.state.decisions = tickets[_DECISIONS]
            if rank == 0:
                tickets[_LEARNING] = 0
            unit = take(tickets, _CODING)
            while unit * share < lanes:
                for place in range(unit * share, min(unit * share + share, lanes)):
                    lane = first + place
                    path, row = logits, counts[0]
                    if decoding:
                        row = counts[rows[lane]]
                        x.state.top_nll = tokenwise.top_nll(row)
                    else:
                        path = logits[starts[lane, step] :]
                        x.state.top_nll = top_nlls[lane, step]
                    if not _code(
                        m,
                        x,
                        t,
                        log,
                        known,
                        row,
                        path,
                        place,
                        lane,
                        step,
                        ends,
                        coders[unit],
                        coded[unit],
                        sizes[unit],
                        decoding,
                        meter,
                    ):
                        tickets[_FAILED] = 1
                        break
                unit = take(tickets, _CODING)
            if not wait(barrier, size) or tickets[_FAILED] != 0:
                return
            if rank == 0:
                tickets[_CODING] = 0
                for place in range(lanes):
                    tickets[_DECISIONS] += log.decisions[place]
            for copy in range(rank, log.data.shape[0], size):
                _fill_in(log.data[copy], t, log, lanes)
            task = take(tickets, _LEARNING)
            while task < learning.tasks(m):
                learning.learn(task, m, x, log, first, lanes)
                task = take(tickets, _LEARNING)
            if not wait(barrier, size):
                return


@part
def _code(m, x, t, log, known, row, path, place, lane, step, ends, coder, coded, size, decoding, meter):
    """Code an entry of a lane. Returns False where that cannot be."""
    room = arithmetic.SPARE if decoding else -tokenwise.spare_bytes(t.decisions[max(known[lane, step], 0)])
    if np.int64(coder[arithmetic.POSITION]) > size + room or x.places[lane] >= ends[lane]:
        return False
    logs.begin_entry(log, place, x.places[lane])
    known[lane, step] = tokenwise.code_entry(
        m, x, t, lane, known[lane, step], row, path, coder, coded, decoding, meter, log
    )
    return x.places[lane] <= ends[lane]


@part
def _fill_in(data, t, log, lanes):
    """The bytes of all lanes of a batch."""
    for p in range(lanes):
        entry, begin = log.entries[p], log.begins[p]
        if entry < 0:
            data[begin] = np.uint8(-1 - entry)
        else:
            spelling = t.offsets[entry]
            for i in range(log.ends[p] - begin):
                data[begin + i] = t.spelling[spelling + i]


def is_sound(tickets: np.ndarray) -> bool:
    """Whether nothing was impossible so far."""
    return bool(tickets[_FAILED] == 0)
