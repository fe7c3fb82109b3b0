"""Integers within a range, at random or at its ends."""

import numpy as np


def integers(shape, top: int, seed: int, kind: str, dtype: type) -> np.ndarray:
    """Any integers within ±top, or only its ends."""
    generator = np.random.default_rng(seed)
    if kind == "any":
        return generator.integers(-top, top + 1, shape).astype(dtype)
    if kind == "ends":
        return (generator.integers(0, 2, shape) * 2 * top - top).astype(dtype)
    return np.full(shape, top if kind == "tops" else -top, dtype)


def codes(shape, bits, seed):
    """Weights of 8 bits, or odd ones of 4, as numerics/quads.py takes them: int8."""
    if bits == 8:
        return integers(shape, 127, seed, "any", np.int8)
    return (2 * np.random.default_rng(seed).integers(0, 16, shape) - 15).astype(np.int8)
