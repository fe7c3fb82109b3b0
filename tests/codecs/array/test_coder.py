"""Arrays come back from their payloads, whatever their layout, and damage is an error or other numbers."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.codecs.array import coder
from squeeze.codecs.array.layout import FLOAT, SIGNED, Layout
from tests.makers import arrays

CASES = {
    "keys": (Layout(4, big=1), arrays.keys(1500), 0.7),
    "times": (Layout(8, 1, SIGNED), arrays.times(700), 0.25),
    "doubles": (Layout(8, 1, FLOAT), arrays.waves(700), 0.95),
    "decimals": (Layout(8, 1, FLOAT), arrays.walk(700), 0.2),
    "prices": (Layout(8, 1, FLOAT), arrays.prices(700), 0.2),
    "points": (Layout(4, 3, FLOAT), arrays.points(500), 0.85),
    "ramp": (Layout(2), arrays.ramp(2000), 0.4),
    "heights": (Layout(2, 1, SIGNED, 1, 0, 50), arrays.heights(40, 50), 0.5),
}


def check(data: bytes, form: Layout, full: bool) -> bytes | None:
    payload: bytes | None = coder.encode(np.frombuffer(data, np.uint8), form, full)
    if payload is not None:
        assert len(payload) < len(data)
        assert coder.decode(payload, len(data)).tobytes() == data
    return payload


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_an_array_comes_back_smaller(name, full):
    form, data, share = CASES[name]
    payload = check(data, form, full)
    assert payload and len(payload) < share * len(data)
    assert check(b"before" + data[:-1], form._replace(prefix=6), full)  # a number that was cut off


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("width", [2, 4, 8])
def test_the_ends_of_the_range_come_back(width, kind):
    ends = [0, 1, (1 << 8 * width - 1) - 1, 1 << 8 * width - 1, (1 << 8 * width) - 1]
    data = b"".join(number.to_bytes(width, "little") for number in ends * 60 + ends[::-1] * 60)
    for big in (0, 1):
        assert check(data, Layout(width, 1, kind, big), True)
    assert check(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324] * 90).tobytes(), Layout(8, 1, FLOAT), True)


@settings(deadline=None, max_examples=20)
@given(
    width=st.sampled_from([2, 4, 8]),
    columns=st.integers(1, 64),
    kind=st.integers(0, 2),
    big=st.integers(0, 1),
    prefix=st.integers(0, 30),
    lines=st.integers(1, 9),
    data=st.binary(min_size=31, max_size=300),
    full=st.booleans(),
)
def test_every_layout_comes_back(width, columns, kind, big, prefix, lines, data, full):
    check(data + data, Layout(width, columns, kind, big, prefix, lines * columns if lines > 1 else 0), full)


def test_noise_is_left():
    noise = np.random.default_rng(0).integers(0, 256, 3000).astype(np.uint8)
    assert coder.encode(noise, Layout(8), True) is None
