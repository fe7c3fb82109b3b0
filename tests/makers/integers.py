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
