"""The parts of the model of images: filters, linear predictions, relative maps, and memory."""

import numpy as np
import pytest

from squeeze.codecs.image.filters import add_filters, remove_filters
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.image.medium import Image
from squeeze.codecs.image.model import DIRECT_OF
from squeeze.codecs.image.nearby import INPUTS, TERMS, USED
from squeeze.codecs.image.neighbours import FIRST, LATER, LINEAR, ONE
from squeeze.codecs.image.predictions import ACTIVITY, COARSE, TRUST
from squeeze.codecs.image.regression import FACTOR_BITS
from squeeze.codecs.image.relative import BIN, BINS, LEVELS, START
from squeeze.codecs.image.state import FAST, FULL, NEIGHBOURS, SIZES, margin, memory
from tests.makers import images


@pytest.mark.parametrize("kinds", [[0], [1], [2], [3], [4], [4, 1, 3, 2, 0]])
def test_filters_are_those_of_the_specification(kinds):
    made = images.pixels(20, 10, 3).reshape(10, -1)
    rows = np.frombuffer(images.filtered(made, 3, kinds), np.uint8)
    data, found, again = np.zeros(made.size, np.uint8), np.zeros(10, np.uint8), np.zeros_like(rows)
    assert remove_filters(rows, data, 0, made.size, 60, 3, found, 0)
    assert data.tobytes() == made.tobytes() and found.tolist() == (kinds * 10)[:10]
    add_filters(again, data, 0, made.size, 60, 3, found, 0)
    assert np.array_equal(again, rows)


def test_the_pixels_nearby_have_equations_for_each_plane():
    assert USED.shape == (3, INPUTS) and (USED >= 0).all() and (USED < NEIGHBOURS).all()
    assert all(len(set(row)) == INPUTS for row in USED.tolist())
    assert len(np.tril_indices(INPUTS)[0]) + INPUTS == TERMS


def test_linear_predictions_continue_a_single_colour():
    assert (FIRST.sum(1) == ONE).all() and len(FIRST) == LINEAR
    assert all((factors.sum(1) == ONE).all() for factors in LATER) and sum(map(len, LATER)) == LINEAR


def test_relative_maps_begin_with_fewer_ones_far_above_a_prediction():
    start = (START >> 10).reshape(LEVELS, 8, BINS)
    assert (np.diff(BIN) >= 0).all() and BIN.max() < BINS
    assert (start[:, 7, 110] >= 1 << 21).all() and (start[:, 7, 145] <= 1 << 21).all()


def test_more_of_the_model_takes_more_memory():
    assert memory(1 << 20, FAST) < memory(1 << 20, FULL) <= Image().memory(1 << 20) < 400 << 20
    assert margin(Layout(100, 8, 3)) == 924


def test_classes_grow_with_differences_and_trust_falls_with_misses():
    for classes, most in ((ACTIVITY, 16), (COARSE, 8)):
        assert classes[0] == 0 and classes.max() == most - 1 and (np.diff(classes) >= 0).all()
    assert (np.diff(TRUST) <= 0).all() and TRUST[-1] > 0


def test_sums_of_predictions_fit_64_bits():
    assert int(TRUST[0]) * 65_535 * FULL.predictions < 1 << 63
    assert (1 << 28) * (4 << FACTOR_BITS) * int(SIZES.max()) < 1 << 63
    assert DIRECT_OF.max() < FULL.predictions
