"""Checkpoints that are coded without loss: what is in a file, and what zipnn makes of it."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from squeeze.checkpoint import safetensors as tensorfile

Run = Callable[[int], tuple[int, tuple[float, float]]]  # threads -> bytes, seconds of both ways
_ZIPNN_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def tensors_of(path: Path) -> tuple[list[tuple[str, np.ndarray]], int]:
    """(type, bytes) of each tensor, and the size of the file."""
    file = tensorfile.read(path)
    with path.open("rb") as reading:
        return [(tensor.dtype, tensorfile.read_tensor(reading, tensor)) for tensor in file.tensors], file.size


def main_type(tensors: list[tuple[str, np.ndarray]]) -> str:
    """The type of most of the bytes."""
    return Counter({dtype: data.size for dtype, data in tensors}).most_common(1)[0][0]


def theirs(path: Path, dtype: str) -> Run | None:
    """zipnn; None where it is not installed."""
    try:
        import zipnn
    except ImportError:
        return None
    content = path.read_bytes()

    def run(threads: int) -> tuple[int, tuple[float, float]]:
        coder = zipnn.ZipNN(input_format="byte", bytearray_dtype=_ZIPNN_TYPES[dtype], threads=threads)
        data = bytearray(content)  # zipnn overwrites what it compresses
        start = time.perf_counter()
        coded = coder.compress(data)
        middle = time.perf_counter()
        back = coder.decompress(coded)
        end = time.perf_counter()
        if bytes(back) != content:
            print(f"Note: {path}: zipnn changed the bytes", file=sys.stderr)
        return len(coded), (middle - start, end - middle)

    return run
