"""Products of bytes compared with int64, on this processor and as others compute them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from squeeze.numerics import int8
from squeeze.numerics.jit import kernel
from tests.makers.integers import codes, integers


@kernel
def matmul(a, sums, scales, weights, w_scales, first, last, add, out, found):
    int8.matmul(a, sums, scales, weights, w_scales, first, last, add, out, found)


@kernel
def matmul_halves(a, sums, scales, weights, w_scales, first, last, add, out, found):
    int8.matmul_halves(a, sums, scales, weights, w_scales, first, last, add, out, found)


@kernel
def split(x, out, offset, stride):
    return int8.split(x, out, offset, stride)


@kernel
def joined(high, low):
    return int8.joined(high, low)


@pytest.mark.parametrize(("outputs", "inputs"), [(16, 4), (33, 7), (5, 1)])
def test_packed_weights_are_unpacked(outputs, inputs):
    matrix = codes((outputs, inputs), 8, 1)
    packed = int8.pack(matrix)
    assert packed.shape == (-(-outputs // 16), -(-inputs // 4), 16, 4) and packed.dtype == np.uint8
    row, column = outputs - 1, inputs - 1
    assert packed[row // 16, column // 4, row % 16, column % 4] == int(matrix[row, column]) + 128
    assert np.array_equal(int8.unpack(packed, outputs, inputs), matrix)


def check(multiply, pack, bits, shape, rows, add, first, last):
    """Compare a product of random rows, and of the largest numbers, with int64; columns before `first` are left."""
    (outputs, inputs), matrix = shape, codes(shape, bits, 1)
    rng, a = np.random.default_rng(rows), integers((rows, inputs), 127, 2, "any", np.int64)
    matrix[0], a[0] = 127 if bits == 8 else 15, -127
    scales, w_scales = rng.random(rows, np.float32), rng.random(outputs, np.float32)
    out = rng.random((rows, outputs), np.float32)
    product = (a @ matrix.astype(np.int64).T).astype(np.float32) * scales[:, None] * w_scales
    wanted = out.copy()
    wanted[:, 16 * first :] = (out + product if add else product)[:, 16 * first :]
    sums, found = a.sum(1).astype(np.int32), np.zeros(int8.SCRATCH, np.int32)
    multiply(a.astype(int8.ACTIVATION), sums, scales, pack(matrix), w_scales, first, last, add, out, found)
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 7, 13])
@pytest.mark.parametrize("outputs", [16, 47, 128, 144, 200])
@pytest.mark.parametrize("inputs", [4, 60, 1100])
@pytest.mark.parametrize("add", [False, True])
def test_products_are_exact(rows, outputs, inputs, add):
    """Check products with the largest sums as well. Columns outside the given panels are not written."""
    last = -(-outputs // 16)
    check(matmul, int8.pack, 8, (outputs, inputs), rows, add, min(1, last - 1), last)


def test_two_weights_of_4_bits_share_a_byte():
    matrix = codes((32, 24), 4, 1)
    packed = int8.pack_halves(matrix)
    assert packed.shape == (2, 3, 16, 4) and packed.dtype == np.uint8
    byte = int(packed[1, 2, 5, 3])
    assert [2 * half - 15 for half in (byte & 15, byte >> 4)] == [matrix[21, 19], matrix[21, 23]]


@pytest.mark.parametrize("rows", [1, 3, 4, 7])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 8), (144, 40), (256, 512)])
@pytest.mark.parametrize("add", [False, True])
def test_products_of_4_bit_weights_are_exact(rows, outputs, inputs, add):
    check(matmul_halves, int8.pack_halves, 4, (outputs, inputs), rows, add, 0, outputs // 16)


def test_products_of_16_bit_activations_are_exact():
    x = np.array([-int8.TOP_16, -256, -129, -128, -1, 0, 1, 127, 128, 255, 256, int8.TOP_16], np.int16)
    out = np.zeros(2 * x.size, int8.ACTIVATION)
    assert split(x, out, 0, x.size) == x.sum()
    low = out[x.size :] if int8.PARTS == 2 else out[: x.size]
    assert [joined(np.int32(high), np.int32(low)) for high, low in zip(out, low, strict=False)] == x.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "processor", ["nehalem", "haswell +avx2", "alderlake +avxvnni", "skylake-avx512 +avx2,+avx512bw"]
)
def test_other_instruction_sets_give_the_same_products(processor, tmp_path):
    """Run the same tests without byte instructions, and with narrower ones."""
    name, _, features = processor.partition(" ")
    flag = {"": "", "+avx2": "avx2", "+avxvnni": "avx_vnni"}.get(features, "avx512bw")
    if flag not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no such instructions")
    settings = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    tests = [sys.executable, "-m", "pytest", "-q", "-n", "0", __file__, "-k", "not other_processors"]
    assert not subprocess.run(tests, env={**os.environ, **settings}, capture_output=True, check=False).returncode
