"""The entropy coder: frequencies, and the same bytes by vectors and by plain loops."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from squeeze.codecs.tensors.tables import quantise


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=256).filter(any), st.integers(8, 13))
def test_frequencies_add_up_and_none_is_lost(counts, precision):
    counts = np.array(counts, np.int64)
    frequencies = np.zeros(counts.size, np.int64)
    quantise(counts, precision, frequencies)
    assert frequencies.sum() == 1 << precision
    assert np.array_equal(frequencies > 0, counts > 0)


CODED = """
import hashlib
from squeeze.codecs.tensors import floats
from tests.makers.floats import as_bf16, bytes_of, weights
for count in (70_001, 300_000):
    normal = weights(count)
    tensors = [(as_bf16(normal), "BF16"), (normal.astype("f4"), "F32"), (normal.astype("f2"), "F16")]
    tensors += [(as_bf16(normal).astype("u4") << 16, "F32"), ((normal * 900).astype("i8"), "I64")]
    tensors += [((normal * 300).astype("i1"), "I8"), ((normal > 0.1).astype("u2") * 7, "U16")]
    for values, dtype in tensors:
        data = bytes_of(values)
        coded = floats.encode(data, dtype)
        assert coded is not None and (floats.decode(coded, dtype, data.size) == data).all(), (dtype, count)
        print(dtype, count, hashlib.sha256(coded).hexdigest())
"""


@pytest.mark.parametrize("features", ["", pytest.param("+avx2", marks=pytest.mark.slow)])
def test_the_same_bytes_on_other_processors(features, tmp_path):
    if features == "+avx2" and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    coded = [
        subprocess.run(
            [sys.executable, "-c", CODED], env={**os.environ, **more}, capture_output=True, text=True, check=False
        )
        for more in ({}, other)
    ]
    assert not any(done.returncode for done in coded), coded[-1].stderr
    assert coded[0].stdout == coded[1].stdout != ""
