"""The network itself: rows of tokens through all layers, and frequencies of all tokens from what comes out.

Every thread of a team calls a kernel with its rank, and does its share between barriers; see team.py.
"""

import numpy as np

from squeeze.lm.arrays import BLOCK, FEED_FORWARD, KV_HEADS, LAYERS, ROTATION
from squeeze.lm.attention import attend, prepare_row
from squeeze.numerics import exact, int8
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.rotation import rotate_sums
from squeeze.numerics.team import wait


@inline
def share(count, rank, size):
    """The part of `count` things that thread `rank` of `size` does."""
    return count * rank // size, count * (rank + 1) // size


@inline
def rotary_angles(table, factor, position, cosine, sine):
    """Cosine and sine of `position` times each frequency, from those of the powers of two in it."""
    for i in range(cosine.size):
        c, s = factor, np.float64(0.0)
        for bit in range(table.shape[1]):
            if (position >> bit) & 1:
                tc, ts = table[0, bit, i], table[1, bit, i]
                c, s = c * tc - s * ts, c * ts + s * tc
        cosine[i], sine[i] = np.float32(c), np.float32(s)


@inline
def embed(net, token, x):
    """The row of the embedding, float32."""
    scale, row = net.embedding_scales[token], net.embedding[token]
    for i in range(x.size):
        x[i] = np.float32(row[i]) * scale


@kernel
def forward(net, cache, work, tokens, lanes, positions, tasks, barrier, rank, team):
    """Run rows through all layers; their states, normed and quantised for the head, stay in `work.narrow`.

    tokens, lanes, positions: int64 [R]. tasks: int64 [n, 2], first row and count of at most a few queries of
    one lane. Every thread of the team calls this with its rank. Returns False where the team was broken off.
    """
    rows, layers = tokens.size, net.sizes[LAYERS]
    begin, end = share(rows, rank, team)
    products, scratch = work.thread_sums[rank], work.thread_scratch[rank]
    far = BLOCK * cache.window[0] + BLOCK - 1
    a, b, c = work.narrow[:rows], work.attended_quantised[:rows], work.wide[:rows]
    sums, scales, epsilon = work.row_sums[:rows], work.scales[:rows], net.epsilon[0]
    x, qkv, gate_up, attended = work.x[:rows], work.qkv[:rows], work.gate_up[:rows], work.attended
    ff = net.sizes[FEED_FORWARD]
    block = net.sizes[ROTATION]
    for r in range(begin, end):
        rotary_angles(net.cos_sin, net.factor[0], positions[r], work.cosine[r, 0], work.sine[r, 0])
        rotary_angles(net.cos_sin, net.factor[0], min(positions[r], far), work.cosine[r, 1], work.sine[r, 1])
        embed(net, tokens[r], x[r])
        scales[r], sums[r] = exact.normalise(x[r], epsilon, a[r])
    for layer in range(layers):
        if not wait(barrier, team):
            return False
        first, last = share(net.qkv.shape[1], rank, team)
        int8.matmul(a, sums, scales, net.qkv[layer], net.qkv_scales[layer], first, last, False, qkv, products)
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            prepare_row(net, cache, work, layer, r, lanes[r], positions[r], scratch)
        if not wait(barrier, team):
            return False
        groups = net.sizes[KV_HEADS]
        for task in range(rank, tasks.shape[0] * groups, team):
            row, count = tasks[task // groups, 0], tasks[task // groups, 1]
            attend(net, cache, work, layer, lanes[row], row, count, positions[row], task % groups, rank)
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            scales[r], sums[r] = exact.quantise_summed(attended[r], int8.TOP, b[r])
        if not wait(barrier, team):
            return False
        first, last = share(net.output.shape[1], rank, team)
        int8.matmul(b, sums, scales, net.output[layer], net.output_scales[layer], first, last, True, x, products)
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            if net.output_bias.shape[0] > 0:
                add(net.output_bias[layer], x[r])
            scales[r], sums[r] = exact.normalise(x[r], epsilon, a[r])
        if not wait(barrier, team):
            return False
        first, last = share(net.gate_up.shape[1], rank, team)
        int8.matmul(
            a, sums, scales, net.gate_up[layer], net.gate_up_scales[layer], first, last, False, gate_up, products
        )
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            gated = gate_up[r, :ff]
            gate(gated, gate_up[r, ff:])
            rotate_sums(gated, block)
            scale, sums[r] = exact.quantise_summed(gated, int8.TOP, c[r])
            scales[r] = scale * net.rotation[0]
        if not wait(barrier, team):
            return False
        first, last = share(net.down.shape[1], rank, team)
        int8.matmul(c, sums, scales, net.down[layer], net.down_scales[layer], first, last, True, x, products)
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            scales[r], sums[r] = exact.normalise(x[r], epsilon, a[r])
    return wait(barrier, team)


@inline
def add(x, out):
    for i in range(x.size):
        out[i] += x[i]


@inline
def gate(x, up):
    """x = x * sigmoid(x) * up."""
    one = np.float32(1.0)
    for i in range(x.size):
        g = x[i]
        e = exact.exp_negative(-abs(g))
        numerator = one if g >= 0 else e
        x[i] = g * (numerator / (one + e)) * up[i]


@kernel
def cumulate(net, work, states, sums, scales, bias, logits, cdf, places, barrier, rank, team):
    """Cumulative integer frequencies of all leaves for every row r: cdf[places[r]], uint64 [*, leaves + 1].

    states [R, width], sums int32 [R] and scales float32 [R] are those that `forward` left; bias float32 [leaves] is
    added to logits float32 [R, leaves].
    """
    first, last = share(net.head.shape[0], rank, team)
    int8.matmul(states, sums, scales, net.head, net.head_scales, first, last, False, logits, work.thread_sums[rank])
    if not wait(barrier, team):
        return False
    begin, end = share(states.shape[0], rank, team)
    for r in range(begin, end):
        exact.cumulate(logits[r], bias, cdf[places[r]])
    return wait(barrier, team)
