"""Predictions of a sample: linear ones, a median, regressions, and a mean of all that trusts those that were right.

Values are in sixteenths, or whole numbers of 16 bits.
"""

import numpy as np

from squeeze.codecs.image import nearby, regression
from squeeze.codecs.image.neighbours import AROUND, FIRST, LATER, ONE
from squeeze.codecs.image.state import MEDIAN, NEARBY, NEIGHBOURS, REGRESSED, REGRESSIONS
from squeeze.numerics.jit import inline, part


def _classes(steps: int, most: int) -> np.ndarray:
    """Return int64 [1024]: the class of a sum of differences, below `most`; a class ends after `steps` per doubling."""
    bounds, bound = [0, 1, 2], 3
    while len(bounds) < most - 1:
        bounds.append(bound)
        bound += max(bound // steps, 1)
    return np.searchsorted(np.array(bounds), np.arange(1024), side="left").clip(0, most - 1).astype(np.int64)


ACTIVITY = _classes(2, 16)
COARSE = np.minimum(_classes(1, 9), 7)
TRUST = np.array([(1 << 40) // (n + 3) ** 4 + 1 for n in range(2048)], np.int64)
W, N, NW, NE = 0, 3, 6, 7  # places in AROUND
_BY_LAST, _BY_FIRST, _BY_OWN = LATER
_PREVIOUS, _FIRST = (0, 3, 6, 7, 1, 4), (0, 3, 6, 7)
PREVIOUS, BEFORE = np.array(_PREVIOUS, np.int64), np.array(_FIRST, np.int64)


@inline
def value(m, i):
    """Return the value of the sample at byte `i`."""
    if m.state.sample == 2:
        return np.int64(m.data[i]) << 8 | np.int64(m.data[i + 1])
    return np.int64(m.data[i]) << 4


@inline
def _limit(m, v):
    return min(max(v, 0), m.state.top)


@inline
def _gather(m, around, i):
    """Write the values of the neighbours of the sample at byte `i`."""
    for k in range(AROUND.shape[0]):
        around[k] = value(m, i - AROUND[k, 0] * m.state.pixel - AROUND[k, 1] * m.state.up)


@inline
def _combine(m, factors, around, add, k):
    """Write linear predictions to `values`, from number `k` on, and return the number after the last."""
    for row in range(min(factors.shape[0], m.centres.size - 1 - k)):
        total = np.int64(ONE // 2)
        for j in range(factors.shape[1]):
            total += factors[row, j] * around[j]
        m.values[k] = _limit(m, total // ONE + add)
        k += 1
    return k


@inline
def _median(a, b, c):
    return max(min(a, b), min(max(a, b), c))


@part
def predict(m, i):
    """Write all predictions of the sample at byte `i` to `values`, and its contexts."""
    own, last, first, s = m.around[0], m.around[1], m.around[2], m.state.sample
    plane = m.state.plane if m.state.plane < m.state.samples else 0
    _gather(m, own, i)
    _measure(m, i, own)
    if plane > 0:
        back = min(plane, 2) * s
        _gather(m, last, i - s)
        _gather(m, first, i - back)
    if m.neighbours.size > 0:
        _regress(m, i, plane)
    if plane > 0 and not m.state.phase:
        p, q = value(m, i - s), value(m, i - back)
        for k in range(own.size):
            last[k] = own[k] - last[k]
            first[k] = own[k] - first[k]
        k = _combine(m, _BY_LAST, last, p, 0)
        k = _combine(m, _BY_FIRST, first, q, k)
        _combine(m, _BY_OWN, own, 0, k)
        if m.centres.size > MEDIAN:
            m.values[MEDIAN] = _limit(m, p + _median(last[W], last[N], last[W] + last[N] - last[NW]))
    else:
        _combine(m, FIRST, own, 0, 0)
        if m.centres.size > MEDIAN:
            m.values[MEDIAN] = _median(own[W], own[N], own[W] + own[N] - own[NW])
    _trust(m, i)


@inline
def _measure(m, i, own):
    """Write contexts: how the neighbours differ from each other, and how wrong the plane before was predicted."""
    shift = 4 if m.state.sample == 1 else 8
    w, n, nw, ne = own[W], own[N], own[NW], own[NE]
    spread = abs(w - nw) + abs(n - nw) + abs(n - ne) >> shift
    m.state.spread = ACTIVITY[min(spread, 1023)] * 4 + 2 * (w > n) + (n > ne)
    m.state.nearby = (
        COARSE[min(abs(w - n) >> shift, 1023)] * 128
        + COARSE[min(abs(n - ne) >> shift, 1023)] * 16
        + COARSE[min(abs(w - nw) >> shift, 1023)] * 2
        + (n > nw)
    )
    m.state.before = 0
    if 0 < m.state.plane < m.state.samples:
        m.state.before = 1 + min(
            COARSE[np.int64(m.misses[(i - m.state.sample) & m.state.ring, m.centres.size - 1])] >> 1, 2
        )


@inline
def _trust(m, i):
    """Write the contexts of each prediction, how wrong it was around the sample, and the mean of all predictions."""
    b, up, ring = m.state.pixel, m.state.up, m.state.ring
    e = m.misses
    w, ww, n, nw, ne = (i - b) & ring, (i - 2 * b) & ring, (i - up) & ring, (i - up - b) & ring, (i - up + b) & ring
    total, trust = np.int64(0), np.int64(0)
    last = m.centres.size - 1
    for k in range(last + 1):
        around = 2 * (np.int64(e[w, k]) + np.int64(e[n, k])) + np.int64(e[nw, k]) + np.int64(e[ne, k])
        around += np.int64(e[ww, k])
        if k == last:
            m.values[k] = (total + (trust >> 1)) // max(trust, 1)
            m.state.activity = ACTIVITY[min(around >> 1, 1023)]
        else:
            weight = TRUST[around]
            total += weight * m.values[k]
            trust += weight
        m.levels[k] = ACTIVITY[min(around >> 1, 1023)] * 4 + m.state.before


@inline
def _regress(m, i, plane):
    """Write the predictions of the regressions, whose neighbours are gathered first, less what they have in common."""
    own, last, first, x, s = m.around[0], m.around[1], m.around[2], m.neighbours, m.state.sample
    base = (own[W] + own[N]) >> 1
    m.state.base = base
    count = 12 if plane > 0 else own.size
    for k in range(count):
        x[k] = np.int32(own[k] - base >> 4)
    if plane > 0:
        base = (last[W] + last[N]) >> 1
        x[count] = np.int32(value(m, i - s) - base >> 4)
        for k in range(PREVIOUS.size):
            x[count + 1 + k] = np.int32(last[PREVIOUS[k]] - base >> 4)
        count += 1 + PREVIOUS.size
        if plane > 1:
            base = (first[W] + first[N]) >> 1
            x[count] = np.int32(value(m, i - 2 * s) - base >> 4)
            for k in range(BEFORE.size):
                x[count + 1 + k] = np.int32(first[BEFORE[k]] - base >> 4)
            count += 1 + BEFORE.size
    for k in range(count, NEIGHBOURS):
        x[k] = 0
    for r in range(REGRESSIONS):
        m.values[REGRESSED + r] = _limit(m, m.state.base + regression.estimate(m, r, m.state.plane))
    m.values[NEARBY] = _limit(m, m.state.base + nearby.estimate(m)) if m.state.solved else own[W]


@part
def learn(m, i):
    """Train the regressions on the sample at byte `i`, which is known by now, and note how wrong predictions were."""
    true = value(m, i)
    if m.neighbours.size > 0:
        fine = 12 if m.state.sample == 1 else 4
        for r in range(REGRESSIONS):
            regression.learn(m, r, m.state.plane, true - m.state.base >> 4, fine)
    shift, at = 4 if m.state.sample == 1 else 8, i & m.state.ring
    for k in range(m.centres.size):
        m.misses[at, k] = np.uint8(min(abs(true - m.values[k]) >> shift, 255))


@part
def learn_nearby(m, i):
    """Add a sample to the sums of the pixels nearby if it ends with byte `i`, after which the column is."""
    at, s = m.state.column // m.state.sample, m.state.sample
    if m.state.column % s == 0 and nearby.is_known(m, at - 1):
        nearby.learn(m, at - 1, value(m, i - s + 1) - m.state.base >> 4)
