"""Make values like those of networks, and their bytes."""

import numpy as np

from squeeze.checkpoint.ggml_types import BLOCKS
from squeeze.packing.tensors.block_types import streams_of


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


def blocks(dtype, count=256):
    """Return blocks of a type of GGUF whose elements are more often in the middle than at the ends, uint8."""
    random, out = np.random.default_rng(4), np.zeros((count, BLOCKS[dtype]), np.uint8)
    for stream in streams_of(dtype):
        for byte, bit, bits, above, other, more in stream.elements.tolist():
            drawn = random.normal(1 << bits + more - 1, (1 << bits + more) / 12, count)
            values = np.clip(drawn, 0, (1 << bits + more) - 1).astype(np.int64)
            out[:, byte] |= ((values & (1 << bits) - 1) << bit).astype(np.uint8)
            out[:, above] |= (values >> bits << other).astype(np.uint8)
    return out.reshape(-1)
