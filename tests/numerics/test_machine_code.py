"""Machine code that products share: processor features, and loops that nest and run at least once."""

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from squeeze.numerics import machine_code
from squeeze.numerics.jit import kernel
from squeeze.numerics.machine_code import INT32, INT64, pairs, pointer, spread, stored, summed

FOUR = ir.VectorType(INT32, 4)


@intrinsic
def triangle(typingctx, rows, columns, out):
    """Adds row and 10 times the column for each of them to (1, 2, 3, 4); its first two results are sums of pairs."""

    def codegen(context, builder, signature, arguments):
        def row(r, sums):
            def column(c, sums):
                value = builder.add(builder.trunc(r, INT32), builder.trunc(builder.mul(c, INT64(10)), INT32))
                return [builder.add(sums[0], spread(builder, value, 4))]

            return summed(builder, arguments[1], sums, column)

        (total,) = summed(builder, arguments[0], [ir.Constant(FOUR, [1, 2, 3, 4])], row)
        stored(builder, pairs(builder, total), pointer(context, builder, signature, arguments, 2, INT32))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, out), codegen


@kernel
def run(rows, columns, out):
    triangle(rows, columns, out)


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 5), (4, 1), (0, 2)])
def test_a_nested_loop_adds_what_every_step_says(rows, columns):
    out = np.full(3, 7, np.int32)
    run(rows, columns, out)
    added = sum(r + 10 * c for r in range(max(rows, 1)) for c in range(columns))
    assert out.tolist() == [3 + 2 * added, 7 + 2 * added, 7]


@pytest.mark.parametrize(
    ("features", "avx", "expected"),
    [
        (None, 1, {"avx2": True, "avx512bw": True, "sse4.1": True}),
        (None, 0, {"avx2": False, "avx512bw": False, "sse4.1": True}),
        ("", 1, {"avx2": False, "avx512bw": False, "sse4.1": False}),
        ("+avx2,-avx512bw", 1, {"avx2": True, "avx512bw": False, "sse4.1": False}),
    ],
)
def test_what_numba_is_told_counts(features, avx, expected, monkeypatch):
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: {"avx2": True, "avx512bw": True, "sse4.1": True})
    monkeypatch.setattr(machine_code._config, "CPU_FEATURES", features)
    monkeypatch.setattr(machine_code._config, "ENABLE_AVX", avx)
    assert {feature: machine_code.has(feature) for feature in expected} == expected


@pytest.mark.parametrize(
    ("triple", "features", "expected"),
    [
        ("aarch64-unknown-linux-gnu", None, True),
        ("arm64-apple-darwin24.0.0", None, True),
        ("aarch64_be-unknown-linux-gnu", None, False),
        ("x86_64-unknown-linux-gnu", None, False),
        ("aarch64-unknown-linux-gnu", "", False),
        ("aarch64-unknown-linux-gnu", "+neon", True),
    ],
)
def test_every_arm_of_64_bits_has_neon(triple, features, expected, monkeypatch):
    monkeypatch.setattr(llvm, "get_process_triple", lambda: triple)
    monkeypatch.setattr(machine_code._config, "CPU_FEATURES", features)
    assert machine_code.has("neon") is expected


@pytest.mark.parametrize(
    ("host", "name", "expected"),
    [
        ("znver4", None, True),
        ("icelake-server", None, False),
        ("znver4", "generic", False),
        ("skylake", "znver2", True),
    ],
)
def test_numbers_are_loaded_one_by_one_on_processors_by_amd(host, name, expected, monkeypatch):
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: host)
    monkeypatch.setattr(machine_code._config, "CPU_NAME", name)
    assert machine_code.gathers_slowly() is expected
