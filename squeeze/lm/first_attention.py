"""Attention as files of numerics version 1 were written by: see attention.py. Products are of 16 bits by 8."""

import numpy as np

from squeeze.lm.arrays import BLOCK, HEAD_SIZE, HEADS, KV_HEADS
from squeeze.lm.attention import copy, first_block
from squeeze.numerics import exact
from squeeze.numerics.exact import CHUNK, TOP
from squeeze.numerics.jit import inline
from squeeze.numerics.tiles import PANEL, narrow_tile

_MASKED = np.float32(-1e30)
_UNIT = np.float32(1 << 20)


@inline
def _softmax_row(scores, z, key_scales, value_scales, position, first, cache, factor, factor_first, weights):
    """Weights of one query over the columns (first block, then blocks `first` on), times the values' scales.

    Returns what turns their integer products with values into the attended vector.
    """
    for c in range(z.size):
        z[c] = _MASKED
    for c in range(min(BLOCK, position + 1)):
        z[c] = np.float32(scores[c]) * (factor_first * key_scales[c])
    if position >= BLOCK:
        begin, end = BLOCK * (1 + first_block(cache, position) - first), BLOCK * (1 - first) + position + 1
        zs, ss, ks = z[begin:end], scores[begin:end], key_scales[begin:end]
        for c in range(zs.size):
            zs[c] = np.float32(ss[c]) * (factor * ks[c])
    top, total = exact.maximum(z), np.int64(0)
    for c in range(z.size):
        z[c] = exact.exp_negative(z[c] - top)
    for c in range(z.size):
        total += np.int64(exact.to_integer(z[c] * _UNIT))
    for c in range(z.size):
        z[c] *= value_scales[c]
    scale = exact.quantise(z, TOP, weights)
    return scale * _UNIT / np.float32(total)


@inline
def attend(net, cache, work, layer, lane, first_row, count, position, g, thread):
    """Attention of `count` rows from `first_row` on, at `position` and after, for the heads of kv head g."""
    size, groups, group = net.sizes[HEAD_SIZE], net.sizes[KV_HEADS], net.sizes[HEADS] // net.sizes[KV_HEADS]
    rows, last = count * group, (position + count - 1) // BLOCK
    first, ring, lanes = first_block(cache, position), cache.window[1], cache.keys.shape[1]
    columns = BLOCK * (1 + max(0, last - first + 1))
    queries, scores = work.thread_queries[thread], work.thread_scores[thread]
    z = work.thread_column[thread, 0, :columns]
    key_scales, value_scales = work.thread_column[thread, 1, :columns], work.thread_column[thread, 2, :columns]
    slots = cache.key_scales.shape[3]
    for reach in range(2):
        for q in range(count):
            for j in range(group):
                out = queries[reach, (q * group + j) * size : (q * group + j + 1) * size]
                x = work.queries[first_row + q, reach, g * group + j]
                for i in range(size):
                    out[i] = x[i]
    panel, base = BLOCK * size, ((layer * lanes + lane) * groups + g) * slots * size
    narrow_tile(rows, 1, queries[1], 0, size, cache.keys, base, panel, size // 2, scores, 0, columns)
    copy(cache.key_scales[layer, lane, g, :BLOCK], key_scales)
    copy(cache.value_scales[layer, lane, g, :BLOCK], value_scales)
    block = first
    while block <= last:  # runs of blocks that lie side by side in the ring
        index = (block - 1) % ring
        blocks, slot, c = min(last - block + 1, ring - index), BLOCK * (1 + index), BLOCK * (1 + block - first)
        end = slot + BLOCK * blocks
        start = base + (1 + index) * panel
        narrow_tile(rows, blocks, queries[0], 0, size, cache.keys, start, panel, size // 2, scores, c, columns)
        copy(cache.key_scales[layer, lane, g, slot:end], key_scales[c:])
        copy(cache.value_scales[layer, lane, g, slot:end], value_scales[c:])
        block += blocks
    weights, factors = work.thread_weights[thread], work.thread_factors[thread]
    root = np.float32(1.0) / np.sqrt(np.float32(size))
    for q in range(count):
        for j in range(group):
            i, h = q * group + j, g * group + j
            row = slice(i * columns, (i + 1) * columns)
            near = work.query_scales[first_row + q, 0, h] * root
            far = work.query_scales[first_row + q, 1, h] * root
            factors[i] = _softmax_row(
                *(scores[row], z, key_scales, value_scales, position + q, first, cache, near, far, weights[row])
            )
    _weigh_values(cache, work, layer, lane, g, first, last, rows, columns, size, thread)
    products, padded = work.thread_exact[thread], cache.values.shape[3] * PANEL
    for q in range(count):
        for j in range(group):
            i, h = q * group + j, g * group + j
            out, total = (
                work.attended[first_row + q, h * size : (h + 1) * size],
                products[i * padded : (i + 1) * padded],
            )
            for d in range(size):
                out[d] = np.float32(total[d]) * factors[i]


@inline
def _weigh_values(cache, work, layer, lane, g, first, last, rows, columns, size, thread):
    """thread_exact int64 [rows, padded head size] = weights @ values, in integer sums of at most 512 positions."""
    lanes, groups, panels, pairs = cache.values.shape[1:5]
    padded, ring = panels * PANEL, cache.window[1]
    sums, products = work.thread_exact[thread], work.thread_products[thread]
    weights = work.thread_weights[thread]
    stride = pairs * 2 * PANEL
    base = ((layer * lanes + lane) * groups + g) * panels * stride
    for i in range(rows * padded):
        sums[i] = 0
    block = 0
    while block <= last:
        index, blocks, c = 0, 1, 0
        if block > 0:
            index = 1 + (block - 1) % ring
            blocks = min(last - block + 1, ring + 1 - index, CHUNK // BLOCK)
            c = BLOCK * (1 + block - first)
        start = base + index * BLOCK * PANEL
        narrow_tile(
            rows, panels, weights, c, columns, cache.values, start, stride, blocks * BLOCK // 2, products, 0, padded
        )
        for i in range(rows * padded):
            sums[i] += np.int64(products[i])
        block = first if block == 0 else block + blocks
