"""Make values like those of networks, and their bytes."""

import numpy as np


def as_bf16(values):
    """Round values to bf16 as torch does, and return uint16."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def weights(count, seed=1):
    """Return weights whose scale varies by row, as in networks."""
    generator = np.random.default_rng(seed)
    columns = 256
    scale = np.exp(generator.normal(-4, 0.5, (-(-count // columns), 1)))
    return (generator.normal(0, 1, (scale.size, columns)) * scale).ravel()[:count]


def bytes_of(array):
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
