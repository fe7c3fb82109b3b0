"""A small pretrained recurrent network over bytes, with a wider part over words; levels 5 and 6 mix its predictions.

Blocks have the order of Griffin (De et al. 2024, arXiv:2402.19427): a recurrence and a feed-forward network, each after
an RMS norm and added to the residual stream. The recurrence is h = a h + (1 - a) v, elementwise, where a and v depend
on the latest inputs (as in minGRU, Feng et al. 2024, arXiv:2410.01201). Wider blocks run once a word, at its first
separating byte, and their output is added to every byte until the next (SpaceByte, Slagle 2024, arXiv:2404.14408). The
last byte and hashes of the last two, three and four bytes have embeddings (Pagnoni et al. 2024, arXiv:2412.09871).

Matrix products are exact integer sums, every other operation is elementwise, so all machines compute the same bits.
tests/references/recurrent_network.py defines the network in plain numpy.
"""

import numpy as np

from squeeze.codecs.recurrent.weights import GRAMS
from squeeze.numerics import exact, nibbles, quads, tiles
from squeeze.numerics.bitmodels import frequencies
from squeeze.numerics.exact import exp_negative, maximum, sigmoid
from squeeze.numerics.jit import inline, part

EPSILON = np.float32(1.1920929e-07)  # epsilon of RMS norms, torch's for float32
ONE = np.float32(1.0)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of multiplicative hashes: 2^64 divided by the golden ratio


@inline
def _sums_by_fours(matrices, block, s, inputs):
    """Compute a matrix product in int8 dot products of four (VNNI)."""
    total = quads.split(s.quantised[:inputs], s.high, s.low)
    outputs = matrices.scales.shape[1]
    quads.multiply(s.high, s.low, total, matrices.panels[block], matrices.bits, outputs, inputs, s.sums)


@inline
def _sums_by_pairs(matrices, block, s, inputs):
    """Compute a matrix product in int16 multiply-adds of two (AVX2)."""
    panels, outputs = matrices.panels[block], matrices.scales.shape[1]
    if matrices.bits == 4:
        nibbles.multiply(s.quantised, panels, outputs, inputs, s.sums)
    else:
        tiles.multiply(s.quantised, panels, outputs, inputs, s.sums)


_sums = _sums_by_fours if quads.AVAILABLE else _sums_by_pairs


@part
def _multiply(vector, inverse, matrices, block, out, add, s):
    """Compute out = (vector * inverse) @ matrix of a block, or out += that if `add`."""
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
    """Run one step of the gated linear recurrence, and write its gated output to `inner`."""
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
    """Run a stack of blocks, each of which adds to the residual stream x, float32 [width]."""
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
    """Set x to the embedding of a byte plus those of the last two, three and four bytes."""
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
    """Feed one byte, and write frequencies of the next byte to the tree `counts`."""
    w, s = m.weights, m.scratch
    x = s.x
    _embed(m, byte, x)
    _run(w.before, m.before, x, s)
    separates = w.separates[byte]
    if separates and not m.state.separated and w.words.keeping.shape[0]:
        _multiply(x, ONE, w.up, 0, s.wide, False, s)
        _run(w.words, m.words, s.wide, s)
        _multiply(s.wide, ONE, w.down, 0, m.word_output, False, s)
    m.state.separated = separates
    for i in range(x.size):
        x[i] += m.word_output[i]
    _run(w.after, m.after, x, s)
    _multiply(x, exact.rms_inverse(x, EPSILON), w.head, 0, m.logits, False, s)
    top = maximum(m.logits)
    for i in range(m.logits.size):
        m.logits[i] = exp_negative(m.logits[i] - top)
    frequencies.count(m.logits, m.counts)
