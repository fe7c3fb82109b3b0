"""Draw integers within a range, at random or at its ends."""

import numpy as np


def integers(shape, top: int, seed: int, kind: str, dtype: type) -> np.ndarray:
    """Return integers within ±top.

    Args:
        shape: shape of the array
        top: largest magnitude
        seed: seed of the choice
        kind: whether all integers or only the ends occur
        dtype: dtype of the array
    """
    generator = np.random.default_rng(seed)
    if kind == "any":
        return generator.integers(-top, top + 1, shape).astype(dtype)
    if kind == "ends":
        return (generator.integers(0, 2, shape) * 2 * top - top).astype(dtype)
    return np.full(shape, top if kind == "tops" else -top, dtype)


def codes(shape, bits, seed):
    """Return weights as numerics/int8.py takes them, int8: 8-bit integers, or odd ones of 4 bits.

    Args:
        shape: shape of the array
        bits: 8 or 4
        seed: seed of the choice
    """
    if bits == 8:
        return integers(shape, 127, seed, "any", np.int8)
    return (2 * np.random.default_rng(seed).integers(0, 16, shape) - 15).astype(np.int8)
