"""Kernels ask for no instruction that numba is told to leave out."""

import llvmlite.binding as llvm
import pytest

from squeeze.numerics import processor


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
    monkeypatch.setattr(processor._config, "CPU_FEATURES", features)
    monkeypatch.setattr(processor._config, "ENABLE_AVX", avx)
    assert {feature: processor.has(feature) for feature in expected} == expected
