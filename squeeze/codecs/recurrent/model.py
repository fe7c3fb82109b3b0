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
from squeeze.numerics import exact, int8
from squeeze.numerics.bitmodels import frequencies
from squeeze.numerics.exact import exp_negative, maximum, sigmoid
from squeeze.numerics.jit import inline, part

EPSILON = np.float32(1.1920929e-07)  # epsilon of RMS norms, torch's for float32
ONE = np.float32(1.0)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of multiplicative hashes: 2^64 divided by the golden ratio


@part
def _multiply(x, normalised, matrices, block, out, add, s):
    """Compute out = x @ matrix of a block for every row, or out += that if `add`.

    Args:
        x: float32 [rows, inputs].
        normalised: whether each row is divided by its root mean square first.
        matrices: one matrix of every block.
        block: which of them.
        out: float32 [rows, outputs].
        add: whether to add to `out`.
        s: buffers.
    """
    rows, inputs = x.shape
    activations = s.activations[: rows * inputs].reshape(rows, inputs)
    for row in range(rows):
        scale, total = exact.quantise_summed(x[row], int8.TOP, activations[row])
        s.sums[row] = total
        s.scales[row] = scale * (exact.rms_inverse(x[row], EPSILON) if normalised else ONE)
    panels = matrices.panels[block]
    last = panels.shape[0]
    if matrices.bits == 4:
        int8.matmul_halves(activations, s.sums, s.scales, panels, matrices.scales[block], 0, last, add, out, s.found)
    else:
        int8.matmul(activations, s.sums, s.scales, panels, matrices.scales[block], 0, last, add, out, s.found)


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
    """Run a stack of blocks, each of which adds to the residual stream x, float32 [rows, width], a row a step."""
    rows, width = x.shape
    hidden = stack.gate_up.scales.shape[1] // 2
    into = s.projected[: rows * 3 * width].reshape(rows, 3 * width)
    both = s.projected[: rows * 2 * hidden].reshape(rows, 2 * hidden)
    mixed, inner = s.inner[: rows * width].reshape(rows, width), s.inner[: rows * hidden].reshape(rows, hidden)
    for block in range(stack.keeping.shape[0]):
        _multiply(x, True, stack.into, block, into, False, s)
        past, states, taps, keeping = memory.past[block], memory.states[block], stack.taps[block], stack.keeping[block]
        for row in range(rows):
            _recur(into[row], past, taps, keeping, states, mixed[row])
        _multiply(mixed, False, stack.out, block, x, True, s)
        _multiply(x, True, stack.gate_up, block, both, False, s)
        for row in range(rows):
            gate, up = both[row, :hidden], both[row, hidden:]
            for i in range(hidden):
                inner[row, i] = gate[i] * sigmoid(gate[i]) * up[i]
        _multiply(inner, False, stack.down, block, x, True, s)


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


@inline
def _find_ends(m, fed):
    """Note the rows whose byte is the first that separates two words, and return their number."""
    w, ended = m.weights, 0
    for row in range(fed.size):
        separates = w.separates[fed[row]]
        if separates and not m.state.separated and w.words.keeping.shape[0]:
            m.scratch.ended[ended] = row
            ended += 1
        m.state.separated = separates
    return ended


@part
def _add_words(m, x, ended):
    """Run the word stack at the ends of words, and add its latest output to every row."""
    w, s, width = m.weights, m.scratch, x.shape[1]
    if ended:
        wide = w.up.scales.shape[1]
        ends, words = s.ends[: ended * width].reshape(ended, width), s.wide[: ended * wide].reshape(ended, wide)
        for k in range(ended):
            for i in range(width):
                ends[k, i] = x[s.ended[k], i]
        _multiply(ends, False, w.up, 0, words, False, s)
        _run(w.words, m.words, words, s)
        _multiply(words, False, w.down, 0, ends, False, s)
    k = 0
    for row in range(x.shape[0]):
        if k < ended and s.ended[k] == row:
            for i in range(width):
                m.word_output[i] = s.ends[k * width + i]
            k += 1
        for i in range(width):
            x[row, i] += m.word_output[i]


@part
def predict(m, fed):
    """Feed bytes, and write the frequencies of the byte after each to a row of `m.frequencies`.

    Args:
        m: the network.
        fed: uint8 [rows], at most ROWS. Known bytes take less time together than one by one, since each weight is read
            once for all.
    """
    w, s, rows = m.weights, m.scratch, fed.size
    x, logits = s.x[:rows], s.logits[:rows]
    for row in range(rows):
        _embed(m, np.int64(fed[row]), x[row])
    _run(w.before, m.before, x, s)
    _add_words(m, x, _find_ends(m, fed))
    _run(w.after, m.after, x, s)
    _multiply(x, True, w.head, 0, logits, False, s)
    for row in range(rows):
        top = maximum(logits[row])
        for i in range(logits.shape[1]):
            logits[row, i] = exp_negative(logits[row, i] - top)
        frequencies.count(logits[row], m.frequencies[row])
