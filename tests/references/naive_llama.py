"""A Llama-family network in plain numpy, float64, as a reference for the compiled one.

Weights are rounded to 8 bits as squeeze rounds them, and if requested also keys, values and activations. Everything
else is float64.
"""

import numpy as np

from squeeze.lm.weights import Matrix, Weights
from squeeze.numerics import int8

BLOCK = 16


def floats(matrix: Matrix) -> np.ndarray:
    return int8.unpack(matrix.values, matrix.outputs, matrix.inputs) * matrix.scales[:, None].astype(np.float64)


def rotated(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Multiply each block of an axis by a Hadamard matrix. Blocks are the largest power of two that fits, up to 512."""
    size = x.shape[axis]
    block, matrix = min(size & -size, 512), np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = np.moveaxis(x, axis, -1)
    return np.moveaxis((x.reshape(*x.shape[:-1], -1, block) @ matrix / block**0.5).reshape(x.shape), -1, axis)


def log_probabilities(weights: Weights, tokens: np.ndarray, window: int | None = None, rounded=True) -> np.ndarray:
    """Return log probabilities [n, leaves] after each token.

    Args:
        weights: weights of the model
        tokens: tokens [n]
        window: positions of the window, None for all
        rounded: whether keys, values and activations are rounded too
    """
    c = weights.config
    eight = _eight_bits if rounded else np.asarray
    x = weights.embedding[tokens] * weights.embedding_scales[tokens, None].astype(np.float64)
    for layer in weights.layers:
        normed = eight(_norm(x, None, c.epsilon))
        qkv = normed @ floats(layer.qkv).T + (0 if layer.qkv_bias is None else layer.qkv_bias)
        queries, keys, values = np.split(
            qkv.reshape(len(tokens), -1, c.head_size), [c.heads, c.heads + c.kv_heads], axis=1
        )
        if layer.query_norm is not None:
            queries, keys = _norm(queries, layer.query_norm, c.epsilon), _norm(keys, layer.key_norm, c.epsilon)
        attended = _attended(weights, queries, keys, values, window, rounded).reshape(len(tokens), -1)
        x = x + eight(attended) @ floats(layer.output).T + (0 if layer.output_bias is None else layer.output_bias)
        gate, up = np.split(eight(_norm(x, None, c.epsilon)) @ floats(layer.gate_up).T, 2, axis=1)
        gated = gate / (1 + np.exp(-gate)) * up
        x = x + eight(rotated(gated)) @ floats(layer.down).T
    return log_softmax(eight(_norm(x, None, c.epsilon)) @ floats(weights.head).T)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def _norm(x: np.ndarray, weight: np.ndarray | None, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * (1 if weight is None else weight)


def _rotated(weights: Weights, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    c = weights.config
    angles = positions[:, None, None] * np.array(c.frequencies)
    cosine, sine = np.cos(angles) * c.attention_factor, np.sin(angles) * c.attention_factor
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cosine - b * sine, a * sine + b * cosine], axis=-1)


def _eight_bits(x: np.ndarray) -> np.ndarray:
    scale = np.maximum(np.abs(x).max(axis=-1, keepdims=True), 1e-20) / 127
    return np.rint(x / scale) * scale


def _attended(weights: Weights, queries, keys, values, window, rounded) -> np.ndarray:
    c, positions = weights.config, np.arange(len(queries))
    window = len(queries) + BLOCK if window is None else window
    keys = _rotated(weights, keys, positions)
    if rounded:
        keys, values = _eight_bits(keys), _eight_bits(values)
    keys, values = (np.repeat(part, c.heads // c.kv_heads, axis=1) for part in (keys, values))
    near = np.einsum("qhd,khd->hqk", _rotated(weights, queries, positions), keys)
    far = np.einsum("qhd,khd->hqk", _rotated(weights, queries, np.minimum(positions, window + BLOCK - 1)), keys)
    scores = np.where(positions < BLOCK, far, near) / np.sqrt(c.head_size)
    behind = positions[:, None] // BLOCK - positions // BLOCK  # blocks
    seen = (behind >= 0) & (positions <= positions[:, None]) & ((positions < BLOCK) | (behind < window // BLOCK))
    scores = np.where(seen, scores, -np.inf)
    shares = np.exp(log_softmax(scores))
    return np.einsum("hqk,khd->qhd", shares, values)
