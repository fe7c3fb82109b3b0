"""The network: rows of tokens through all layers, and frequencies of all tokens from the results.

Every thread of a team calls a kernel with its rank, and does its share between barriers; see team.py.
"""

import numpy as np

from squeeze.lm.arrays import BLOCK, FEED_FORWARD, KV_HEADS, LAYERS, ROTATION
from squeeze.lm.attention import attend, prepare_row
from squeeze.numerics import exact, int8
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.rotation import rotate_sums
from squeeze.numerics.team import advance, wait, wait_for


@inline
def share(count, rank, size):
    """Return the range of `count` items that thread `rank` of `size` does."""
    return count * rank // size, count * (rank + 1) // size


@inline
def rotary_angles(table, factor, position, cosine, sine):
    """Compute cosine and sine of `position` times each frequency, from those of powers of two (angle addition)."""
    for i in range(cosine.size):
        c, s = factor, np.float64(0.0)
        for bit in range(table.shape[1]):
            if (position >> bit) & 1:
                tc, ts = table[0, bit, i], table[1, bit, i]
                c, s = c * tc - s * ts, c * ts + s * tc
        cosine[i], sine[i] = np.float32(c), np.float32(s)


@inline
def embed(net, token, x):
    """Set x to the embedding of a token, float32."""
    scale, row = net.embedding_scales[token], net.embedding[token]
    for i in range(x.size):
        x[i] = np.float32(row[i]) * scale


@inline
def _rows_of(tasks, rank, size):
    """Return the first row and the row after the last of thread `rank` of `size`, and likewise its tasks."""
    first, last = share(tasks.shape[0], rank, size)
    if first == last:
        return 0, 0, first, last
    return tasks[first, 0], tasks[last - 1, 0] + tasks[last - 1, 1], first, last


@inline
def _first_of_lane(tasks, lanes, row, rank, team):
    """Return the first thread that has rows of the same lane before those of thread `rank`, which start at `row`."""
    first = rank
    while first > 0:
        begin, end, _, _ = _rows_of(tasks, first - 1, team)
        if begin < end and lanes[end - 1] != lanes[row]:
            break
        first -= 1
    return first


@kernel
def forward(net, cache, work, tokens, lanes, positions, tasks, apart, barrier, rank, team):
    """Run rows through all layers; their normed and quantised states stay in `work.narrow`.

    Every thread of the team calls this with its rank.

    Args:
        net: weights.
        cache: keys and values.
        work: buffers.
        tokens: int64 [R].
        lanes: int64 [R], lane of each row.
        positions: int64 [R], position of each row in its lane.
        tasks: int64 [n, 2], first row and count of a few queries of one lane each, in order.
        apart: each thread takes its own rows through all layers, and waits only for keys and values of earlier rows of
            its lane; else all threads share the outputs of every product.
        barrier: of the team.
        rank: of this thread.
        team: number of threads.

    Returns:
        False if the team was stopped.
    """
    rows, layers, groups = tokens.size, net.sizes[LAYERS], net.sizes[KV_HEADS]
    begin, end = share(rows, rank, team)
    low, high, some, beside = 0, rows, team, 0  # rows of products, and the number of threads that share them
    if apart:
        begin, end, first_task, last_task = _rows_of(tasks, rank, team)
        low, high, some, beside = begin, end, 1, _first_of_lane(tasks, lanes, begin, rank, team)
    part = rank if some > 1 else 0
    products, scratch = work.thread_sums[rank], work.thread_scratch[rank]
    far = BLOCK * cache.window[0] + BLOCK - 1
    a, b, c = work.narrow[low:high], work.attended_quantised[low:high], work.wide[low:high]
    sums, scales, epsilon = work.row_sums[low:high], work.scales[low:high], net.epsilon[0]
    x, qkv, gate_up, attended = work.x[low:high], work.qkv[low:high], work.gate_up[low:high], work.attended[low:high]
    ff = net.sizes[FEED_FORWARD]
    block = net.sizes[ROTATION]
    for r in range(begin, end):
        rotary_angles(net.cos_sin, net.factor[0], positions[r], work.cosine[r, 0], work.sine[r, 0])
        rotary_angles(net.cos_sin, net.factor[0], min(positions[r], far), work.cosine[r, 1], work.sine[r, 1])
        embed(net, tokens[r], x[r - low])
        scales[r - low], sums[r - low] = exact.normalise(x[r - low], epsilon, a[r - low])
    for layer in range(layers):
        if not wait(barrier, some):
            return False
        first, last = share(net.qkv.shape[1], part, some)
        int8.matmul(a, sums, scales, net.qkv[layer], net.qkv_scales[layer], first, last, False, qkv, products)
        if not wait(barrier, some):
            return False
        for r in range(begin, end):
            prepare_row(net, cache, work, layer, r, lanes[r], positions[r], scratch, int8.TOP_16, int8.STEP, 128)
        if apart:
            advance(barrier, rank)
            if not wait_for(barrier, beside, rank, layer + 1):
                return False
            for task in range(first_task, last_task):
                row, count = tasks[task, 0], tasks[task, 1]
                for group in range(groups):
                    attend(net, cache, work, layer, lanes[row], row, count, positions[row], group, rank)
        else:
            if not wait(barrier, team):
                return False
            for task in range(rank, tasks.shape[0] * groups, team):
                row, count = tasks[task // groups, 0], tasks[task // groups, 1]
                attend(net, cache, work, layer, lanes[row], row, count, positions[row], task % groups, rank)
        if not wait(barrier, some):
            return False
        for r in range(begin - low, end - low):
            scales[r], sums[r] = exact.quantise_summed(attended[r], int8.TOP, b[r])
        if not wait(barrier, some):
            return False
        first, last = share(net.output.shape[1], part, some)
        int8.matmul(b, sums, scales, net.output[layer], net.output_scales[layer], first, last, True, x, products)
        if not wait(barrier, some):
            return False
        for r in range(begin - low, end - low):
            if net.output_bias.shape[0] > 0:
                add(net.output_bias[layer], x[r])
            scales[r], sums[r] = exact.normalise(x[r], epsilon, a[r])
        if not wait(barrier, some):
            return False
        first, last = share(net.gate_up.shape[1], part, some)
        int8.matmul(
            a, sums, scales, net.gate_up[layer], net.gate_up_scales[layer], first, last, False, gate_up, products
        )
        if not wait(barrier, some):
            return False
        for r in range(begin - low, end - low):
            gated = gate_up[r, :ff]
            gate(gated, gate_up[r, ff:])
            rotate_sums(gated, block)
            scale, sums[r] = exact.quantise_summed(gated, int8.TOP, c[r])
            scales[r] = scale * net.rotation[0]
        if not wait(barrier, some):
            return False
        first, last = share(net.down.shape[1], part, some)
        int8.matmul(c, sums, scales, net.down[layer], net.down_scales[layer], first, last, True, x, products)
        if not wait(barrier, some):
            return False
        for r in range(begin - low, end - low):
            scales[r], sums[r] = exact.normalise(x[r], epsilon, a[r])
    return wait(barrier, some)


@inline
def add(x, out):
    for i in range(x.size):
        out[i] += x[i]


@inline
def gate(x, up):
    """Set x to x * sigmoid(x) * up (SwiGLU)."""
    one = np.float32(1.0)
    for i in range(x.size):
        g = x[i]
        e = exact.exp_negative(-abs(g))
        numerator = one if g >= 0 else e
        x[i] = g * (numerator / (one + e)) * up[i]


@kernel
def cumulate(net, work, states, sums, scales, bias, logits, cdf, places, apart, barrier, rank, team):
    """Compute integer frequencies of all leaves for every row r, in row places[r] of `cdf`.

    Args:
        net: weights.
        work: buffers.
        states: [R, width], as `forward` left them.
        sums: int32 [R], their sums.
        scales: float32 [R], their scales.
        bias: float32 [leaves], added to logits.
        logits: float32 [R, leaves], buffer.
        cdf: the output.
        places: int64 [R].
        apart: each thread takes its own rows.
        barrier: of the team.
        rank: of this thread.
        team: number of threads.
    """
    begin, end = share(states.shape[0], rank, team)
    low, high, part, some = (begin, end, 0, 1) if apart else (0, states.shape[0], rank, team)
    first, last = share(net.head.shape[0], part, some)
    int8.matmul(
        *(states[low:high], sums[low:high], scales[low:high], net.head, net.head_scales, first, last, False),
        *(logits[low:high], work.thread_sums[rank]),
    )
    if not wait(barrier, some):
        return False
    for r in range(begin, end):
        exact.cumulate(logits[r], bias, cdf, places[r])
    return wait(barrier, some)
