"""Kernels touch no byte outside their arrays: these end where a page begins that nobody may touch."""

import ctypes
import mmap
import sys
from contextlib import suppress

import numpy as np
import pytest

from squeeze.errors import DamagedError
from squeeze.packing.tensors import fixed, floats
from tests.makers.floats import as_bf16, bytes_of, weights

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
NORMAL = weights(70_000)
TENSORS = {
    "bf16": (as_bf16(NORMAL), "BF16"),
    "bf16, 16 lanes": (as_bf16(NORMAL[:9_000]), "BF16"),
    "bf16, half a segment": (as_bf16(NORMAL[:20_000]), "BF16"),
    "fp16": (NORMAL.astype(np.float16), "F16"),
    "fp32": (NORMAL.astype(np.float32), "F32"),
    "fp32 that was bf16": (as_bf16(NORMAL).astype(np.uint32) << 16, "F32"),
    "fp64": (NORMAL[:20_000], "F64"),
    "int32": ((NORMAL * 900).astype(np.int32), "I32"),
    "int8": ((NORMAL * 300).astype(np.int8), "I8"),
    "two numbers": ((NORMAL > 0.02).astype(np.uint16) * 7, "U16"),
    "planes": (np.random.default_rng(1).geometric(0.05, 70_000).astype(np.uint16), "U16"),
}


class Guarded:
    """Memory that ends before a page without permissions."""

    def __init__(self, most: int):
        self.size = -(-most // mmap.PAGESIZE) * mmap.PAGESIZE
        self._bytes = np.frombuffer(mmap.mmap(-1, self.size + mmap.PAGESIZE), np.uint8)
        end = ctypes.c_void_p(self._bytes.ctypes.data + self.size)
        assert ctypes.CDLL(None).mprotect(end, mmap.PAGESIZE, 0) == 0

    def holding(self, content: np.ndarray) -> np.ndarray:
        part = self._bytes[self.size - content.size : self.size]
        part[:] = content
        return part


CASES = [(floats, name) for name in TENSORS]
CASES += [(fixed, name) for name in ("bf16", "bf16, 16 lanes", "bf16, half a segment", "fp16", "fp32")]


@pytest.mark.parametrize(("coder", "name"), CASES)
def test_nothing_beyond_is_touched(coder, name):
    values, dtype = TENSORS[name]
    data, generator = bytes_of(values), np.random.default_rng(len(name))
    source, target = Guarded(data.size), Guarded(data.size)
    coded = coder.encode(source.holding(data), dtype)
    out = target.holding(np.zeros_like(data))
    payload = Guarded(coded.size)
    assert np.array_equal(coder.decode(payload.holding(coded), dtype, data.size, out=out), data)
    for _ in range(60):
        hurt = coded.copy()
        for _ in range(generator.integers(1, 5)):
            hurt[generator.integers(0, hurt.size if generator.random() < 0.4 else min(hurt.size, 600))] ^= (
                1 << generator.integers(0, 8)
            )
        if generator.random() < 0.2:
            hurt = hurt[: generator.integers(0, hurt.size // 8 + 1) * 8]
        with suppress(DamagedError):
            coder.decode(payload.holding(hurt), dtype, data.size, out=out)
