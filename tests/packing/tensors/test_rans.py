"""The entropy coder: frequencies, and the same bytes by vectors and by plain loops."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from squeeze.packing.tensors import plane as columns, rans
from squeeze.packing.tensors.tables import quantise


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=256).filter(any), st.integers(8, 13))
def test_frequencies_add_up_and_none_is_lost(counts, precision):
    counts = np.array(counts, np.int64)
    frequencies = np.zeros(counts.size, np.int64)
    quantise(counts, precision, frequencies, np.empty(counts.size))
    assert frequencies.sum() == 1 << precision
    assert np.array_equal(frequencies > 0, counts > 0)


AVX512 = "+avx2,+avx512f,+avx512bw,+avx512dq,+avx512vl"
CODED = """
import hashlib
from squeeze.packing.tensors import floats
from tests.makers.floats import as_bf16, bytes_of, weights
for count in (9_001, 50_001):
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


@pytest.mark.slow
@pytest.mark.parametrize("features", ["", "+avx2", AVX512])
def test_the_same_bytes_on_other_processors(features):
    """A generic one gathers by an instruction, where it has one."""
    known = Path("/proc/cpuinfo").read_text()
    if any(feature[1:] not in known for feature in filter(None, features.split(","))):
        pytest.skip("this processor has none of these instructions")
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}  # whose code numba caches by these
    coded = [
        subprocess.run(
            [sys.executable, "-c", CODED], env={**os.environ, **more}, capture_output=True, text=True, check=False
        )
        for more in ({}, other)
    ]
    assert not any(done.returncode for done in coded), coded[-1].stderr
    assert coded[0].stdout == coded[1].stdout != ""


@pytest.mark.parametrize("precision", [10, 11, 12, 13])
def test_any_frequencies_round_trip(precision):
    """Vectors divide by an estimate: frequencies from 1 to nearly all, and states at both ends."""
    generator, lanes, rows = np.random.default_rng(precision), 32, 64
    for trial in range(200):
        count = int(generator.integers(2, 257))
        shares = generator.pareto(0.7, count) + 1e-9
        frequencies = np.zeros(count, np.int64)
        quantise(np.maximum(shares / shares.max() * 1e6, 1).astype(np.int64), precision, frequencies, np.empty(count))
        chances = frequencies / frequencies.sum() if trial % 2 else None
        values = generator.choice(count, lanes * rows, p=chances).astype(np.uint16)
        table, ids, state = np.zeros(256, np.uint32), np.zeros(1, np.uint8), np.zeros(2 * rans.MAX_LANES, np.uint32)
        # Where a payload has them: the count of words, states and words, and as much after these as a row may read.
        longs = np.zeros(1 + lanes + values.size // 2 + lanes, np.uint32)
        counts, states, words = longs[:1], longs[1 : 1 + lanes], longs[1 + lanes :].view(np.uint16)
        scratch = np.zeros(values.size + rans.SLACK, np.uint16)
        rans.encoding_table(frequencies, np.arange(count), table)
        written = rans.encode_segments(
            *(values, 0, 0, 0, 8, 0, 1, lanes, rows, precision, table, ids, words, counts, states, scratch, state),
            np.zeros(3, np.int64),
        )
        for field in (0, int(frequencies.max()).bit_length()):
            if 2 * field + 8 > 32:
                continue
            slots, out = np.zeros((1 << precision) + rans.MAX_SYMBOLS, np.uint32), np.zeros_like(values)
            prefixes, first_name = np.arange(count), 1 << precision
            rans.decoding_table(frequencies, prefixes, field, slots[:first_name], slots[first_name:])
            plane = np.zeros(columns.COLUMNS, np.int64)
            plane[[columns.PRECISION, columns.FIELD, columns.TABLES]] = precision, field, 1
            plane[[columns.NAMES, columns.STATES]] = first_name, 4
            plane[columns.WORDS_AT] = 4 + 4 * lanes
            end = rans.decode_segments(
                *(out, 0, 0, False, 0, 1, 0, values.size, lanes, rows, plane, slots, longs.view(np.uint8)),
                *(longs.view(np.uint16), longs, state, np.zeros((2, 5), np.int64)),
            )
            assert end == written and np.array_equal(out, values)
