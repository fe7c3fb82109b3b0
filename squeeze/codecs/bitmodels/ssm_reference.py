"""The state-space model in plain numpy, float64: the definition that ssm.py and ssm_training.py are tested against."""

import numpy as np

from squeeze.codecs.bitmodels.ssm import EPSILON
from squeeze.codecs.bitmodels.ssm_arrays import BYTES, GRAM_ROWS, GRAMS, GUESS_ROWS, RANK, TAPS, Parameters


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _normalise(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return np.asarray(gain * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON))


def _convolve(x: np.ndarray, taps: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """x float [T, E], taps [TAPS, E] -> [T, E]: each output from this input and those before it."""
    padded = np.concatenate([np.zeros((TAPS - 1, x.shape[1])), x])
    return np.asarray(bias + sum(taps[k] * padded[TAPS - 1 - k : len(padded) - k] for k in range(TAPS)))


def _scan(x: np.ndarray, delta: np.ndarray, decay: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """h = e^(delta A) h + delta B x, y = C h; x and delta [T, E], decay [N, E], b and c [T, N] -> [T, E]."""
    h, out = np.zeros_like(decay), []
    for t in range(len(x)):
        h = np.exp(delta[t] * decay) * h + b[t][:, None] * (delta[t] * x[t])
        out.append(c[t] @ h)
    return np.array(out)


def _hash(a: int, b: int) -> int:
    """contexts.mix_hash, high half."""
    h = (a + b * 0xD6E8FEB86659FD93 + 0x51ED27) * 0x9E3779B97F4A7C15 % (1 << 64)
    return (h ^ (h >> 29)) >> 32


def _gram_rows(tokens: np.ndarray) -> np.ndarray:
    """int64 [T, GRAMS + GUESSES]: of the n-grams that end at each token; zeros stand before the first."""
    past, rows = 0, []
    for token in tokens.tolist():
        past = (past << 8 | token) & 0xFFFFFF
        grams = [k * GRAM_ROWS + _hash(past & (1 << 8 * (k + 2)) - 1, k) % GRAM_ROWS for k in range(GRAMS)]
        rows.append([*grams, token, BYTES + _hash(past & 0xFFFF, 0) % GUESS_ROWS])
    return np.array(rows)


def log_probabilities(p: Parameters, tokens: np.ndarray) -> np.ndarray:
    """tokens int [T] -> natural logarithms [T, 256] of what the next byte may be, after each of them."""
    layers, inner, states = p.norm.shape[0], p.taps_bias.shape[1], p.decay.shape[1]
    rows = _gram_rows(tokens)
    residual = p.embed[tokens] + p.grams[rows[:, :GRAMS]].sum(1)
    for i in range(layers):
        projected = _normalise(residual, p.norm[i]) @ p.into[i]
        mixed = _convolve(projected[:, :inner], p.taps[i], p.taps_bias[i])
        active = mixed * _sigmoid(mixed)
        chosen = active @ p.select[i]
        delta = np.logaddexp(0, chosen[:, :RANK] @ p.step[i] + p.step_bias[i])
        b, c = chosen[:, RANK : RANK + states], chosen[:, RANK + states :]
        scanned = _scan(active, delta, p.decay[i], b, c) + p.skip[i] * active
        gate = projected[:, inner:]
        residual = residual + (scanned * gate * _sigmoid(gate)) @ p.out[i]
    logits = _normalise(residual, p.last_norm) @ p.head + p.head_bias + p.guesses[rows[:, GRAMS:]].sum(1)
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))


def cost(p: Parameters, tokens: np.ndarray, targets: np.ndarray) -> float:
    """Mean cost in nats of the targets int [T]."""
    return -float(log_probabilities(p, tokens)[np.arange(len(tokens)), targets].mean())
