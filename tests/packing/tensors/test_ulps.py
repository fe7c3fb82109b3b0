"""Differences from a base in units of the last place: every bit pattern comes back, small steps take few bits."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.errors import DamagedError
from squeeze.packing.tensors import floats, ulps
from squeeze.packing.tensors.content import Difference, InMemory, bytes_of as read, whole
from squeeze.packing.tensors.float_payload import DTYPES
from tests.makers.floats import as_bf16, bytes_of, weights

BITS = st.sampled_from([0, 1, 0x8000, 0x8001, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF])
TYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64}


def floats_as(dtype, values):
    """Bytes of values in a float type that numpy has, or in bf16."""
    return bytes_of(as_bf16(values) if dtype == "BF16" else values.astype(TYPES[dtype]))


def moved(dtype, count=70_000, step=1e-5):
    """Bytes of weights, and of the same after a step of training, which is as large for all."""
    before = weights(count)
    after = before + np.random.default_rng(5).normal(0, step, count)
    return floats_as(dtype, before), floats_as(dtype, after)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
@pytest.mark.parametrize("count", [1, 2_000, 70_000])
def test_tensors_are_restored(dtype, count):
    base, data = moved(dtype, count)
    payload = ulps.encode(data, base, dtype)
    assert (payload is None) == (count == 1)
    if payload is not None:
        assert payload.size % 8 == 0
        assert np.array_equal(ulps.decode(payload, base, dtype), data)


@pytest.mark.parametrize("dtype", ulps.MANTISSAS)
def test_all_bit_patterns_of_both_signs_come_back(dtype):
    width = DTYPES[dtype][0] // 8
    generator = np.random.default_rng(width)
    special = np.array([0, 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1], f"u{width}")
    base = np.concatenate([special, generator.integers(0, 256, 4_000 * width, np.uint8).view(f"u{width}")])
    data = base + generator.integers(-3, 4, base.size).astype(f"i{width}").view(f"u{width}")  # which wraps around
    payload = ulps.encode(bytes_of(data), bytes_of(base), dtype)
    assert np.array_equal(ulps.decode(payload, bytes_of(base), dtype), bytes_of(data))


def test_steps_are_shorter_than_by_xor():
    base, data = moved("BF16")
    assert ulps.encode(data, base, "BF16").size < 0.85 * floats.encode(data ^ base, "BF16").size


def test_a_step_over_a_power_of_two_is_one_unit():
    below, above = np.full(5_000, 0x3F7F, np.uint16), np.full(5_000, 0x3F80, np.uint16)
    signs = np.where(np.arange(5_000) % 2, 0x8000, 0).astype(np.uint16)
    payload = ulps.encode(bytes_of(above | signs), bytes_of(below | signs), "BF16")
    assert payload.size < 1_000  # a bit for each, which is up or down


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(BITS, BITS), max_size=400))
def test_any_values_are_restored(pairs):
    base, data = (np.array([pair[side] for pair in pairs], np.uint16).view(np.uint8) for side in (0, 1))
    payload = ulps.encode(data, base, "BF16")
    if payload is not None:
        assert np.array_equal(ulps.decode(payload, base, "BF16"), data)


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_are_restored(monkeypatch, threads):
    """Read in any pieces, from a base that is decoded in parts in turn."""
    monkeypatch.setattr(ulps, "PART", 1 << 12)
    first, second = moved("F32", 10_000)
    third = bytes_of(second.view(np.float32) + np.float32(2e-6))
    one, two = ulps.encode(second, first, "F32", threads), ulps.encode(third, second, "F32", threads)
    assert np.array_equal(ulps.decode(two, second, "F32", threads), third)
    base = ulps.DecodedUlps(InMemory(one), InMemory(first), "F32")
    content = ulps.DecodedUlps(InMemory(two), base, "F32")
    assert np.array_equal(whole(content, threads), third)
    assert np.array_equal(read(content, 5_001, 30_007), third[5_001:30_007])
    assert np.array_equal(read(Difference(content, base), 16_000, 16_500), (third ^ second)[16_000:16_500])


def test_damaged_payloads_are_named():
    base, data = moved("BF16", 9_000)
    payload = ulps.encode(data, base, "BF16")
    for place in (0, 3, 8, 14, 16, 20, 24, 25, 26, 28):
        hurt = payload.copy()
        hurt[place] ^= 255
        with pytest.raises(DamagedError):
            ulps.decode(hurt, base, "BF16")
    for length in (0, 8, 16, 24, 32, payload.size - 8):
        with pytest.raises(DamagedError):
            ulps.decode(payload[:length], base, "BF16")
    with pytest.raises(DamagedError):
        ulps.decode(payload, base[:-2], "BF16")
    generator = np.random.default_rng(0)
    for _ in range(200):
        hurt = payload.copy()
        hurt[generator.integers(0, hurt.size)] ^= 1 << generator.integers(0, 8)
        with suppress(DamagedError):
            assert ulps.decode(hurt, base, "BF16").size == data.size


def test_another_base_gives_an_error_or_other_values():
    """Its classes have other sizes: an error, or other values, and nothing beyond."""
    base, data = moved("BF16", 9_000)
    payload = ulps.encode(data, base, "BF16")
    other = np.random.default_rng(1).integers(0, 256, base.size, np.uint8)
    with suppress(DamagedError):
        assert ulps.decode(payload, other, "BF16").size == data.size
