"""The network as files of numerics version 1 were written by, with weights of norms and 16 bits of activations."""

from squeeze.lm.arrays import BLOCK, FEED_FORWARD, KV_HEADS, LAYERS
from squeeze.lm.attention import prepare_row, rms_norm
from squeeze.lm.first_attention import attend
from squeeze.lm.forward import add, embed, gate, rotary_angles, share
from squeeze.numerics import exact
from squeeze.numerics.exact import TOP
from squeeze.numerics.jit import kernel
from squeeze.numerics.team import wait


@kernel
def forward(net, cache, work, tokens, lanes, positions, tasks, apart, barrier, rank, team):
    """Run rows through all layers; their states, normed and quantised for the head, stay in `work.narrow`.

    tokens, lanes, positions: int64 [R]. tasks: int64 [n, 2], first row and count of at most a few queries of
    one lane. Every thread of the team calls this with its rank; they are never `apart`. Returns False where the team
    was broken off.
    """
    rows, layers = tokens.size, net.sizes[LAYERS]
    begin, end = share(rows, rank, team)
    widened, sums = work.thread_widened[rank], work.thread_sums[rank]
    totals, scratch = work.thread_totals[rank], work.thread_scratch[rank]
    far = BLOCK * cache.window[0] + BLOCK - 1
    a, b, c, scales = work.narrow[:rows], work.attended_quantised[:rows], work.wide[:rows], work.scales[:rows]
    x, qkv, gate_up = work.x[:rows], work.qkv[:rows], work.gate_up[:rows]
    width, ff = x.shape[1], net.sizes[FEED_FORWARD]
    for r in range(begin, end):
        rotary_angles(net.cos_sin, net.factor[0], positions[r], work.cosine[r, 0], work.sine[r, 0])
        rotary_angles(net.cos_sin, net.factor[0], min(positions[r], far), work.cosine[r, 1], work.sine[r, 1])
        embed(net, tokens[r], x[r])
    for layer in range(layers):
        for r in range(begin, end):
            rms_norm(x[r], net.attention_norm[layer], net.epsilon[0], work.normed[r, :width])
            scales[r] = exact.quantise(work.normed[r, :width], TOP, a[r])
        if not wait(barrier, team):
            return False
        first, last = share(net.qkv.shape[1], rank, team)
        exact.matmul(a, scales, net.qkv[layer], net.qkv_scales[layer], first, last, False, qkv, widened, sums, totals)
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            prepare_row(net, cache, work, layer, r, lanes[r], positions[r], scratch, TOP, 2, 0)
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
        first, last = share(net.output.shape[1], rank, team)
        exact.matmul(
            b, scales, net.output[layer], net.output_scales[layer], first, last, True, x, widened, sums, totals
        )
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            if net.output_bias.shape[0] > 0:
                add(net.output_bias[layer], x[r])
            rms_norm(x[r], net.feed_forward_norm[layer], net.epsilon[0], work.normed[r, :width])
            scales[r] = exact.quantise(work.normed[r, :width], TOP, a[r])
        if not wait(barrier, team):
            return False
        first, last = share(net.gate_up.shape[1], rank, team)
        exact.matmul(
            *(a, scales, net.gate_up[layer], net.gate_up_scales[layer]),
            *(first, last, False, gate_up, widened, sums, totals),
        )
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            gate(gate_up[r, :ff], gate_up[r, ff:])
            scales[r] = exact.quantise(gate_up[r, :ff], TOP, c[r])
        if not wait(barrier, team):
            return False
        first, last = share(net.down.shape[1], rank, team)
        exact.matmul(c, scales, net.down[layer], net.down_scales[layer], first, last, True, x, widened, sums, totals)
        if not wait(barrier, team):
            return False
    for r in range(begin, end):
        rms_norm(x[r], net.final_norm[0], net.epsilon[0], work.normed[r, :width])
        scales[r] = exact.quantise(work.normed[r, :width], TOP, a[r])
    return wait(barrier, team)


@kernel
def cumulate(net, work, states, sums, scales, bias, logits, cdf, places, apart, barrier, rank, team):
    """As forward.py's, but of rows without sums and never `apart`."""
    first, last = share(net.head.shape[0], rank, team)
    exact.matmul(
        *(states, scales, net.head, net.head_scales, first, last, False, logits),
        *(work.thread_widened[rank], work.thread_sums[rank], work.thread_totals[rank]),
    )
    if not wait(barrier, team):
        return False
    begin, end = share(states.shape[0], rank, team)
    for r in range(begin, end):
        exact.cumulate(logits[r], bias, cdf, places[r])
    return wait(barrier, team)
