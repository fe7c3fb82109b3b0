"""A Llama-family network in exact arithmetic: many positions at once, or one position of many lanes.

MAIN PATH: `forward`. Rows of tokens, each with its lane and position, go through the network together; a
prefill is a run of positions of a lane (a *span*), a step is one position of every lane. What a row gives
depends on its lane's tokens alone, never on the rows beside it, on threads, or on how the tokens were cut.

A lane sees its first 16 positions always and after them a sliding window of `window` positions in blocks of
16 (attention sinks: Xiao et al., "Efficient streaming language models with attention sinks", 2023). Beyond
the window, queries meet the first 16 keys at a fixed distance, so a lane may be of any length.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from squeeze.codecs.bitmodels.jit import inline, kernel
from squeeze.codecs.trie import Trie, build
from squeeze.lm import exact
from squeeze.lm.exact import CHUNK, PANEL, TOP
from squeeze.lm.team import Team, wait
from squeeze.lm.tokenizer import Tokenizer
from squeeze.lm.weights import Weights

BLOCK = 16  # positions; the first block of a lane is always seen
_QUERIES = 6  # rows of one product in attention
_DOUBLINGS = 24  # positions below 2^24
_MASKED = np.float32(-1e30)
_UNIT = np.float32(1 << 20)


class Network(NamedTuple):
    """Weights as the kernels read them; the first axis is the layer. Absent biases and norms have no rows."""

    sizes: np.ndarray  # int64: see the constants below
    epsilon: np.ndarray  # float32 [1]
    factor: np.ndarray  # float64 [1]: multiplies cosines and sines
    turns: np.ndarray  # float64 [2, _DOUBLINGS, head_size / 2]: cosine and sine of 2^i times each frequency
    embedding: np.ndarray
    embedding_scales: np.ndarray
    attention_norm: np.ndarray
    qkv: np.ndarray
    qkv_scales: np.ndarray
    qkv_bias: np.ndarray
    query_norm: np.ndarray
    key_norm: np.ndarray
    output: np.ndarray
    output_scales: np.ndarray
    output_bias: np.ndarray
    feed_forward_norm: np.ndarray
    gate_up: np.ndarray
    gate_up_scales: np.ndarray
    down: np.ndarray
    down_scales: np.ndarray
    final_norm: np.ndarray
    head: np.ndarray
    head_scales: np.ndarray


LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_SIZE, FEED_FORWARD = range(6)


class Cache(NamedTuple):
    """Keys and values of every lane, quantised when they are written and never touched again."""

    window: np.ndarray  # int64 [2]: blocks that a query sees, blocks that the ring holds
    keys: np.ndarray  # int8 [layers, lanes, kv heads, blocks, head_size / 2, 16, 2]: packed, a position is a column
    key_scales: np.ndarray  # float32 [layers, lanes, kv heads, positions]
    values: np.ndarray  # int8 [layers, lanes, kv heads, head_size / 16, positions / 2, 16, 2]: packed, a dimension is
    value_scales: np.ndarray


class Work(NamedTuple):
    """Everything between cache and result; the first axis is the row, in `thread_` arrays the thread."""

    x: np.ndarray
    normed: np.ndarray
    cosine: np.ndarray  # float32 [R, 2, head_size / 2]: for the window, and for the first block
    sine: np.ndarray
    narrow: np.ndarray  # int16 [R, width]
    attended: np.ndarray  # float32 [R, heads * head_size]
    attended_quantised: np.ndarray
    wide: np.ndarray  # int16 [R, feed_forward]
    scales: np.ndarray  # float32 [R]
    qkv: np.ndarray  # float32 [R, (heads + 2 kv_heads) * head_size]
    gate_up: np.ndarray  # float32 [R, 2 feed_forward]
    queries: np.ndarray  # int16 [R, 2, heads, head_size]
    query_scales: np.ndarray  # float32 [R, 2, heads]
    thread_widened: np.ndarray
    thread_sums: np.ndarray
    thread_totals: np.ndarray
    thread_queries: np.ndarray  # int16 [threads, 2, rows * head_size]
    thread_scores: np.ndarray  # int32 [threads, rows * columns]
    thread_weights: np.ndarray  # int16 [threads, rows * columns]
    thread_column: np.ndarray  # float32 [threads, 3, columns]: scores, key scales, value scales
    thread_products: np.ndarray  # int32 [threads, rows * head_size]
    thread_exact: np.ndarray  # int64 [threads, rows * head_size]
    thread_factors: np.ndarray  # float32 [threads, rows]


@inline
def _share(count, rank, size):
    """The part of `count` things that thread `rank` of `size` does."""
    return count * rank // size, count * (rank + 1) // size


@inline
def _turn(turns, factor, position, cosine, sine):
    """Cosine and sine of `position` times each frequency, from those of the powers of two in it."""
    for i in range(cosine.size):
        c, s = factor, np.float64(0.0)
        for bit in range(turns.shape[1]):
            if (position >> bit) & 1:
                tc, ts = turns[0, bit, i], turns[1, bit, i]
                c, s = c * tc - s * ts, c * ts + s * tc
        cosine[i], sine[i] = np.float32(c), np.float32(s)


@inline
def _rotate(x, cosine, sine, out):
    """Rotary embedding of one head: dimension i turns with dimension i + head_size / 2 (Su et al., 2021)."""
    half = cosine.size
    low, high, out_low, out_high = x[:half], x[half:], out[:half], out[half:]
    for i in range(half):
        a, b = low[i], high[i]
        out_low[i] = a * cosine[i] - b * sine[i]
        out_high[i] = a * sine[i] + b * cosine[i]


@inline
def _norm(x, weight, epsilon, out):
    inverse = exact.rms_inverse(x, epsilon)
    for i in range(x.size):
        out[i] = x[i] * inverse * weight[i]


@inline
def _place_key(cache, work, layer, lane, g, slot, scratch, x):
    cache.key_scales[layer, lane, g, slot] = exact.quantise(x, 127, scratch)
    panel = cache.keys[layer, lane, g, slot // PANEL]
    column = slot % PANEL
    for i in range(x.size // 2):
        panel[i, column, 0] = scratch[2 * i]
        panel[i, column, 1] = scratch[2 * i + 1]


@inline
def _place_value(cache, layer, lane, g, slot, scratch, x):
    cache.value_scales[layer, lane, g, slot] = exact.quantise(x, 127, scratch)
    panels = cache.values[layer, lane, g]
    pair, odd = slot // 2, slot % 2
    for i in range(x.size):
        panels[i // PANEL, pair, i % PANEL, odd] = scratch[i]


@inline
def _slot(cache, position):
    """Where a position lies in the cache: the first block has its own, the others share the ring."""
    ring = BLOCK * cache.window[1]
    return position if position < BLOCK else BLOCK + (position - BLOCK) % ring


@inline
def _first_block(cache, position):
    """The first block of the window that a query at `position` sees, besides the first of all."""
    return max(1, position // BLOCK - cache.window[0] + 1)


@inline
def _prepare_row(net, cache, work, layer, r, lane, position, scratch):
    """Rotate and quantise the queries, the key and the value of one row; key and value go to the cache."""
    heads, groups, size = net.sizes[HEADS], net.sizes[KV_HEADS], net.sizes[HEAD_SIZE]
    row, slot = work.qkv[r], _slot(cache, position)
    if net.qkv_bias.shape[0] > 0:
        bias = net.qkv_bias[layer]
        for i in range(row.size):
            row[i] += bias[i]
    first, second = work.normed[r, :size], work.normed[r, size : 2 * size]
    for h in range(heads):
        x = row[h * size : (h + 1) * size]
        if net.query_norm.shape[0] > 0:
            _norm(x, net.query_norm[layer], net.epsilon[0], first)
            x = first
        for place in range(2):
            _rotate(x, work.cosine[r, place], work.sine[r, place], second)
            work.query_scales[r, place, h] = exact.quantise(second, TOP, work.queries[r, place, h])
    for g in range(groups):
        x = row[(heads + g) * size : (heads + g + 1) * size]
        if net.key_norm.shape[0] > 0:
            _norm(x, net.key_norm[layer], net.epsilon[0], first)
            x = first
        _rotate(x, work.cosine[r, 0], work.sine[r, 0], second)
        _place_key(cache, work, layer, lane, g, slot, scratch, second)
        x = row[(heads + groups + g) * size : (heads + groups + g + 1) * size]
        _place_value(cache, layer, lane, g, slot, scratch, x)


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
        begin, end = BLOCK * (1 + _first_block(cache, position) - first), BLOCK * (1 - first) + position + 1
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
def _attend(net, cache, work, layer, lane, first_row, count, position, g, thread):
    """Attention of `count` rows from `first_row` on, at `position` and after, for the heads of kv head g."""
    size, groups, group = net.sizes[HEAD_SIZE], net.sizes[KV_HEADS], net.sizes[HEADS] // net.sizes[KV_HEADS]
    rows, last = count * group, (position + count - 1) // BLOCK
    first, ring, lanes = _first_block(cache, position), cache.window[1], cache.keys.shape[1]
    columns = BLOCK * (1 + max(0, last - first + 1))
    queries, scores = work.thread_queries[thread], work.thread_scores[thread]
    z = work.thread_column[thread, 0, :columns]
    key_scales, value_scales = work.thread_column[thread, 1, :columns], work.thread_column[thread, 2, :columns]
    slots = cache.key_scales.shape[3]
    for place in range(2):
        for q in range(count):
            for j in range(group):
                out = queries[place, (q * group + j) * size : (q * group + j + 1) * size]
                x = work.queries[first_row + q, place, g * group + j]
                for i in range(size):
                    out[i] = x[i]
    panel, base = BLOCK * size, ((layer * lanes + lane) * groups + g) * slots * size
    exact.narrow_tile(rows, 1, queries[1], 0, size, cache.keys, base, panel, size // 2, scores, 0, columns)
    _copy(cache.key_scales[layer, lane, g, :BLOCK], key_scales)
    _copy(cache.value_scales[layer, lane, g, :BLOCK], value_scales)
    block = first
    while block <= last:  # runs of blocks that lie side by side in the ring
        at = (block - 1) % ring
        blocks, slot, c = min(last - block + 1, ring - at), BLOCK * (1 + at), BLOCK * (1 + block - first)
        end = slot + BLOCK * blocks
        start = base + (1 + at) * panel
        exact.narrow_tile(rows, blocks, queries[0], 0, size, cache.keys, start, panel, size // 2, scores, c, columns)
        _copy(cache.key_scales[layer, lane, g, slot:end], key_scales[c:])
        _copy(cache.value_scales[layer, lane, g, slot:end], value_scales[c:])
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
def _copy(source, target):
    for i in range(source.size):
        target[i] = source[i]


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
        at, blocks, c = 0, 1, 0
        if block > 0:
            at = 1 + (block - 1) % ring
            blocks = min(last - block + 1, ring + 1 - at, CHUNK // BLOCK)
            c = BLOCK * (1 + block - first)
        start = base + at * BLOCK * PANEL
        exact.narrow_tile(
            rows, panels, weights, c, columns, cache.values, start, stride, blocks * BLOCK // 2, products, 0, padded
        )
        for i in range(rows * padded):
            sums[i] += np.int64(products[i])
        block = first if block == 0 else block + blocks


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
        _turn(net.turns, net.factor[0], positions[r], work.cosine[r, 0], work.sine[r, 0])
        _turn(net.turns, net.factor[0], min(positions[r], far), work.cosine[r, 1], work.sine[r, 1])
        scale, embedding, row = net.embedding_scales[tokens[r]], net.embedding[tokens[r]], x[r]
        for i in range(width):
            row[i] = np.float32(embedding[i]) * scale
    for layer in range(layers):
        for r in range(begin, end):
            _norm(x[r], net.attention_norm[layer], net.epsilon[0], work.normed[r, :width])
            scales[r] = exact.quantise(work.normed[r, :width], TOP, a[r])
        if not wait(barrier, team):
            return False
        first, last = _share(net.qkv.shape[1], rank, team)
        exact.matmul(a, scales, net.qkv[layer], net.qkv_scales[layer], first, last, False, qkv, widened, sums, totals)
        if not wait(barrier, team):
            return False
        for r in range(begin, end):
            _prepare_row(net, cache, work, layer, r, lanes[r], positions[r], scratch)
        if not wait(barrier, team):
            return False
        groups = net.sizes[KV_HEADS]
        for task in range(rank, tasks.shape[0] * groups, team):
            row, count = tasks[task // groups, 0], tasks[task // groups, 1]
            _attend(net, cache, work, layer, lanes[row], row, count, positions[row], task % groups, rank)
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
            _norm(x[r], net.feed_forward_norm[layer], net.epsilon[0], work.normed[r, :width])
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
        _norm(x[r], net.final_norm, net.epsilon[0], work.normed[r, :width])
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
def count(net, states, scales, bias, logits, counts, thread_widened, thread_sums, thread_totals, barrier, rank, team):
    """Cumulative integer frequencies of all leaves for every row: counts uint64 [R, leaves + 1].

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
        exact.cumulate(logits[r], bias, counts[r])
    return wait(barrier, team)


def _cosine_and_sine(angle: float) -> tuple[float, float]:
    """Of an angle within ±4, by the power series in integers: the same float64 everywhere."""
    one = 1 << 160
    numerator, denominator = angle.as_integer_ratio()
    x = (numerator << 160) // denominator
    sums, term, k = [0, 0], one, 0
    while term:
        sums[k & 1] += -term if k & 2 else term
        k += 1
        term = term * x // (k * one) if term * x >= 0 else -(-term * x // (k * one))
    return sums[0] / one, sums[1] / one


def _turns(frequencies: tuple[float, ...]) -> np.ndarray:
    """float64 [2, _DOUBLINGS, n]: cosine and sine of 2^i times each angle, each from the one before."""
    table = np.empty((2, _DOUBLINGS, len(frequencies)))
    table[:, 0] = np.array([_cosine_and_sine(angle) for angle in frequencies]).T
    for i in range(1, _DOUBLINGS):
        c, s = table[:, i - 1]
        table[0, i] = c * c - s * s
        table[1, i] = c * s + c * s
    return table


def _network(weights: Weights) -> Network:
    c, layers = weights.config, weights.layers

    def stacked(values: list) -> np.ndarray:
        if values[0] is None:
            return np.zeros((0, 0), np.float32)
        return np.stack(values)

    return Network(
        sizes=np.array([c.layers, c.width, c.heads, c.kv_heads, c.head_size, c.feed_forward], np.int64),
        epsilon=np.array([c.epsilon], np.float32),
        factor=np.array([c.attention_factor]),
        turns=_turns(c.frequencies),
        embedding=np.array(weights.embedding),
        embedding_scales=np.array(weights.embedding_scales),
        attention_norm=stacked([layer.attention_norm for layer in layers]),
        qkv=stacked([layer.qkv.values for layer in layers]),
        qkv_scales=stacked([layer.qkv.scales for layer in layers]),
        qkv_bias=stacked([layer.qkv_bias for layer in layers]),
        query_norm=stacked([layer.query_norm for layer in layers]),
        key_norm=stacked([layer.key_norm for layer in layers]),
        output=stacked([layer.output.values for layer in layers]),
        output_scales=stacked([layer.output.scales for layer in layers]),
        output_bias=stacked([layer.output_bias for layer in layers]),
        feed_forward_norm=stacked([layer.feed_forward_norm for layer in layers]),
        gate_up=stacked([layer.gate_up.values for layer in layers]),
        gate_up_scales=stacked([layer.gate_up.scales for layer in layers]),
        down=stacked([layer.down.values for layer in layers]),
        down_scales=stacked([layer.down.scales for layer in layers]),
        final_norm=np.array(weights.final_norm),
        head=np.array(weights.head.values),
        head_scales=np.array(weights.head.scales),
    )


class Llama:
    """A network ready to run, with its vocabulary as a trie: a `LanguageModel` of codecs/lanes.py."""

    longest_prefill = 1 << 16
    lockstep = 0

    def __init__(self, weights: Weights, tokenizer: Tokenizer):
        self.weights, self._tokenizer = weights, tokenizer
        self.name, self.identity = weights.name, weights.identity
        self.start_token, self.context = weights.config.start_token, weights.config.context
        self.leaves = weights.leaves
        self.network = _network(weights)

    @cached_property
    def trie(self) -> Trie:
        return build([self.weights.tokens[i] for i in self.leaves])

    @property
    def size(self) -> int:
        return sum(array.nbytes for array in self.network)

    @property
    def size_of_position(self) -> int:
        c = self.weights.config
        return c.layers * c.kv_heads * (2 * c.head_size + 8)

    def encode(self, data: bytes) -> np.ndarray:
        return self._tokenizer.encode(data)

    def session(self, lanes: int, window: int, rows: int, team: Team) -> "Session":
        return Session(self, lanes, window, rows, team)


class Session:
    """The state of some lanes, each at a position of its own; at most `rows` tokens go through at once.

    `window` is in positions, a multiple of 16. After `forward` the states of its rows stand ready, and `count`
    turns some of them into `counts`, uint64 [R, leaves + 1], cumulative frequencies of the leaves.
    """

    def __init__(self, llama: Llama, lanes: int, window: int, rows: int, team: Team):
        c = llama.weights.config
        self._llama, self._team, self._rows = llama, team, rows
        self.positions = np.zeros(lanes, np.int64)
        group = c.heads // c.kv_heads
        self._queries = max(1, _QUERIES // group)
        ring = window // BLOCK + (-(-rows // lanes) + BLOCK - 2) // BLOCK
        blocks = 1 + ring
        slots, dims = BLOCK * blocks, -(-c.head_size // PANEL)
        self._cache = Cache(
            window=np.array([window // BLOCK, ring], np.int64),
            keys=np.zeros((c.layers, lanes, c.kv_heads, blocks, c.head_size // 2, PANEL, 2), np.int8),
            key_scales=np.zeros((c.layers, lanes, c.kv_heads, slots), np.float32),
            values=np.zeros((c.layers, lanes, c.kv_heads, dims, slots // 2, PANEL, 2), np.int8),
            value_scales=np.zeros((c.layers, lanes, c.kv_heads, slots), np.float32),
        )
        heads, threads = c.heads * c.head_size, team.size
        products = max(group, _QUERIES)
        self._work = Work(
            x=np.zeros((rows, c.width), np.float32),
            normed=np.zeros((rows, max(c.width, 2 * c.head_size)), np.float32),
            cosine=np.zeros((rows, 2, c.head_size // 2), np.float32),
            sine=np.zeros((rows, 2, c.head_size // 2), np.float32),
            narrow=np.zeros((rows, c.width + c.width % 2), np.int16),
            attended=np.zeros((rows, heads), np.float32),
            attended_quantised=np.zeros((rows, heads), np.int16),
            wide=np.zeros((rows, c.feed_forward + c.feed_forward % 2), np.int16),
            scales=np.zeros(rows, np.float32),
            qkv=np.zeros((rows, heads + 2 * c.kv_heads * c.head_size), np.float32),
            gate_up=np.zeros((rows, 2 * c.feed_forward), np.float32),
            queries=np.zeros((rows, 2, c.heads, c.head_size), np.int16),
            query_scales=np.zeros((rows, 2, c.heads), np.float32),
            thread_widened=np.zeros((threads, max(CHUNK * PANEL, c.head_size)), np.int16),
            thread_sums=np.zeros((threads, max(rows, 4) * 4 * PANEL), np.int32),
            thread_totals=np.zeros((threads, max(rows, 4) * 4 * PANEL), np.float32),
            thread_queries=np.zeros((threads, 2, products * c.head_size), np.int16),
            thread_scores=np.zeros((threads, products * slots), np.int32),
            thread_weights=np.zeros((threads, products * slots), np.int16),
            thread_column=np.zeros((threads, 3, slots), np.float32),
            thread_products=np.zeros((threads, products * dims * PANEL), np.int32),
            thread_exact=np.zeros((threads, products * dims * PANEL), np.int64),
            thread_factors=np.zeros((threads, products), np.float32),
        )
        leaves = llama.weights.leaves.size
        self.counts = np.zeros((0, leaves + 1), np.uint64)
        self._logits = np.zeros((0, leaves), np.float32)

    def forward(self, tokens: np.ndarray) -> None:
        """Feed tokens int64 [lanes, n] (the first lanes of the session): n positions of each."""
        lanes, n = tokens.shape
        first = self.positions[:lanes]
        at = (first[:, None] + np.arange(n)).ravel()
        rows = np.arange(lanes)[:, None] * n + np.arange(0, n, self._queries)
        counts = np.broadcast_to(np.minimum(self._queries, n - np.arange(0, n, self._queries)), rows.shape)
        tasks = np.stack([rows.ravel(), counts.ravel()], axis=1)
        lane = np.repeat(np.arange(lanes), n)
        flat, network, team = tokens.ravel(), self._llama.network, self._team

        def part(rank: int, barrier: np.ndarray) -> None:
            forward(network, self._cache, self._work, flat, lane, at, tasks, barrier, rank, team.size)

        team.run(part)
        self.positions[:lanes] += n

    def count(self, rows: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """Cumulative frequencies uint64 [R, leaves + 1] of the given rows of the last `forward`.

        bias: float32 [leaves], added to the logits.
        """
        if self.counts.shape[0] < rows.size:
            self.counts = np.zeros((rows.size, self.counts.shape[1]), np.uint64)
            self._logits = np.zeros((rows.size, self._logits.shape[1]), np.float32)
        states, scales = self._work.narrow[rows], self._work.scales[rows]
        counts, logits, work, team = self.counts[: rows.size], self._logits[: rows.size], self._work, self._team

        def part(rank: int, barrier: np.ndarray) -> None:
            count(
                *(self._llama.network, states, scales, bias, logits, counts),
                *(work.thread_widened, work.thread_sums, work.thread_totals, barrier, rank, team.size),
            )

        team.run(part)
        return counts
