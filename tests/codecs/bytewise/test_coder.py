"""The coder of levels 1 to 3: steps, what cannot be shortened, and code that ends."""

import lzma

import numpy as np
import pytest

from squeeze.codecs.bytewise import coder, presets
from squeeze.errors import DamagedError
from tests.makers import inputs

PRESET = presets.MEDIUM["text"]


def test_a_step_at_a_time_codes_what_one_step_codes():
    data = np.frombuffer(inputs.words(3_000), np.uint8)
    whole = coder.encode(data, PRESET)
    assert whole is not None
    assert np.array_equal(coder.decode(whole, data.size, PRESET), data)
    assert coder.STEP < 1 << 20  # an interrupt is noticed soon


def test_what_cannot_be_shortened_is_given_up():
    assert coder.encode(np.frombuffer(inputs.random_bytes(3_000), np.uint8), PRESET) is None


def test_code_that_ends_too_early_is_noticed():
    with pytest.raises(DamagedError, match="end too early"):
        coder.decode(b"\x12\x34", 100_000, PRESET)


def test_rows_of_padded_numbers_are_found_by_more_than_one_number():
    """Equal numbers are everywhere, and equal rows are far: a match of one number is mostly in another row."""
    chance = np.random.default_rng(0)
    points = chance.normal(0, 0.4, (70, 4)).round(1)[chance.integers(0, 70, 70)]
    first, second = np.triu_indices(70, 1)
    found = np.abs(points[first] - points[second]).sum(1)
    raw = "".join(f"{distance:16.7e}" for distance in found).encode()
    coded = coder.encode(np.frombuffer(raw, np.uint8), presets.LARGE["text"])
    assert coded is not None
    assert coder.decode(coded, len(raw), presets.LARGE["text"]).tobytes() == raw
    assert len(coded) < 0.85 * len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))
