"""The state-space model in plain numpy, float64: the definition that ssm.py and ssm_training.py are tested against."""

import numpy as np

from squeeze.codecs.bitmodels.ssm import EPSILON, RANK, TAPS, Parameters


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _normalise(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return gain * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)


def _convolve(x: np.ndarray, taps: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """x float [T, E], taps [TAPS, E] -> [T, E]: each output from this input and those before it."""
    padded = np.concatenate([np.zeros((TAPS - 1, x.shape[1])), x])
    return bias + sum(taps[k] * padded[TAPS - 1 - k : len(padded) - k] for k in range(TAPS))


def _scan(x: np.ndarray, delta: np.ndarray, decay: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """h = e^(delta A) h + delta B x, y = C h; x and delta [T, E], decay [N, E], b and c [T, N] -> [T, E]."""
    h, out = np.zeros_like(decay), []
    for t in range(len(x)):
        h = np.exp(delta[t] * decay) * h + b[t][:, None] * (delta[t] * x[t])
        out.append(c[t] @ h)
    return np.array(out)


def log_probabilities(p: Parameters, tokens: np.ndarray) -> np.ndarray:
    """tokens int [T] -> natural logarithms [T, 256] of what the next byte may be, after each of them."""
    layers, inner, states = p.norm.shape[0], p.taps_bias.shape[1], p.decay.shape[1]
    residual = p.embed[tokens]
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
    logits = _normalise(residual, p.last_norm) @ p.head + p.head_bias
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def cost(p: Parameters, tokens: np.ndarray, targets: np.ndarray) -> float:
    """Mean cost in nats of the targets int [T]."""
    return -float(log_probabilities(p, tokens)[np.arange(len(tokens)), targets].mean())
