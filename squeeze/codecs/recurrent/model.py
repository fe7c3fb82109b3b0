"""A small pretrained network over bytes: gated linear recurrences, over bytes and, wider, over words.

Blocks of the order of Griffin (De et al. 2024, arXiv:2402.19427): a recurrence and a feed-forward network, each after
an RMS norm and added to what came in. The recurrence is h = a h + (1 - a) v, elementwise, where a and v follow from
the latest inputs (as in minGRU, Feng et al. 2024, arXiv:2410.01201). Wider blocks run once a word, after its first
separating byte, and add what they say to every byte until the next (SpaceByte, Slagle 2024, arXiv:2404.14408). The
latest byte and, by their hashes, the latest two, three and four have embeddings (Pagnoni et al. 2024,
arXiv:2412.09871). reference.py defines it in plain numpy. Products are exact integers, all else is elementwise.
"""

import numpy as np

from squeeze.codecs.recurrent.weights import GRAMS
from squeeze.numerics import exact, nibbles, quads, tiles
from squeeze.numerics.bitmodels import frequencies
from squeeze.numerics.exact import exp_negative, maximum, sigmoid
from squeeze.numerics.jit import inline, part

EPSILON = np.float32(1.1920929e-07)  # of norms: that of torch for float32
ONE = np.float32(1.0)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of hashes: 2^64 over the golden ratio


@inline
def _sums_by_fours(matrices, block, s, inputs):
    total = quads.split(s.quantised[:inputs], s.high, s.low)
    outputs = matrices.scales.shape[1]
    quads.multiply(s.high, s.low, total, matrices.panels[block], matrices.bits, outputs, inputs, s.sums)


@inline
def _sums_by_pairs(matrices, block, s, inputs):
    panels, outputs = matrices.panels[block], matrices.scales.shape[1]
    if matrices.bits == 4:
        nibbles.multiply(s.quantised, panels, outputs, inputs, s.sums)
    else:
        tiles.multiply(s.quantised, panels, outputs, inputs, s.sums)


_sums = _sums_by_fours if quads.AVAILABLE else _sums_by_pairs


@part
def _multiply(vector, inverse, matrices, block, out, add, s):
    """out = (vector * inverse) @ matrix of a block, or += where `add`."""
    scale = exact.quantise(vector, quads.TOP, s.quantised) * inverse
    scales = matrices.scales[block]
    _sums(matrices, block, s, vector.size)
    if add:
        for i in range(scales.size):
            out[i] += np.float32(s.sums[i]) * scale * scales[i]
    else:
        for i in range(scales.size):
            out[i] = np.float32(s.sums[i]) * scale * scales[i]


@inline
def _recur(projected, past, taps, keeping, states, inner):
    """A step of the recurrence: `inner` becomes what leaves it, gated."""
    width = states.size
    value, forget, gate = projected[:width], projected[width : 2 * width], projected[2 * width : 3 * width]
    for i in range(width):
        mixed = past[0, i] * taps[0, i] + past[1, i] * taps[1, i] + past[2, i] * taps[2, i] + value[i] * taps[3, i]
        past[0, i] = past[1, i]
        past[1, i] = past[2, i]
        past[2, i] = value[i]
        decay = sigmoid(forget[i] + keeping[i])
        state = decay * states[i] + (ONE - decay) * mixed
        states[i] = state
        inner[i] = state * (gate[i] * sigmoid(gate[i]))


@part
def _run(stack, memory, x, s):
    """Blocks in turn: each adds to x, float32 [width]."""
    width, hidden = x.size, stack.gate_up.scales.shape[1] // 2
    projected = s.projected
    for block in range(stack.keeping.shape[0]):
        _multiply(x, exact.rms_inverse(x, EPSILON), stack.into, block, projected, False, s)
        inner = s.inner[:width]
        _recur(projected, memory.past[block], stack.taps[block], stack.keeping[block], memory.states[block], inner)
        _multiply(inner, ONE, stack.out, block, x, True, s)
        _multiply(x, exact.rms_inverse(x, EPSILON), stack.gate_up, block, projected, False, s)
        gate, up, inner = projected[:hidden], projected[hidden : 2 * hidden], s.inner[:hidden]
        for i in range(hidden):
            inner[i] = gate[i] * sigmoid(gate[i]) * up[i]
        _multiply(inner, ONE, stack.down, block, x, True, s)


@inline
def _embed(m, byte, x):
    """x = the embedding of a byte, and of the latest bytes."""
    w = m.weights
    m.state.past = (m.state.past << 8 | byte) & 0xFFFFFFFF
    for i in range(x.size):
        x[i] = w.embedding[byte, i]
    half = x.size // 2
    for k in range(len(GRAMS)):
        gram = np.uint64(m.state.past & ((1 << 8 * GRAMS[k]) - 1))
        row = np.int64((gram * MULTIPLIER) >> np.uint64(40)) & np.int64(w.grams[k].shape[0] - 1)
        scale, embedding = w.gram_scales[k][row], w.grams[k][row]
        for i in range(half):
            both = np.int32(embedding[i])
            x[i] += np.float32(2 * (both & 15) - 15) * scale
            x[half + i] += np.float32(2 * (both >> 4) - 15) * scale


@part
def predict(m, byte):
    """Feed one byte: the tree `counts` then tells what the next one may be."""
    w, s = m.weights, m.scratch
    x = s.x
    _embed(m, byte, x)
    _run(w.before, m.before, x, s)
    separates = w.separates[byte]
    if separates and not m.state.separated and w.words.keeping.shape[0]:
        _multiply(x, ONE, w.up, 0, s.wide, False, s)
        _run(w.words, m.words, s.wide, s)
        _multiply(s.wide, ONE, w.down, 0, m.said, False, s)
    m.state.separated = separates
    for i in range(x.size):
        x[i] += m.said[i]
    _run(w.after, m.after, x, s)
    _multiply(x, exact.rms_inverse(x, EPSILON), w.head, 0, m.logits, False, s)
    top = maximum(m.logits)
    for i in range(m.logits.size):
        m.logits[i] = exp_negative(m.logits[i] - top)
    frequencies.count(m.logits, m.counts)
