"""The code of a GPU's coder by one thread of the processor, which is a warp of one."""

import numpy as np

from squeeze.codecs.tokenwise import batches, warps
from squeeze.numerics.frequencies import Cdf
from squeeze.numerics.jit import inline, kernel, replaced
from squeeze.numerics.team import wait


@inline
def _vote(yes):
    return np.int64(yes)


@inline
def _first_of(votes):
    return np.int64(0)


@inline
def _settle():
    return


@inline
def _add(array, i, value):
    array[i] += value


@inline
def _learn(m, x, t, log, own, first, lanes, tickets, rank, size, barrier):
    warps.fill_in(own, t, log, lanes, rank, size)
    warps.list_notes(log, lanes, rank, size)
    warps.count_uses(m, x, log, rank, size, _add)
    warps.learn(m, x, log, first, lanes, rank, size, 1, _vote, _first_of, _settle, _add)
    warps.clear_uses(m, x, log, rank, size, _add)
    return True


@kernel
def code_batches(m, x, t, log, own, steps, codes, decoding, tickets, barrier):
    """As that of cuda.py."""
    steps = replaced(steps, "counts", Cdf(steps.counts, None))
    batches.work(
        m,
        x,
        t,
        log,
        own,
        steps,
        codes,
        decoding,
        tickets,
        0,
        1,
        barrier,
        None,
        batches.take_first,
        batches.take_next,
        wait,
        _learn,
    )
