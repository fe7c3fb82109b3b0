"""Rows of bits without a header are found by their period, and other data is not."""

import numpy as np
import pytest

from squeeze.codecs.image.layout import Layout
from squeeze.codecs.image.raw import _periods, find_raw
from tests.makers import images, inputs


@pytest.mark.parametrize("width", [256, 640, 1728, 4000])
@pytest.mark.parametrize("is_dark", [0, 1])
def test_rows_are_found_by_their_period(width, is_dark):
    rows = np.packbits(images.page(width, 400) ^ is_dark, axis=1)
    assert find_raw(rows.ravel()) == Layout(width, 1, 1)
    assert find_raw(rows.ravel()[5:]) == Layout(width, 1, 1)  # from within a row


def test_errors_of_a_transform_change_no_period(monkeypatch):
    rng, irfft, sample = np.random.default_rng(2), np.fft.irfft, np.zeros(20_000, np.uint8)
    sample[rng.choice(sample.size, 300, False)] = 15  # many distances have equally many equal bytes
    before = _periods(sample)

    def noisy(spectrum: np.ndarray) -> np.ndarray:
        products = irfft(spectrum)
        return products + rng.uniform(-0.1, 0.1, products.size)

    monkeypatch.setattr(np.fft, "irfft", noisy)
    for _ in range(3):
        assert _periods(sample) == before


@pytest.mark.parametrize(
    "data",
    [
        bytes(100_000),
        b"\xff" * 100_000,
        inputs.words(100_000),
        np.random.default_rng(0).bytes(100_000),
        np.arange(25_000, dtype="<u4").tobytes(),
        np.cumsum(np.random.default_rng(1).normal(size=20_000)).astype("<f4").tobytes(),
        images.pixels(200, 200).tobytes(),
        np.packbits(images.page(256, 30), axis=1).tobytes(),
    ],
    ids=["zeros", "ones", "text", "noise", "counter", "floats", "colours", "a few rows"],
)
def test_other_data_is_not_taken_for_rows(data):
    assert find_raw(np.frombuffer(data, np.uint8)) is None
