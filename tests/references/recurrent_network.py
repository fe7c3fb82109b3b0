"""The byte network of squeeze/codecs/recurrent in plain numpy, float64: its definition.

It takes the tensors of a file (recurrent/weights.py), and all bytes at once. It was trained without rounding of
activations, and runs with activations of 8 bits.
"""

from collections.abc import Mapping

import numpy as np

from squeeze.codecs.recurrent.model import EPSILON, MULTIPLIER
from squeeze.codecs.recurrent.weights import GRAMS, TAPS, separators

Tensors = Mapping[str, np.ndarray]


def log_probabilities(tensors: Tensors, fed: np.ndarray, rounded: bool = False) -> np.ndarray:
    """Return ln p of each next byte, float64 [T, 256], after uint8 [T] bytes.

    Args:
        tensors: the weights.
        fed: the bytes.
        rounded: whether activations are rounded to 8 bits before each product.
    """
    x = _run(tensors, "before", _embed(tensors, fed), rounded)
    x = _run(tensors, "after", x + _word_output(tensors, fed, x, rounded), rounded)
    logits = _product(tensors, "head", _normalise(x), rounded)
    logits -= logits.max(1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(1, keepdims=True)))


def _matrix(tensors: Tensors, name: str) -> np.ndarray:
    codes = tensors[name].astype(np.int64)
    if tensors[name].dtype == np.uint8:  # two to a byte
        codes = np.concatenate([codes % 16, codes // 16], 1) * 2 - 15
    return np.asarray(codes * tensors[f"{name}.scale"].astype(np.float64)[:, None])


def _product(tensors: Tensors, name: str, x: np.ndarray, rounded: bool) -> np.ndarray:
    if rounded:
        step = np.abs(x).max(1, initial=1e-20, keepdims=True) / 127
        x = np.rint(x / step) * step
    return np.asarray(x @ _matrix(tensors, name).T)


def _embed(tensors: Tensors, fed: np.ndarray) -> np.ndarray:
    x = tensors["embedding"].astype(np.float64)[fed]
    for k, length in enumerate(GRAMS):
        table = _matrix(tensors, f"grams.{k}")
        for t in range(len(fed)):
            gram = sum(int(fed[t - back]) << 8 * back for back in range(min(length, t + 1)))
            x[t] += table[(gram * int(MULTIPLIER) % 2**64 >> 40) % len(table)]
    return np.asarray(x)


def _word_output(tensors: Tensors, fed: np.ndarray, x: np.ndarray, rounded: bool) -> np.ndarray:
    """Return the word stack's output for each byte: that of the last word which ended at it or before."""
    separates = separators()[fed]
    ends = separates & ~np.concatenate([[True], separates[:-1]])
    words = _run(tensors, "words", _product(tensors, "up", x[ends], rounded), rounded)
    words = _product(tensors, "down", words, rounded)
    if "words.0.into" not in tensors:
        words[:] = 0
    return np.asarray(np.concatenate([np.zeros((1, x.shape[1])), words])[np.cumsum(ends)])


def _run(tensors: Tensors, stack: str, x: np.ndarray, rounded: bool) -> np.ndarray:
    """Run the blocks of a stack over [T, width]."""
    block = 0
    while (name := f"{stack}.{block}") + ".into" in tensors:
        value, forget, gate = np.split(_product(tensors, f"{name}.into", _normalise(x), rounded), 3, axis=1)
        states = _scan(value, forget + tensors[f"{name}.keeping"], tensors[f"{name}.taps"])
        x = x + _product(tensors, f"{name}.out", states * _silu(gate), rounded)
        inner, up = np.split(_product(tensors, f"{name}.gate_up", _normalise(x), rounded), 2, axis=1)
        x = x + _product(tensors, f"{name}.down", _silu(inner) * up, rounded)
        block += 1
    return np.asarray(x)


def _scan(value: np.ndarray, forget: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Run h = a h + (1 - a) v: a from `forget`, v by a causal convolution of `value`."""
    padded = np.concatenate([np.zeros((TAPS - 1, value.shape[1])), value])
    h, out = np.zeros(value.shape[1]), np.zeros_like(value)
    for t in range(len(value)):
        decay = _sigmoid(forget[t])
        h = decay * h + (1 - decay) * (padded[t : t + TAPS] * taps).sum(0)
        out[t] = h
    return out


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * _sigmoid(x))


def _normalise(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).mean(1, keepdims=True) + EPSILON))
