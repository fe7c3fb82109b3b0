"""Viterbi's algorithm, compiled: the path through the trellis whose levels are nearest to a column of weights.

kernels/trellis/reference.py defines the level of a state. A column begins in state 0 with its last row. The step to the
row before shifts the row's bits into the state, which holds the latest bits.
"""

import numpy as np

from squeeze.kernels.trellis import STATE_BITS, column_bytes, levels
from squeeze.numerics.jit import inline, kernel

__all__ = ["Viterbi"]

_STATES = 1 << STATE_BITS
_LEAST_BITS = 1  # fewest bits of a step
_FAR = np.float32(1e30)


class Viterbi:
    """An encoder of columns with a fixed number of rows and rate (sixteenths of a bit), which reuses its buffers."""

    def __init__(self, rows: int, rate: int) -> None:
        self.rate, self.levels = rate, levels().numpy()
        self._bytes = column_bytes(rows, rate)
        self._cost, self._spread = np.empty(_STATES, np.float32), np.empty(_STATES, np.float32)
        self._best = np.empty(_STATES >> _LEAST_BITS, np.float32)
        self._origins = np.empty((rows, _STATES >> _LEAST_BITS), np.uint8)

    def encode(self, targets: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of a column and its levels, float32 [O], with the least sum of squared errors.

        `targets` and the factors of levels, `scales`, are float32 [O].
        """
        codes, chosen = np.zeros(self._bytes, np.uint8), np.empty(len(targets), np.float32)
        _search(
            *(targets, scales, self.rate, self.levels, self._cost, self._spread, self._best, self._origins),
            *(codes, chosen),
        )
        return codes, chosen


def _step(bits):
    """Return a step of `bits` bits: the cheapest predecessor of each state, and the cost of states before their own
    level."""
    branches, cores = 1 << bits, _STATES >> bits

    @inline
    def step(cost, best, origins, spread):
        for core in range(cores):
            least, origin = cost[core], np.uint8(0)
            for branch in range(1, branches):
                other = cost[core + branch * cores]
                if other < least:
                    least, origin = other, np.uint8(branch)
            best[core], origins[core] = least, origin
        for core in range(cores):
            for branch in range(branches):
                spread[core * branches + branch] = best[core]

    return step


_one, _two, _three, _four = (_step(bits) for bits in (1, 2, 3, 4))


@kernel
def _search(targets, scales, rate, levels, cost, spread, best, origins, codes, chosen):
    cost[:] = _FAR
    cost[0] = np.float32(0)
    for row in range(targets.size - 1, -1, -1):
        bits = ((row + 1) * rate >> 4) - (row * rate >> 4)
        if bits == 1:
            _one(cost, best, origins[row], spread)
        elif bits == 2:
            _two(cost, best, origins[row], spread)
        elif bits == 3:
            _three(cost, best, origins[row], spread)
        else:
            _four(cost, best, origins[row], spread)
        target, scale = targets[row], scales[row]
        for state in range(_STATES):
            miss = target - scale * levels[state]
            cost[state] = spread[state] + miss * miss
    state = 0
    for other in range(1, _STATES):
        if cost[other] < cost[state]:
            state = other
    for row in range(targets.size):
        first = row * rate >> 4
        bits = ((row + 1) * rate >> 4) - first
        chosen[row] = levels[state]
        news = (state & ((1 << bits) - 1)) << (first & 7)
        codes[first >> 3] |= np.uint8(news & 255)
        if news > 255:
            codes[(first >> 3) + 1] |= np.uint8(news >> 8)
        core = state >> bits
        state = (np.int64(origins[row, core]) << (STATE_BITS - bits)) | core
