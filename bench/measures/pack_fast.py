"""The level `fast` of packing beside `runtime` and a copy in memory: sizes, and speeds of one thread, taking turns.

A tensor is coded as `pack` would: codes of fixed length where they are little larger than rANS's, else rANS.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np

from bench.entry import Row
from bench.shared.floats import tensors_of
from squeeze.checkpoint.safetensors import Tensor
from squeeze.packing import container

Coded = list[tuple[str, np.ndarray]]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for path in options.paths:
        tensors, _ = tensors_of(path)
        tensors = [(dtype, data) for dtype, data in tensors if data.size]
        shortest: dict[str, tuple[float, float]] = {}
        coded: dict[str, Coded] = {}
        for run in range(options.runs + 1):  # the first one warms up
            for level in ("fast", "runtime", "copy"):
                seconds, coded[level] = _run(tensors, level)
                if run:
                    before = shortest.get(level, seconds)
                    shortest[level] = (min(before[0], seconds[0]), min(before[1], seconds[1]))
        sizes = {level: sum(payload.size for _, payload in payloads) for level, payloads in coded.items()}
        fixed = sum(d.size for (_, d), (c, _) in zip(tensors, coded["fast"], strict=True) if c == container.FIXED)
        row: Row = {
            "checkpoint": path.stem,
            "raw": sizes["copy"],
            "fast": sizes["fast"],
            "size of runtime": round(sizes["fast"] / sizes["runtime"], 4),
            "share fixed": round(fixed / sizes["copy"], 4),
        }
        for place, way in enumerate(("encode", "decode")):
            row[f"{way} MB/s"] = round(sizes["copy"] / 1e6 / shortest["fast"][place], 1)
            for level in ("runtime", "copy"):
                row[f"{way} of {level}"] = round(shortest[level][place] / shortest["fast"][place], 3)
        yield row


def _run(tensors: list[tuple[str, np.ndarray]], level: str) -> tuple[tuple[float, float], Coded]:
    """Seconds of both ways, and what was coded."""
    start = time.perf_counter()
    coded = [_encode(dtype, data, level) for dtype, data in tensors]
    middle = time.perf_counter()
    back = [_decode(dtype, data, level)(*one) for (dtype, data), one in zip(tensors, coded, strict=True)]
    end = time.perf_counter()
    assert all(np.array_equal(one, data) for one, (_, data) in zip(back, tensors, strict=True))
    return (middle - start, end - middle), coded


def _encode(dtype: str, data: np.ndarray, level: str) -> tuple[str, np.ndarray]:
    if level == "copy":
        return level, data.copy()
    tensor = Tensor("", dtype, (data.size,), 0, data.size)
    return container.encode_tensor(data, tensor, level, None, 1, False)


def _decode(dtype: str, data: np.ndarray, level: str) -> Callable[[str, np.ndarray], np.ndarray]:
    def decode(coding: str, payload: np.ndarray) -> np.ndarray:
        if level == "copy":
            return payload.copy()
        items = data.size * 8 // container.tensorfile.ELEMENT_BITS[dtype]
        return container.decode_tensor(payload, container.Record(dtype, (items,), coding, 0), None, 1)

    return decode
