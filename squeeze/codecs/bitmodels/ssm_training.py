"""Training of the state-space model: backpropagation through one chunk, and Adam.

ssm_reference.py has the same in plain numpy. Sums have the fixed orders of
vectors.py, and every loop runs over what is not summed.
"""

import numpy as np

from squeeze.codecs.bitmodels.ssm import ONE
from squeeze.codecs.bitmodels.ssm_arrays import BYTES, GRAMS, GUESSES, RANK, TAPS
from squeeze.numerics import vectors
from squeeze.numerics.exact import exp_negative, sigmoid
from squeeze.numerics.jit import inline, kernel, part


@inline
def _clear(target):
    for i in range(target.size):
        target[i] = np.float32(0)


@inline
def _normalise_back(x, inverse, gain, slope, out, gain_slope):
    """out += the gradient of x; gain_slope += that of the gain."""
    for i in range(x.size):
        gain_slope[i] += slope[i] * x[i] * inverse
        slope[i] = slope[i] * gain[i]
    inner = vectors.dot(slope, 0, x, 0, x.size) * (inverse * inverse / np.float32(x.size))
    for i in range(x.size):
        out[i] += inverse * (slope[i] - inner * x[i])


@inline
def _gate_backward(p, g, w, layer, stream, scanned, active, projected, d_projected):
    """From the gradient after a block to those of its gates, and of what the scan gave (`w.wide[1]`)."""
    e, d = active.size, p.norm.shape[1]
    d_gated, d_scanned, opened = w.wide[0], w.wide[1], w.wide[4]
    for i in range(e):
        d_gated[i] = vectors.dot(p.out[layer, i], 0, stream, 0, d)
    for i in range(e):  # one array a loop is written to: with more the compiler does not see that they are apart
        opened[i] = sigmoid(projected[e + i])
    for i in range(e):
        d_scanned[i] = d_gated[i] * projected[e + i] * opened[i]
    for i in range(e):
        s = opened[i]
        d_projected[e + i] = d_gated[i] * scanned[i] * (s + projected[e + i] * s * (ONE - s))
    for i in range(e):
        g.skip[layer, i] += d_scanned[i] * active[i]


@inline
def _scan_backward(p, g, w, layer, befores, afters, chosen, delta, active):
    """From the gradient of what the scan gave to those of its input (`w.wide[2]`), step (3), B and C (`w.narrow`)."""
    e, states = active.size, p.decay.shape[1]
    d_scanned, d_active, d_delta, product = w.wide[1], w.wide[2], w.wide[3], w.wide[4]
    for i in range(e):
        d_active[i] = d_scanned[i] * p.skip[layer, i]
    _clear(d_delta)
    for k in range(states):
        before, after = befores[k], afters[k]
        decay, carried, d_decay = p.decay[layer, k], w.carried[k], g.decay[layer, k]
        b, c = chosen[RANK + k], chosen[RANK + states + k]
        w.narrow[RANK + states + k] = vectors.dot(d_scanned, 0, after, 0, e)
        for i in range(e):
            slope = carried[i] + d_scanned[i] * c
            keep = exp_negative(min(delta[i] * decay[i], np.float32(0)))
            through = slope * keep * before[i]
            d_decay[i] += through * delta[i]
            d_delta[i] += through * decay[i] + slope * b * active[i]
            d_active[i] += slope * delta[i] * b
            product[i] = slope * delta[i]
            carried[i] = slope * keep
        w.narrow[RANK + k] = vectors.dot(product, 0, active, 0, e)


@inline
def _selection_backward(p, g, w, layer, raw, chosen, active):
    """From the gradients of step, B and C to that of what chose them, added to `w.wide[2]`."""
    e, n2 = active.size, p.select.shape[2]
    d_active, d_delta = w.wide[2], w.wide[3]
    for i in range(e):
        d_delta[i] *= sigmoid(raw[i])
    for i in range(e):
        g.step_bias[layer, i] += d_delta[i]
    for i in range(RANK):
        w.narrow[i] = vectors.dot(p.step[layer, i], 0, d_delta, 0, e)
        vectors.add_scaled(g.step[layer, i], 0, chosen[i], d_delta, 0, e)
    for i in range(e):
        d_active[i] += vectors.dot(p.select[layer, i], 0, w.narrow, 0, n2)
        vectors.add_scaled(g.select[layer, i], 0, active[i], w.narrow, 0, n2)


@inline
def _convolution_backward(p, g, w, layer, projected, mixed, t):
    """From the gradient after the convolution and its SiLU (`w.wide[2]`) to those of its inputs (`w.block`)."""
    e = mixed.size
    d_active, d_mixed = w.wide[2], w.wide[5]
    for i in range(e):
        s = sigmoid(mixed[i])
        d_mixed[i] = d_active[i] * (s + mixed[i] * s * (ONE - s))
    for i in range(e):
        g.taps_bias[layer, i] += d_mixed[i]
    for k in range(TAPS):
        before, d_before = projected[t + TAPS - 1 - k], w.block[t + TAPS - 1 - k]
        tap, d_tap = p.taps[layer, k], g.taps[layer, k]
        for i in range(e):
            d_tap[i] += d_mixed[i] * before[i]
            d_before[i] += d_mixed[i] * tap[i]


@part
def _block_backward(p, g, a, w, bank, layer):
    """From the gradient after a block (`w.stream`) to the one before it; adds those of its parameters to `g`."""
    e, chunk = p.taps_bias.shape[1], a.tokens.shape[1]
    d, states = p.norm.shape[1], p.decay.shape[1]
    for k in range(w.block.shape[0]):
        _clear(w.block[k])
    for k in range(states):
        _clear(w.carried[k])
    projected, states_of = a.projected[bank, layer], a.states[bank, layer]
    for t in range(chunk - 1, -1, -1):
        stream, chosen, active = w.stream[t], a.chosen[bank, layer, t], a.active[bank, layer, t]
        current, d_projected = projected[t + TAPS - 1], w.block[t + TAPS - 1]
        _gate_backward(p, g, w, layer, stream, a.scanned[bank, layer, t], active, current, d_projected)
        _scan_backward(p, g, w, layer, states_of[t], states_of[t + 1], chosen, a.delta[bank, layer, t], active)
        _selection_backward(p, g, w, layer, a.raw_step[bank, layer, t], chosen, active)
        _convolution_backward(p, g, w, layer, projected, a.mixed[bank, layer, t], t)
        for i in range(d):
            w.thin[i] = vectors.dot(p.into[layer, i], 0, d_projected, 0, 2 * e)
        gated = a.gated[bank, layer, t]
        for i in range(e):
            vectors.add_scaled(g.out[layer, i], 0, gated[i], stream, 0, d)
        _normalise_back(
            a.residual[bank, layer, t], a.inverse[bank, layer, t], p.norm[layer], w.thin, stream, g.norm[layer]
        )
    normed = a.normed[bank, layer]
    for i in range(d):
        vectors.accumulate(g.into[layer, i], 0, w.block, (TAPS - 1) * 2 * e, 2 * e, normed, i, d, chunk, 2 * e)


@part
def gradients(m, bank):
    """Fill the trainer's gradient with that of the mean cost of a bank's chunk, in nats."""
    a, w = m.acts, m.trainer
    p, g = w.newest, w.slopes
    for i in range(w.first.size):
        w.gradient[i] = np.float32(0)
    layers, d, chunk = p.norm.shape[0], p.norm.shape[1], a.tokens.shape[1]
    scale = ONE / np.float32(chunk)
    for t in range(chunk):
        slope = a.logits[bank, t]
        slope[a.targets[bank, t]] -= ONE
        for i in range(BYTES):
            slope[i] *= scale
            g.head_bias[i] += slope[i]
        for i in range(d):
            w.thin[i] = vectors.dot(p.head[i], 0, slope, 0, BYTES)
            w.stream[t, i] = np.float32(0)
        _normalise_back(
            a.residual[bank, layers, t], a.inverse[bank, layers, t], p.last_norm, w.thin, w.stream[t], g.last_norm
        )
    normed, slopes = a.normed[bank, layers], a.logits[bank]
    for i in range(d):
        vectors.accumulate(g.head[i], 0, slopes, 0, BYTES, normed, i, d, chunk, BYTES)
    for layer in range(layers - 1, -1, -1):
        _block_backward(p, g, a, w, bank, layer)
    for t in range(chunk):
        vectors.add_scaled(g.embed[a.tokens[bank, t]], 0, ONE, w.stream[t], 0, d)
        rows = a.rows[bank, t]
        for k in range(GRAMS + GUESSES):
            if k < GRAMS:
                vectors.add_scaled(g.grams[rows[k]], 0, ONE, w.stream[t], 0, d)
            else:
                vectors.add_scaled(g.guesses[rows[k]], 0, ONE, a.logits[bank, t], 0, BYTES)


_KEEP_FIRST, _KEEP_SECOND = np.float32(0.8), np.float32(0.999)
_GRAM_RATE, _GRAM_LEAST = np.float32(15), np.float32(1e-12)  # of AdaGrad, in the rate of Adam; added to its sums
_GUESS_RATE, _GUESS_LEAST = np.float32(0.1), np.float32(4e-5)


@part
def adam(w, rate, steps):
    """One step of Adam (Kingma and Ba, 2014)."""
    power1, power2 = ONE, ONE
    for _ in range(min(steps + 1, 2000)):
        power1 *= _KEEP_FIRST
        power2 *= _KEEP_SECOND
    c1, c2 = ONE / (ONE - power1), ONE / (ONE - power2)
    for i in range(w.first.size):
        slope = w.gradient[i]
        first = w.first[i] * _KEEP_FIRST + slope * (ONE - _KEEP_FIRST)
        second = w.second[i] * _KEEP_SECOND + slope * slope * (ONE - _KEEP_SECOND)
        w.first[i] = first
        w.second[i] = second
        w.weights[i] -= rate * (first * c1) / (np.sqrt(second * c2) + np.float32(1e-6))


@inline
def _adagrad(weights, slopes, squares, rate, least):
    for i in range(weights.size):
        squares[i] += slopes[i] * slopes[i]
        weights[i] -= rate * slopes[i] / np.sqrt(squares[i] + least)
        slopes[i] = np.float32(0)


@part
def adagrad(w, rate, rows):
    """One step of AdaGrad (Duchi et al., 2011) for the rows of a chunk's n-grams, int64 [T, GRAMS + GUESSES]."""
    d = w.newest.grams.shape[1]
    grams = w.first.size
    guesses = grams + w.newest.grams.size
    for k in range(rows.shape[0]):
        for j in range(GRAMS + GUESSES):
            if j < GRAMS:
                begin, size, step, least = grams + rows[k, j] * d, d, rate * _GRAM_RATE, _GRAM_LEAST
            else:
                begin, size, step, least = guesses + rows[k, j] * BYTES, BYTES, _GUESS_RATE, _GUESS_LEAST
            end = begin + size
            _adagrad(w.weights[begin:end], w.gradient[begin:end], w.second[begin:end], step, least)


@kernel
def train(m, bank):
    """Learn from a complete chunk: one step of the newest weights."""
    gradients(m, bank)
    steps = m.state.steps
    rate = m.state.last_rate + (m.state.rate - m.state.last_rate) / (ONE + np.float32(steps) / m.state.halving)
    adam(m.trainer, rate, steps)
    adagrad(m.trainer, rate, m.acts.rows[bank])
    m.state.steps = steps + 1
