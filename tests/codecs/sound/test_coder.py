"""Sounds come back from their payloads, whatever their layout, and damage is an error or other samples."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.codecs.sound import coder
from squeeze.codecs.sound.layout import Layout
from tests.makers import sounds


def check(data: bytes, form: Layout, full: bool) -> bytes | None:
    payload: bytes | None = coder.encode(np.frombuffer(data, np.uint8), form, full)
    if payload is not None:
        assert len(payload) < len(data)
        assert coder.decode(payload, len(data)).tobytes() == data
    return payload


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("form", "share"),
    [
        (Layout(1, 1, unsigned=1), 0.5),
        (Layout(2, 1, prefix=44), 0.4),
        (Layout(2, 2, big=1), 0.4),
        (Layout(3, 2), 0.45),
        (Layout(4, 1, big=1), 0.6),
        (Layout(2, 8), 0.4),
    ],
    ids=str,
)
def test_a_sound_comes_back_much_smaller(form, share, full):
    data = sounds.bytes_of(form, 2400 // form.channels)
    payload = check(data, form, full)
    assert payload and len(payload) < share * len(data)
    assert check(data[:-1], form, full)  # a sample that was cut off


def test_the_whole_model_makes_a_sound_smaller_than_the_fast_one():
    form = Layout(2, 2)
    data = sounds.bytes_of(form, 4000)
    fast, whole = (check(data, form, full) for full in (False, True))
    assert fast and whole and len(whole) < len(fast)


def test_samples_at_the_ends_of_their_range_come_back():
    for width in range(1, 5):
        least, most = -(1 << 8 * width - 1), (1 << 8 * width - 1) - 1
        made = np.array([least, most] * 300 + [most] * 300 + [least] * 300 + [0, least, most] * 100)
        assert check(sounds.to_bytes(made, width), Layout(width, 1), True)


@settings(deadline=None, max_examples=20)
@given(
    width=st.integers(1, 4),
    channels=st.integers(1, 8),
    flags=st.tuples(*[st.integers(0, 1)] * 2),
    prefix=st.integers(0, 50),
    frames=st.integers(0, 60),
    cut=st.integers(0, 9),
    full=st.booleans(),
)
def test_every_layout_comes_back(width, channels, flags, prefix, frames, cut, full):
    form = Layout(width, channels, *flags, prefix)
    data = sounds.bytes_of(form, frames)
    data = data[: max(len(data) - cut, prefix)]
    if data:
        check(data, form, full)


def test_noise_is_left():
    noise = np.random.default_rng(0).integers(0, 256, 3000).astype(np.uint8)
    assert coder.encode(noise, Layout(2, 1), True) is None


def test_the_estimate_of_memory_grows_with_the_sound():
    assert 0 < coder.memory(1 << 10) < coder.memory(1 << 20) < 300 << 20
