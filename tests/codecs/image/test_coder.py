"""Images come back from their payloads, whatever their layout, and damage is an error or other pixels."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.codecs.image import coder
from squeeze.codecs.image.layout import Layout
from tests.makers import images


def check(data: bytes, form: Layout, full: bool) -> bytes | None:
    array = np.frombuffer(data, np.uint8)
    payload = coder.encode(array, form, full)
    if payload is not None:
        assert len(payload) < len(data)
        assert coder.decode(payload, len(data)).tobytes() == data
    return payload


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "form",
    [
        Layout(40, 8, 1),
        Layout(40, 8, 2, filtered=1),
        Layout(33, 8, 3, padding=1, prefix=54),
        Layout(30, 8, 4, filtered=1),
        Layout(30, 16, 3, filtered=1),
        Layout(50, 16, 1, little=1),
        Layout(60, 8, 1, indexed=1),
        Layout(200, 1, 1, indexed=1, filtered=1),
        Layout(90, 4, 1, indexed=1),
    ],
    ids=str,
)
def test_an_image_comes_back_smaller(form, full):
    data = images.rows_of(form, 40)
    assert check(data, form, full) is not None
    assert check(data[:-7], form, full) is not None  # a row that was cut off


@settings(deadline=None, max_examples=60)
@given(
    width=st.integers(1, 40),
    height=st.integers(1, 9),
    bits=st.sampled_from([1, 2, 4, 8, 16]),
    channels=st.integers(1, 4),
    flags=st.tuples(*[st.integers(0, 1)] * 4),
    padding=st.integers(0, 5),
    cut=st.integers(0, 30),
    full=st.booleans(),
)
def test_every_layout_comes_back(width, height, bits, channels, flags, padding, cut, full):
    indexed, filtered, little, prefix = flags
    form = Layout(width, bits, channels, indexed, filtered, little, 0, padding * (1 - filtered), 9 * prefix)
    data = images.rows_of(form, height)
    data = data[: max(len(data) - cut, 1)]
    if form.is_possible(len(data)):
        check(data, form, full)


@settings(deadline=None, max_examples=40)
@given(width=st.integers(1, 20), height=st.integers(1, 20), channels=st.integers(1, 4), full=st.booleans())
def test_every_interlaced_image_comes_back(width, height, channels, full):
    form = Layout(width, 8, channels, filtered=1, height=height)
    size = next(size for size in range(4000) if form.sections(size) is not None)
    check(bytes(i * i // 3 % 5 for i in range(size)), form, full)  # any of them is the number of a filter


def test_an_image_of_one_pixel_is_no_smaller():
    assert coder.encode(np.array([7], np.uint8), Layout(1, 8, 1), True) is None


def test_noise_and_unknown_filters_are_left():
    noise = np.random.default_rng(0).integers(0, 256, 3000).astype(np.uint8)
    assert coder.encode(noise, Layout(30, 8, 1), True) is None
    rows = np.zeros(310, np.uint8)
    rows[31] = 5
    assert coder.encode(rows, Layout(30, 8, 1, filtered=1), True) is None
