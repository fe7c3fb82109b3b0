"""The model of the coefficients of an image: what the blocks around one, and its own coefficients so far, say of them.

A block has its first coefficient, the number of others that are not zero, and these in the order of scans until all are
coded. A block's pixels go on from those of the blocks above and to the left. So the edge of a neighbour predicts a sum
of coefficients in each row and column, as in Lakhani, "DCT coefficient prediction for JPEG image coding", 2007. Linear
predictors that learn (NLMS) join this with the same coefficient of blocks around.
"""

import numpy as np

from squeeze.codecs.jpeg.layout import ZIGZAG
from squeeze.codecs.jpeg.numbers import choose, code_count, code_number, set_context
from squeeze.codecs.jpeg.state import CONTEXTS, SIGNED, UNSIGNED
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.jit import inline, kernel, part

LEVEL = np.array(
    [0] + [2 * n.bit_length() - 1 + (n >> max(n.bit_length() - 2, 0) & 1) for n in range(1, 8192)], np.int64
)  # a logarithm with two steps an octave
SCALE = np.array([181, 256, 256, 256, 256, 256, 256, 256], np.int64)  # of a cosine at the edge of a block; 256 is 1
_LIMIT, _MOST_WEIGHT, _MOST_ERROR = 4000, 1 << 24, (1 << 15) - 1  # of linear predictors
_SIGNED_RATE, _UNSIGNED_RATE = 15, 14
_MOST_EDGE = 1 << 17
# Bases of contexts; those of chroma are apart. Those of the first coefficient are 0. Others are of counts, of each
# other coefficient, of any of these, and of those of a diagonal.
_BASE, _COUNT, _OTHERS, _EVERY, _DIAGONAL = 1024, 64, 128, 256, 320


@inline
def clamp(x, most):
    """Return a number within ±most."""
    return min(max(x, -most), most)


@inline
def magnitude(x):
    """Return the logarithm of a number that is not negative."""
    return LEVEL[min(x, 8191)]


@inline
def level(x):
    """Return the signed logarithm of a number."""
    return magnitude(x) if x >= 0 else -magnitude(-x)


@inline
def at(m, block, place):
    """Return a coefficient of a block, or 0 if there is no block."""
    return np.int64(m.coefficients[block, place]) if block >= 0 else 0


@inline
def count_of(m, block):
    """Return how many coefficients of a block after the first are not zero, or 0 if there is no block."""
    return np.int64(m.counts[block]) if block >= 0 else 0


@inline
def foretell(weights, inputs, count):
    """Return what a linear predictor says."""
    total = np.int64(0)
    for j in range(count):
        total += weights[j] * inputs[j]
    return total >> 16


@inline
def adjust(weights, inputs, count, error, rate):
    """Move the weights of a linear predictor against its error, relative to the power of its inputs."""
    power = np.int64(64)
    for j in range(count):
        power += inputs[j] * inputs[j]
    gain = (clamp(error, _MOST_ERROR) << rate) // power
    for j in range(count):
        weights[j] = clamp(weights[j] + (gain * inputs[j] >> 4), _MOST_WEIGHT)


@inline
def _code_first(m, coder, coded, p, i, decoding):
    """Code the first coefficient of a block."""
    s, base = m.state, _BASE * p.chroma
    left, up = s.left, s.up
    edge_up = clamp(m.edges[0] * 8 // (SCALE[0] * p.steps[0]), _MOST_EDGE)
    edge_left = clamp(m.edges[8] * 8 // (SCALE[0] * p.steps[0]), _MOST_EDGE)
    a, b, c, d = at(m, up, 0), at(m, left, 0), at(m, s.corner, 0), at(m, s.next_up, 0)
    if up < 0:
        edge_up, a = edge_left, b
    if left < 0:
        edge_left, b = edge_up, a
    expected = (edge_up + edge_left) >> 1  # in eighths
    median = a
    if up >= 0 and left >= 0:
        median = max(min(a, b), min(max(a, b), a + b - c))
    s.spread = magnitude(abs(a - b) + abs(b - c) + abs(a - c))
    edges, median = level(edge_up - edge_left), level(8 * median - expected)
    around = count_of(m, up) + count_of(m, left)
    theirs = clamp(np.int64(m.residuals[s.other]), 40) if s.other >= 0 else 0
    set_context(m, 0, base, edges, 0, 0)
    set_context(m, 1, base, median, 0, 0)
    set_context(m, 2, base, median, s.spread, 0)
    set_context(m, 3, base, s.spread, expected & 7, 0)
    set_context(m, 4, base, around, 0, 0)
    set_context(m, 5, base, theirs, 0, 0)
    set_context(m, 6, base, theirs, median, 0)
    set_context(m, 7, base, edges, median, 0)
    set_context(m, 8, base, level(8 * d - expected), median, 0)
    set_context(m, 9, base, level(8 * (a + b - c) - expected), edges, 0)
    set_context(m, 10, base, level(8 * a - expected), level(8 * b - expected), 0)
    set_context(m, 11, base, level(8 * b - expected), s.spread, 0)
    set_context(m, 12, base, around >> 2, s.spread, count_of(m, s.other) >> 2)
    for k in range(13, CONTEXTS):
        set_context(m, k, base, 0, 0, 0)
    choose(m, 64 * p.chroma, min(around >> 1, 63), s.spread, abs(edges), base, base + 1 + abs(median))
    nearest = (expected + 4) >> 3
    residual = code_number(m, coder, coded, np.int64(m.coefficients[i, 0]) - nearest, decoding)
    m.residuals[i], m.coefficients[i, 0] = residual, nearest + residual


@inline
def _code_count(m, coder, coded, p, i, decoding):
    """Code how many coefficients after the first are not zero."""
    s, base, count = m.state, _BASE * p.chroma + _COUNT, np.int64(0)
    if not decoding:
        for k in range(1, 64):
            count += m.coefficients[i, k] != 0
    a, b = count_of(m, s.up), count_of(m, s.left)
    if s.left < 0:
        b = a
    if s.up < 0:
        a = b
    c, d = count_of(m, s.corner), count_of(m, s.next_up) if s.next_up >= 0 else a
    theirs, residual = count_of(m, s.other), np.int64(m.residuals[i])
    set_context(m, 0, base, (a + b) >> 1, 0, 0)
    set_context(m, 1, base, a, b >> 2, 0)
    set_context(m, 2, base, b, a >> 2, 0)
    set_context(m, 3, base, theirs, (a + b) >> 3, 0)
    set_context(m, 4, base, d, a >> 1, c >> 3)
    set_context(m, 5, base, (a + b + c + d) >> 2, theirs >> 3, 0)
    set_context(m, 6, base, magnitude(8 * abs(residual)), (a + b) >> 2, 0)
    set_context(m, 7, base, 0, 0, 0)
    set_context(m, 8, base, b, a, 0)
    set_context(m, 9, base, s.spread, (a + b) >> 3, 0)
    set_context(m, 10, base, (2 * a + 2 * b + c + d) // 3, 0, 0)
    set_context(m, 11, base, theirs, 0, 0)
    set_context(m, 12, base, level(8 * residual), s.spread, theirs >> 3)
    for k in range(13, CONTEXTS):
        set_context(m, k, base, 0, 0, 0)
    choose(m, 64 * p.chroma, (a + b) >> 1, theirs, s.spread, base, base + 1 + ((a + b) >> 1))
    return code_count(m, coder, coded, count, decoding)


@inline
def _look_around(m, p, i, place):
    """Set the inputs of the linear predictors of a coefficient."""
    s, block = m.state, m.coefficients[i]
    u, v, step = place & 7, place >> 3, p.steps[place]
    f, g = m.signs, m.sizes
    f[0] = (m.edges[u] - m.known[u]) * 8 // (SCALE[v] * step) if s.up >= 0 else 0
    f[1] = (m.edges[8 + v] - m.known[8 + v]) * 8 // (SCALE[u] * step) if s.left >= 0 else 0
    f[2], f[3], f[4] = 8 * at(m, s.up, place), 8 * at(m, s.left, place), 8 * at(m, s.corner, place)
    f[5], f[6] = 8 * at(m, s.next_up, place), 8 * at(m, s.other, place)
    f[7] = 8 * np.int64(block[place - 8]) if v else 0
    f[8] = 8 * np.int64(block[place - 1]) if u else 0
    f[9] = 8 * np.int64(block[place - 9]) if u and v else 0
    for j in range(SIGNED):
        f[j] = clamp(f[j], _LIMIT)
    for j in range(2, SIGNED):
        g[j - 2] = abs(f[j])
    s.edge = f[1] if u == 0 else f[0] if v == 0 else f[0] + f[1] >> 1
    g[8], g[9] = abs(s.edge), 16
    g[10], g[11] = min(8 * abs(s.before), _LIMIT), min(8 * abs(s.second_before), _LIMIT)


@part
def _code_other(m, coder, coded, p, i, k, room, decoding):
    """Code coefficient k after the first in the order of scans, of which `room` are not zero, and return it."""
    f, g, place, row = m.signs, m.sizes, ZIGZAG[k], 64 * p.chroma + k
    _look_around(m, p, i, place)
    ours, size = foretell(m.signed[row], f, SIGNED), max(foretell(m.unsigned[row], g, UNSIGNED), 0)
    around = magnitude((13 * (g[0] + g[1]) + 6 * (g[2] + g[3])) >> 5)
    inner = magnitude((2 * (g[5] + g[6]) + g[7]) >> 3)
    vertical, horizontal, edge = level(f[0]), level(f[1]), level(m.state.edge)
    log_ours, log_size, energy = level(ours), magnitude(size), magnitude(m.state.energy)
    base, every = _BASE * p.chroma + _OTHERS + k, _BASE * p.chroma + _EVERY
    diagonal = _BASE * p.chroma + _DIAGONAL + (place & 7) + (place >> 3)
    set_context(m, 0, base, clamp(f[0] >> 1, 200), 0, 0)
    set_context(m, 1, base, clamp(f[1] >> 1, 200), 0, 0)
    set_context(m, 2, base, clamp(f[7] >> 3, 15), clamp(f[8] >> 3, 15), clamp(f[9] >> 3, 3))
    set_context(m, 3, base, clamp(f[6] >> 3, 20), edge, 0)
    set_context(m, 4, base, around, edge, 0)
    set_context(m, 5, base, inner, around, room >> 2)
    set_context(m, 6, base, clamp(ours, 500), 0, 0)
    set_context(m, 7, base, log_ours, log_size, 0)
    set_context(m, 8, base, log_size, room, 0)
    set_context(m, 9, base, log_size, vertical, horizontal)
    set_context(m, 10, base, around, clamp(f[2] + f[3] >> 3, 60), 0)
    set_context(m, 11, base, magnitude(g[0]), magnitude(g[1]), inner)
    set_context(m, 12, base, log_ours, room, energy)
    set_context(m, 13, every, log_ours, log_size, 0)
    set_context(m, 14, every, log_size, room, 0)
    set_context(m, 15, diagonal, around, inner, room >> 2)
    near = 64 * min(around >> 1, 3)
    by_size = min(log_size, 31) + 32 * min(abs(log_ours) >> 2, 7)
    choose(m, row, room + near, min(abs(edge), 31) + near, by_size, base * 64 + log_ours + 32, base * 64 + log_size)
    value = code_number(m, coder, coded, np.int64(m.coefficients[i, place]), decoding)
    adjust(m.signed[row], f, SIGNED, 8 * value - ours, _SIGNED_RATE)
    adjust(m.unsigned[row], g, UNSIGNED, 8 * abs(value) - size, _UNSIGNED_RATE)
    return value


@inline
def _add(m, p, place, value):
    """Add a coefficient to the edges of the part of its block that is coded."""
    u, v, pixels = place & 7, place >> 3, value * p.steps[place]
    m.known[u] += SCALE[v] * pixels
    m.known[8 + v] += SCALE[u] * pixels


@inline
def _leave(m, p, i, x):
    """Keep the lower and the right edge of a block for its neighbours."""
    block = m.coefficients[i]
    for u in range(8):
        lower, right = np.int64(0), np.int64(0)
        for v in range(8):
            scale = -SCALE[v] if v & 1 else SCALE[v]
            lower += scale * np.int64(block[8 * v + u]) * p.steps[8 * v + u]
            right += scale * np.int64(block[8 * u + v]) * p.steps[8 * u + v]
        m.below[x, u], m.edges[8 + u] = lower, right


@part
def _code_block(m, coder, coded, p, y, x, decoding):
    """Code a block in either direction; the edges hold the right edge of the block to the left."""
    s, i = m.state, p.first + y * p.wide + x
    s.left, s.up = i - 1 if x else -1, i - p.wide if y else -1
    s.corner, s.next_up = s.up - 1 if x and y else -1, s.up + 1 if y and x + 1 < p.wide else -1
    s.other = -1
    if p.other_first >= 0:
        s.other = p.other_first + y * p.other_high // p.high * p.other_wide + x * p.other_wide // p.wide
    for u in range(8):
        m.edges[u] = m.below[x, u] if y else 0
        m.edges[8 + u] = m.edges[8 + u] if x else 0
        m.known[u] = m.known[8 + u] = 0
    _code_first(m, coder, coded, p, i, decoding)
    room = _code_count(m, coder, coded, p, i, decoding)
    m.counts[i] = room
    _add(m, p, 0, np.int64(m.coefficients[i, 0]))
    s.energy = s.before = s.second_before = 0
    k = 1
    while room and k < 64:
        value = _code_other(m, coder, coded, p, i, k, room, decoding)
        if value:
            room -= 1
            m.coefficients[i, ZIGZAG[k]] = value
            _add(m, p, ZIGZAG[k], value)
            s.energy += abs(value)
        s.second_before, s.before = s.before, value
        k += 1
    _leave(m, p, i, x)


@kernel
def code_row(m, coder, coded, p, y, decoding):
    """Code a row of blocks in either direction.

    Args:
        m: the model, with the coefficients.
        coder, coded: the arithmetic coder, and uint8 its bytes.
        p: the component.
        y: its row.
        decoding: the direction.

    Returns:
        whether the coded bytes are neither full (encoding) nor used up (decoding).
    """
    for x in range(p.wide):
        if arithmetic.is_over(coder, coded, decoding):
            return False
        _code_block(m, coder, coded, p, y, x, decoding)
    return True
