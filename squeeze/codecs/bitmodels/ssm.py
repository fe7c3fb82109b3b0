"""A selective state-space model over bytes, trained on what it has just predicted.

The network is Mamba's (Gu and Dao, "Mamba: linear-time sequence modeling with
selective state spaces", 2023) at a small size: an embedding, blocks of RMSNorm,
projection, causal depthwise convolution, selective scan, gate and projection
with a residual connection, a last RMSNorm, and a softmax over bytes.
ssm_reference.py defines it in plain numpy.

It is fed one byte at a time (`predict`), and keeps the activations of the
latest `chunk` bytes. `train` is backpropagation through one such chunk, and a
step of Adam, on a second copy of the weights: while the next chunk is being
predicted, another thread may train on the one before. `refresh` then takes
over the trained weights. Who calls what when is always the same, so the
result does not depend on threads. Sums have the fixed orders of vectors.py.
"""

import numpy as np

from squeeze.codecs.bitmodels import frequencies
from squeeze.codecs.bitmodels.contexts import mix_hash
from squeeze.codecs.bitmodels.ssm_arrays import BYTES, GRAM_ROWS, GRAMS, GUESS_ROWS, GUESSES, RANK, TAPS
from squeeze.numerics import vectors
from squeeze.numerics.exact import exp_negative, maximum, sigmoid
from squeeze.numerics.jit import inline, part

EPSILON = np.float32(1e-5)
ONE = np.float32(1.0)


@inline
def _normalise(x, gain, out):
    """out = gain * x / rms(x); returns 1 / rms(x)."""
    total = vectors.dot(x, 0, x, 0, x.size)
    inverse = ONE / np.sqrt(total / np.float32(x.size) + EPSILON)
    for i in range(x.size):
        out[i] = x[i] * inverse * gain[i]
    return inverse


@inline
def _softplus(x):
    """ln(1 + e^x) within 1e-5, by a polynomial of Hastings (Abramowitz and Stegun, 4.1.43)."""
    e = exp_negative(-abs(x))
    y = e * (
        np.float32(0.99949556)
        + e
        * (
            np.float32(-0.49190896)
            + e * (np.float32(0.28947478) + e * (np.float32(-0.13606275) + e * np.float32(0.03215845)))
        )
    )
    return y + max(x, np.float32(0))


@part
def _block_forward(p, a, bank, layer, t):
    e, n2 = p.taps_bias.shape[1], p.select.shape[2]
    d, states = p.norm.shape[1], (p.select.shape[2] - RANK) // 2
    normed, projected = a.normed[bank, layer, t], a.projected[bank, layer, t + TAPS - 1]
    a.inverse[bank, layer, t] = _normalise(a.residual[bank, layer, t], p.norm[layer], normed)
    for i in range(2 * e):
        projected[i] = np.float32(0)
    vectors.accumulate(projected, 0, p.into[layer], 0, 2 * e, normed, 0, 1, d, 2 * e)
    mixed, active = a.mixed[bank, layer, t], a.active[bank, layer, t]
    for i in range(e):
        mixed[i] = p.taps_bias[layer, i]
    for k in range(TAPS):
        before, tap = a.projected[bank, layer, t + TAPS - 1 - k], p.taps[layer, k]
        for i in range(e):
            mixed[i] += tap[i] * before[i]
    for i in range(e):
        active[i] = mixed[i] * sigmoid(mixed[i])
    chosen = a.chosen[bank, layer, t]
    for i in range(n2):
        chosen[i] = np.float32(0)
    vectors.accumulate(chosen, 0, p.select[layer], 0, n2, active, 0, 1, e, n2)
    raw, delta = a.raw_step[bank, layer, t], a.delta[bank, layer, t]
    for i in range(e):
        raw[i] = p.step_bias[layer, i]
    vectors.accumulate(raw, 0, p.step[layer], 0, e, chosen, 0, 1, RANK, e)
    for i in range(e):
        delta[i] = _softplus(raw[i])
    scanned, gated = a.scanned[bank, layer, t], a.gated[bank, layer, t]
    for i in range(e):
        scanned[i] = p.skip[layer, i] * active[i]
    for k in range(states):
        before, after, decay = a.states[bank, layer, t, k], a.states[bank, layer, t + 1, k], p.decay[layer, k]
        b, c = chosen[RANK + k], chosen[RANK + states + k]
        for i in range(e):
            keep = exp_negative(min(delta[i] * decay[i], np.float32(0)))
            after[i] = keep * before[i] + delta[i] * b * active[i]
            scanned[i] += c * after[i]
    for i in range(e):
        gate = projected[e + i]
        gated[i] = scanned[i] * gate * sigmoid(gate)
    source, target = a.residual[bank, layer, t], a.residual[bank, layer + 1, t]
    for i in range(d):
        target[i] = source[i]
    vectors.accumulate(target, 0, p.out[layer], 0, d, gated, 0, 1, e, d)


@part
def forward(p, a, bank, t, past):
    """Feed the last of three bytes `past` as byte `t` of a bank: fills its activations, logits the last."""
    layers, d = p.norm.shape
    byte = past & 255
    a.tokens[bank, t] = byte
    for i in range(d):
        a.residual[bank, 0, t, i] = p.embed[byte, i]
    rows = a.rows[bank, t]
    for k in range(GRAMS):
        gram = past & ((1 << 8 * (k + 2)) - 1)
        rows[k] = k * GRAM_ROWS + np.int64(mix_hash(gram, np.uint64(k)) >> np.uint64(32)) % GRAM_ROWS
        vectors.add_scaled(a.residual[bank, 0, t], 0, ONE, p.grams[rows[k]], 0, d)
    rows[GRAMS] = byte
    rows[GRAMS + 1] = BYTES + np.int64(mix_hash(past & 0xFFFF, np.uint64(0)) >> np.uint64(32)) % GUESS_ROWS
    for layer in range(layers):
        _block_forward(p, a, bank, layer, t)
    normed, logits = a.normed[bank, layers, t], a.logits[bank, t]
    a.inverse[bank, layers, t] = _normalise(a.residual[bank, layers, t], p.last_norm, normed)
    guesses1, guesses2 = p.guesses[rows[GRAMS]], p.guesses[rows[GRAMS + 1]]
    for i in range(BYTES):
        logits[i] = p.head_bias[i] + guesses1[i] + guesses2[i]
    vectors.accumulate(logits, 0, p.head, 0, BYTES, normed, 0, 1, d, BYTES)
    top = maximum(logits)
    for i in range(BYTES):
        logits[i] = exp_negative(logits[i] - top)


@part
def predict(m, byte):
    """Feed one byte; `probabilities` and the tree `counts` then tell what the next one may be."""
    m.state.past = ((m.state.past << 8) | byte) & 0xFFFFFF
    logits = m.acts.logits[m.state.bank, m.state.byte]
    forward(m.parameters, m.acts, m.state.bank, m.state.byte, m.state.past)
    frequencies.count(logits, m.counts)
    scale = np.float32(1 << frequencies.BITS) / np.float32(m.counts[1])
    for i in range(BYTES):
        logits[i] *= scale
        m.probabilities[i] = logits[i]


@inline
def update(m, byte):
    """Take what the byte was; returns whether the chunk is complete, so that `next_chunk` is due."""
    if m.state.fed == 0:  # nothing was fed yet
        m.state.fed = 1
        return False
    m.acts.targets[m.state.bank, m.state.byte] = byte
    m.state.byte += 1
    return m.state.byte == m.acts.tokens.shape[1]


@inline
def _copy(source, target):
    for i in range(source.size):
        target[i] = source[i]


@part
def next_chunk(m):
    """Begin another chunk in the other bank."""
    a, bank = m.acts, m.state.bank
    other, t = 1 - bank, m.acts.tokens.shape[1]
    for layer in range(a.mixed.shape[1]):
        for k in range(a.states.shape[3]):
            _copy(a.states[bank, layer, t, k], a.states[other, layer, 0, k])
        for k in range(TAPS - 1):
            _copy(a.projected[bank, layer, t + k], a.projected[other, layer, k])
    m.state.bank = other
    m.state.byte = 0


@part
def refresh(m):
    """Predict with the newest weights, before `next_chunk`: the other bank's chunk is what they were trained on."""
    for i in range(m.trainer.first.size):
        m.weights[i] = m.trainer.weights[i]
    for k in range(m.acts.rows.shape[1]):
        rows = m.acts.rows[1 - m.state.bank, k]
        for j in range(GRAMS):
            _copy(m.trainer.newest.grams[rows[j]], m.parameters.grams[rows[j]])
        for j in range(GRAMS, GRAMS + GUESSES):
            _copy(m.trainer.newest.guesses[rows[j]], m.parameters.guesses[rows[j]])
