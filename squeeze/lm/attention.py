"""Attention in exact arithmetic: quantised keys and values in a sliding window of each lane, and the queries' softmax.

Queries and attention weights have 16 bits. Each is multiplied as a high and a low byte if the processor multiplies
bytes (numerics/int8.py). llama.py describes the window; docs/exactness.md has the arithmetic.
"""

import numpy as np

from squeeze.lm.arrays import BLOCK, HEAD_SIZE, HEADS, KV_HEADS
from squeeze.numerics import exact, int8, vectors
from squeeze.numerics.int8 import PARTS
from squeeze.numerics.int8_vectors import STEP
from squeeze.numerics.jit import inline, part
from squeeze.numerics.machine_code import PANEL

SUMMED = 256  # positions in one integer sum of weighted values: 256 * 255 * 32639 < 2^31
_MASKED = np.float32(-1e30)
_UNIT = np.float32(1 << 20)
_COUNTED = 1024  # columns of one 32-bit sum of exponentials: 1024 * 2^20 < 2^31


@inline
def rms_norm(x, weight, epsilon, out):
    inverse = exact.rms_inverse(x, epsilon)
    for i in range(x.size):
        out[i] = x[i] * inverse * weight[i]


@inline
def apply_rotary(x, cosine, sine, out):
    """Apply the rotary embedding to one head: dimensions i and i + head_size / 2 are a pair (Su et al. 2021)."""
    half = cosine.size
    low, high, out_low, out_high = x[:half], x[half:], out[:half], out[half:]
    for i in range(half):
        a, b = low[i], high[i]
        out_low[i] = a * cosine[i] - b * sine[i]
        out_high[i] = a * sine[i] + b * cosine[i]


@inline
def slot_of(cache, position):
    """Return the cache slot of a position: the first block has its own slots, the others share the ring."""
    ring = BLOCK * cache.window[1]
    return position if position < BLOCK else BLOCK + (position - BLOCK) % ring


@inline
def first_block(cache, position):
    """Return the first block of the window of a query at `position`, apart from the very first block."""
    return max(1, position // BLOCK - cache.window[0] + 1)


@inline
def copy(source, target):
    for i in range(source.size):
        target[i] = source[i]


@inline
def _place_key(cache, layer, lane, g, slot, scratch, x, step, added):
    cache.key_scales[layer, lane, g, slot] = exact.quantise(x, int8.TOP, scratch)
    panel = cache.keys[layer, lane, g, slot // PANEL]
    for i in range(x.size):
        panel[i // step, slot % PANEL, i % step] = scratch[i] + added


@inline
def _place_value(cache, layer, lane, g, slot, scratch, x, step, added):
    cache.value_scales[layer, lane, g, slot] = exact.quantise(x, int8.TOP, scratch)
    panels = cache.values[layer, lane, g]
    for i in range(x.size):
        panels[i // PANEL, slot // step, i % PANEL, slot % step] = scratch[i] + added


@inline
def prepare_row(net, cache, work, layer, r, lane, position, scratch, top, step, added):
    """Rotate and quantise queries, key and value of one row; key and value go to the cache.

    Args:
        net: weights.
        cache: keys and values.
        work: buffers.
        layer: the layer.
        r: the row.
        lane: its lane.
        position: its position in the lane.
        scratch: int16 [head_size].
        top: largest integer of a query.
        step: inputs of a packed column that are adjacent.
        added: offset of packed keys and values.
    """
    heads, groups, size = net.sizes[HEADS], net.sizes[KV_HEADS], net.sizes[HEAD_SIZE]
    row, slot = work.qkv[r], slot_of(cache, position)
    if net.qkv_bias.shape[0] > 0:
        bias = net.qkv_bias[layer]
        for i in range(row.size):
            row[i] += bias[i]
    first, second = work.normed[r, :size], work.normed[r, size : 2 * size]
    for h in range(heads):
        x = row[h * size : (h + 1) * size]
        if net.query_norm.shape[0] > 0:
            rms_norm(x, net.query_norm[layer], net.epsilon[0], first)
            x = first
        for reach in range(2):
            apply_rotary(x, work.cosine[r, reach], work.sine[r, reach], second)
            work.query_scales[r, reach, h] = exact.quantise(second, top, work.queries[r, reach, h])
    for g in range(groups):
        x = row[(heads + g) * size : (heads + g + 1) * size]
        if net.key_norm.shape[0] > 0:
            rms_norm(x, net.key_norm[layer], net.epsilon[0], first)
            x = first
        apply_rotary(x, work.cosine[r, 0], work.sine[r, 0], second)
        _place_key(cache, layer, lane, g, slot, scratch, second, step, added)
        x = row[(heads + groups + g) * size : (heads + groups + g + 1) * size]
        _place_value(cache, layer, lane, g, slot, scratch, x, step, added)


@part
def _scores(scores, row, columns, begin, end, shift, factor, key_scales, z):
    """Set z to the scores of columns from `begin` to `end`: products with a query, less the offset 128, times
    scales."""
    high = scores[row * columns + begin : row * columns + end]
    low = scores[(row + PARTS - 1) * columns + begin : (row + PARTS - 1) * columns + end]
    zs, ks = z[begin:end], key_scales[begin:end]
    for c in range(zs.size):
        zs[c] = np.float32(np.int32(int8.joined(high[c], low[c]) - shift)) * (factor * ks[c])


@part
def _softmax(z, value_scales, narrow, weights, place):
    """Compute attention weights of one query, times the values' scales, and write them to `weights` from `place` on.

    Args:
        z: float32 [columns], scores, overwritten.
        value_scales: float32 [columns].
        narrow: int16 [columns], scratch.
        weights: the output, in one part or two bytes.
        place: its first index.

    Returns:
        the factor of products with values, and the sum of weights.
    """
    top, total, added = exact.maximum(z), np.int64(0), np.int64(0)
    for start in range(0, z.size, _COUNTED):
        count = min(_COUNTED, z.size - start)
        total += np.int64(vectors.exp_shares(z, start, count, top, _UNIT, value_scales, start))
    scale = exact.quantise(z, int8.TOP_16, narrow)
    for start in range(0, z.size, _COUNTED):
        added += np.int64(int8.split(narrow[start : start + _COUNTED], weights, place + start, z.size))
    return scale * _UNIT / np.float32(total), added


@inline
def attend(net, cache, work, layer, lane, first_row, count, position, g, thread):
    """Compute attention of `count` rows from `first_row` on, at `position` and after, for the heads of kv head g.

    Args:
        net: weights.
        cache: keys and values.
        work: buffers.
        layer: the layer.
        lane: the rows' lane.
        first_row: first row.
        count: rows.
        position: of the first row.
        g: kv head.
        thread: rank of this thread, for its buffers.
    """
    size, groups, group = net.sizes[HEAD_SIZE], net.sizes[KV_HEADS], net.sizes[HEADS] // net.sizes[KV_HEADS]
    rows, last = count * group, (position + count - 1) // BLOCK
    first, ring, lanes = first_block(cache, position), cache.window[1], cache.keys.shape[1]
    columns = BLOCK * (1 + max(0, last - first + 1))
    queries, scores, shifts = work.thread_queries[thread], work.thread_scores[thread], work.thread_shifts[thread]
    fours = cache.keys.shape[4]
    length, slots = fours * STEP, cache.key_scales.shape[3]
    for reach in range(2):
        for i in range(rows):
            x = work.queries[first_row + i // group, reach, g * group + i % group]
            shifts[reach, i] = 128 * int8.split(x, queries[reach], PARTS * i * length, length)
    z = work.thread_column[thread, 0, :columns]
    key_scales, value_scales = work.thread_column[thread, 1, :columns], work.thread_column[thread, 2, :columns]
    panel = PANEL * length
    base = ((layer * lanes + lane) * groups + g) * slots * length
    int8.products(rows * PARTS, 1, queries[1], 0, length, cache.keys, base, panel, fours, scores, 0, columns)
    copy(cache.key_scales[layer, lane, g, :BLOCK], key_scales)
    copy(cache.value_scales[layer, lane, g, :BLOCK], value_scales)
    block = first
    while block <= last:  # runs of blocks that are adjacent in the ring
        index = (block - 1) % ring
        blocks, slot, c = min(last - block + 1, ring - index), BLOCK * (1 + index), BLOCK * (1 + block - first)
        end, start = slot + BLOCK * blocks, base + (1 + index) * panel
        int8.products(rows * PARTS, blocks, queries[0], 0, length, cache.keys, start, panel, fours, scores, c, columns)
        copy(cache.key_scales[layer, lane, g, slot:end], key_scales[c:])
        copy(cache.value_scales[layer, lane, g, slot:end], value_scales[c:])
        block += blocks
    weights, narrow = work.thread_weights[thread], work.thread_narrow[thread, :columns]
    factors, sums = work.thread_factors[thread], work.thread_added[thread]
    root = np.float32(1.0) / np.sqrt(np.float32(size))
    for i in range(rows):
        row, h = first_row + i // group, g * group + i % group
        place, near, far = position + i // group, work.query_scales[row, 0, h], work.query_scales[row, 1, h]
        for c in range(columns):
            z[c] = _MASKED
        _scores(scores, i * PARTS, columns, 0, min(BLOCK, place + 1), shifts[1, i], far * root, key_scales, z)
        if place >= BLOCK:
            begin, end = BLOCK * (1 + first_block(cache, place) - first), BLOCK * (1 - first) + place + 1
            _scores(scores, i * PARTS, columns, begin, end, shifts[0, i], near * root, key_scales, z)
        factors[i], sums[i] = _softmax(z, value_scales, narrow, weights, PARTS * i * columns)
    _weigh_values(cache, work, layer, lane, g, first, last, rows, columns, thread)
    totals, padded = work.thread_exact[thread], cache.values.shape[3] * PANEL
    for i in range(rows):
        row, h, shift = first_row + i // group, g * group + i % group, 128 * sums[i]
        out, total = work.attended[row, h * size : (h + 1) * size], totals[i * padded : (i + 1) * padded]
        for d in range(size):
            out[d] = np.float32(total[d] - shift) * factors[i]


@inline
def _weigh_values(cache, work, layer, lane, g, first, last, rows, columns, thread):
    """Set thread_exact, int64 [rows, padded head size], to weights @ (values + 128), in integer sums of few
    positions."""
    lanes, groups, panels, fours = cache.values.shape[1:5]
    padded, ring = panels * PANEL, cache.window[1]
    totals, found, weights = work.thread_exact[thread], work.thread_products[thread], work.thread_weights[thread]
    stride = fours * STEP * PANEL
    base = ((layer * lanes + lane) * groups + g) * panels * stride
    for i in range(rows * padded):
        totals[i] = 0
    block = 0
    while block <= last:
        index, blocks, c = 0, 1, 0
        if block > 0:
            index = 1 + (block - 1) % ring
            blocks = min(last - block + 1, ring + 1 - index, SUMMED // BLOCK)
            c = BLOCK * (1 + block - first)
        start, inputs = base + index * BLOCK * PANEL, blocks * BLOCK // STEP
        int8.products(rows * PARTS, panels, weights, c, columns, cache.values, start, stride, inputs, found, 0, padded)
        for i in range(rows):
            high = found[i * PARTS * padded : (i * PARTS + 1) * padded]
            low = found[(i * PARTS + PARTS - 1) * padded : (i * PARTS + PARTS) * padded]
            total = totals[i * padded : (i + 1) * padded]
            for d in range(padded):
                total[d] += np.int64(int8.joined(high[d], low[d]))
        block = first if block == 0 else block + blocks
