"""The network itself: rows of tokens through all layers, and frequencies of all tokens from what comes out.

Every thread of a team calls a kernel with its rank, and does its share between barriers; see team.py.
"""

import numpy as np

from squeeze.lm.arrays import BLOCK, FEED_FORWARD, KV_HEADS, LAYERS
from squeeze.lm.attention import attend, prepare_row, rms_norm
from squeeze.numerics import exact
from squeeze.numerics.exact import TOP
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.team import wait


@inline
def _share(count, rank, size):
    """The part of `count` things that thread `rank` of `size` does."""
    return count * rank // size, count * (rank + 1) // size


@inline
def _rotary_angles(table, factor, position, cosine, sine):
    """Cosine and sine of `position` times each frequency, from those of the powers of two in it."""
    for i in range(cosine.size):
        c, s = factor, np.float64(0.0)
        for bit in range(table.shape[1]):
            if (position >> bit) & 1:
                tc, ts = table[0, bit, i], table[1, bit, i]
                c, s = c * tc - s * ts, c * ts + s * tc
        cosine[i], sine[i] = np.float32(c), np.float32(s)


@kernel
def forward(net, cache, work, tokens, lanes, positions, tasks, barrier, rank, team):
    """Run rows through all layers; their states, normed and quantised for the head, stay in `work.narrow`.

    tokens, lanes, positions: int64 [R]. tasks: int64 [n, 2], first row and count of at most a few queries of
    one lane. Every thread of the team calls this with its rank. Returns False where the team was broken off.
    """
    rows, layers = tokens.size, net.sizes[LAYERS]
    begin, end = _share(rows, rank, team)
    widened, sums = work.thread_widened[rank], work.thread_sums[rank]
    totals, scratch = work.thread_totals[rank], work.thread_widened[rank]
    far = BLOCK * cache.window[0] + BLOCK - 1
    a, b, c, scales = work.narrow[:rows], work.attended_quantised[:rows], work.wide[:rows], work.scales[:rows]
    x, qkv, gate_up = work.x[:rows], work.qkv[:rows], work.gate_up[:rows]
    width, ff = x.shape[1], net.sizes[FEED_FORWARD]
    for r in range(begin, end):
        _rotary_angles(net.cos_sin, net.factor[0], positions[r], work.cosine[r, 0], work.sine[r, 0])
        _rotary_angles(net.cos_sin, net.factor[0], min(positions[r], far), work.cosine[r, 1], work.sine[r, 1])
        scale, embedding, row = net.embedding_scales[tokens[r]], net.embedding[tokens[r]], x[r]
        for i in range(width):
            row[i] = np.float32(embedding[i]) * scale
    for layer in range(layers):
        for r in range(begin, end):
            rms_norm(x[r], net.attention_norm[layer], net.epsilon[0], work.normed[r, :width])
            scales[r] = exact.quantise(work.normed[r, :width], TOP, a[r])
        if not wait(barrier, team):
            return False
        first, last = _share(net.qkv.shape[1], rank, team)
        exact.matmul(a, scales, net.qkv[layer], net.qkv_scales[layer], first, last, False, qkv, widened, sums, totals)
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
            scales[r] = exact.quantise(work.attended[r], TOP, b[r])
        if not wait(barrier, team):
            return False
        first, last = _share(net.output.shape[1], rank, team)
        exact.matmul(
            b, scales, net.output[layer], net.output_scales[layer], first, last, True, x, widened, sums, totals
        )
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            if net.output_bias.shape[0] > 0:
                _add(net.output_bias[layer], x[r])
            rms_norm(x[r], net.feed_forward_norm[layer], net.epsilon[0], work.normed[r, :width])
            scales[r] = exact.quantise(work.normed[r, :width], TOP, a[r])
        if not wait(barrier, team):
            return False
        first, last = _share(net.gate_up.shape[1], rank, team)
        exact.matmul(
            *(a, scales, net.gate_up[layer], net.gate_up_scales[layer]),
            *(first, last, False, gate_up, widened, sums, totals),
        )
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            _gate(gate_up[r, :ff], gate_up[r, ff:])
            scales[r] = exact.quantise(gate_up[r, :ff], TOP, c[r])
        if not wait(barrier, team):
            return False
        first, last = _share(net.down.shape[1], rank, team)
        exact.matmul(c, scales, net.down[layer], net.down_scales[layer], first, last, True, x, widened, sums, totals)
        if not wait(barrier, team):
            return False
    for r in range(begin, end):
        rms_norm(x[r], net.final_norm, net.epsilon[0], work.normed[r, :width])
        scales[r] = exact.quantise(work.normed[r, :width], TOP, a[r])
    return wait(barrier, team)


@inline
def _add(x, out):
    for i in range(x.size):
        out[i] += x[i]


@inline
def _gate(gate, up):
    """gate = gate * sigmoid(gate) * up."""
    one = np.float32(1.0)
    for i in range(gate.size):
        g = gate[i]
        e = exact.exp_negative(-abs(g))
        numerator = one if g >= 0 else e
        gate[i] = g * (numerator / (one + e)) * up[i]


@kernel
def cumulate(net, states, scales, bias, logits, cdf, thread_widened, thread_sums, thread_totals, barrier, rank, team):
    """Cumulative integer frequencies of all leaves for every row: cdf uint64 [R, leaves + 1].

    states int16 [R, width] and scales float32 [R] are those that `forward` left; bias float32 [leaves] is added to
    logits float32 [R, leaves].
    """
    rows = states.shape[0]
    first, last = _share(net.head.shape[0], rank, team)
    exact.matmul(
        *(states, scales, net.head, net.head_scales, first, last, False, logits),
        *(thread_widened[rank], thread_sums[rank], thread_totals[rank]),
    )
    if not wait(barrier, team):
        return False
    begin, end = _share(rows, rank, team)
    for r in range(begin, end):
        exact.cumulate(logits[r], bias, cdf[r])
    return wait(barrier, team)
