"""Least squares by the pixels around a sample, in two dimensions: nearer ones count more, to the left and above.

The normal equations of a sample are sums over all samples before it, which decay by a quarter for each column and row
of distance (Meyer and Tischer, Glicbawls, 2001). They are integers: a sum over the rows above for each column, and one
over the row to the left. At the end of a row, a pass from the right to the left adds what is to the right of a column.
The equations are solved in float64, each sum in the order that is written here.
"""

import numpy as np

from squeeze.numerics.jit import inline, part

INPUTS = 14  # of the equations
TERMS = INPUTS * (INPUTS + 3) // 2
_DECAY = 2  # a quarter
_RIDGE = 1024.0  # more than the sums of a row can lose by rounding, so that equations have a solution
_MOST = 65536.0  # of a result; others are 0
# Which inputs of the regressions (predictions.py) are used, in the first, second and later planes.
USED = np.array(
    [
        [0, 3, 6, 7, 1, 4, 8, 9, 10, 11, 2, 5, 12, 13],  # the nearest of its own plane
        [0, 3, 6, 7, 1, 4, 9, 12, 13, 14, 15, 16, 17, 18],  # seven of its own, and all of the plane before
        [0, 3, 6, 7, 1, 4, 12, 13, 14, 15, 16, 19, 20, 21],  # six of its own, and both planes before
    ],
    np.int64,
)


@inline
def plane_of(m):
    """Return the plane of the sample that begins at the column, or the number of samples in padding."""
    state = m.state
    return state.column % state.pixel // state.sample if state.column < state.row else state.samples


@inline
def is_known(m, at):
    """Return whether sample `at` of a row has sums: those of padding and at the end of very long rows have not."""
    return m.state.plane < m.state.samples and at < m.sums.shape[1]


@inline
def _solve_by_ldl(m):
    """Solve the equations in `m.equations` by LDL, and leave the factors in `m.solved`."""
    a, f = m.equations, m.solved
    for j in range(INPUTS):
        pivot = a[j, j]
        for k in range(j):
            pivot -= a[j, k] * a[j, k] * a[k, k]
        a[j, j] = max(pivot, _RIDGE)
        for i in range(j + 1, INPUTS):
            v = a[i, j]
            for k in range(j):
                v -= a[i, k] * a[j, k] * a[k, k]
            a[i, j] = v / a[j, j]
        v = f[j]
        for k in range(j):
            v -= a[j, k] * f[k]
        f[j] = v
    for j in range(INPUTS - 1, -1, -1):
        v = f[j] / a[j, j]
        for k in range(j + 1, INPUTS):
            v -= a[k, j] * f[k]
        f[j] = v


@part
def solve(m):
    """Solve the equations of the sample that begins at the column, if one does.

    It is apart from the prediction: code there that fast models never run makes them slower.
    """
    if m.state.column % m.state.pixel % m.state.sample:
        return
    m.state.plane, c = plane_of(m), m.state.column // m.state.sample
    m.state.solved = is_known(m, c)
    if not m.state.solved:
        return
    above, left = m.sums[0, c], m.left[m.state.plane]
    at = 0
    for i in range(INPUTS):
        for j in range(i + 1):
            m.equations[i, j] = np.float64(above[at] + left[at])
            at += 1
        m.equations[i, i] += _RIDGE
    for i in range(INPUTS):
        m.solved[i] = np.float64(above[at] + left[at])
        at += 1
    _solve_by_ldl(m)


@inline
def estimate(m):
    """Return the sample less its base, in sixteenths, by the equations that `solve` solved."""
    used, total = USED[min(m.state.plane, 2)], 0.0
    for i in range(INPUTS):
        total += m.solved[i] * np.float64(m.neighbours[used[i]])
    return np.int64(np.floor(total * 16.0 + 0.5)) if -_MOST <= total <= _MOST else 0


@inline
def _scaled(m, product):
    return product << 6 if m.state.sample == 1 else product >> 2


@inline
def learn(m, c, target):
    """Add a sample to the sums: its place in the row, and what it is less its base."""
    plane, at = m.state.plane, 0
    left, used = m.left[plane], USED[min(plane, 2)]
    for i in range(INPUTS):
        v = np.int64(m.neighbours[used[i]])
        for j in range(i + 1):
            left[at] += _scaled(m, v * m.neighbours[used[j]]) - (left[at] >> _DECAY)
            at += 1
    for i in range(INPUTS):
        left[at] += _scaled(m, target * m.neighbours[used[i]]) - (left[at] >> _DECAY)
        at += 1
    own = m.sums[1, c]
    for k in range(TERMS):
        own[k] = left[k]


@part
def skip(m):
    """Go on by a pixel that is as those around it, and has no part in the sums."""
    first = m.state.column // m.state.sample
    for plane in range(m.state.samples):
        left = m.left[plane]
        if first + plane < m.sums.shape[1]:
            own = m.sums[1, first + plane]
            for k in range(TERMS):
                left[k] -= left[k] >> _DECAY
                own[k] = left[k]


@part
def end_row(m, size):
    """Add a row of some bytes to the sums above each column."""
    count, samples = min(size // m.state.sample, m.sums.shape[1]), m.state.samples
    for plane in range(samples):
        right = m.right
        for k in range(TERMS):
            right[k] = 0
        last = (count - 1 - plane) // samples * samples + plane
        for c in range(last, -1, -samples):
            above, own = m.sums[0, c], m.sums[1, c]
            for k in range(TERMS):
                if c < last:
                    new = m.sums[1, c + samples, k] - (own[k] - (own[k] >> _DECAY))
                    right[k] += new
                    right[k] -= right[k] >> _DECAY
                total = above[k] + own[k] + right[k]
                above[k] = total - (total >> _DECAY)
        for k in range(TERMS):
            m.left[plane, k] = 0
