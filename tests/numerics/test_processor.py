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
    monkeypatch.setattr(processor._config, "CPU_FEATURES", features)
    assert processor.has("neon") is expected


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
    monkeypatch.setattr(processor._config, "CPU_NAME", name)
    assert processor.gathers_slowly() is expected
