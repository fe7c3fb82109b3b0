"""Blocks, their grid and their steps are found from pixels, also from part of them."""

import numpy as np
import pytest

from squeeze.codecs.image import fitting, sections, steps
from squeeze.codecs.image.blocks import Plane, draw
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.image.sampling import WHOLE
from tests.makers import images

SHAPE = 64, 80


@pytest.fixture(scope="module")
def made() -> np.ndarray:
    return images.from_blocks(SHAPE[1], SHAPE[0], 1)[:, :, 0]


def empty(step: int, top: int = 0, left: int = 0) -> Plane:
    return Plane(np.full(64, step), top, left, WHOLE, np.zeros((0, 64), np.int16))


def test_unknown_pixels_do_not_count():
    random = np.random.default_rng(0)
    exact = draw(empty(16)._replace(coefficients=random.integers(-2, 3, (80, 64)).astype(np.int16)), SHAPE)
    is_known = random.random(SHAPE) < 0.9
    changed = np.where(is_known, exact, exact ^ 15)
    found = fitting.fit(changed, is_known, empty(16), 8)
    assert np.count_nonzero((draw(found, SHAPE) != exact) & is_known) < exact.size // 20
    assert np.array_equal(draw(fitting.fit(exact, np.ones(SHAPE, np.bool_), empty(16), 8), SHAPE), exact)


def test_blocks_that_make_their_pixels_stay(made):
    is_known, first = np.ones(SHAPE, np.bool_), fitting.fit(made, np.ones(SHAPE, np.bool_), empty(1), 4)
    again = fitting.fit(made, is_known, first, 4)
    right = (draw(first, SHAPE) == made).reshape(8, 8, 10, 8).all(axis=(1, 3)).ravel()
    assert right.any() and np.array_equal(first.coefficients[right], again.coefficients[right])


def test_coefficients_that_are_changed_make_more_pixels():
    random = np.random.default_rng(1)
    exact = draw(empty(1)._replace(coefficients=random.integers(-9, 10, (80, 64)).astype(np.int16)), SHAPE)
    wrong = [
        np.count_nonzero(draw(fitting.fit(exact, np.ones(SHAPE, np.bool_), empty(1), most), SHAPE) != exact)
        for most in (0, 32)
    ]
    assert wrong[1] < wrong[0]


def test_the_grid_and_the_steps_are_found(made):
    exact = made[3:, 5:]
    assert steps.find_grid([steps.sample(exact)]) == (5, 3)
    known = np.ones(exact.shape, np.bool_)
    found = steps.steps_of([exact], known, (5, 3), steps.noise_of(WHOLE))
    assert found[0] in (5, 10, 15) and np.count_nonzero(found > 2) > 32
    known[:, :40] = False
    assert np.count_nonzero(steps.steps_of([exact], known, (5, 3), steps.noise_of(WHOLE)) > 2) > 32


def test_rows_without_filters_are_written_with_them_again():
    form = Layout(20, 8, 3, filtered=1)
    data = np.frombuffer(images.filtered(images.pixels(20, 9).reshape(9, -1), 3, [4, 1, 0, 2, 3]), np.uint8)
    (section,) = sections.sections_of(form, data.size)
    rows, again = sections.empty_rows(form, [section]), np.zeros_like(data)
    assert sections.read_rows(data, rows, section, form)
    sections.write_rows(again, rows, section, form)
    assert np.array_equal(again, data)
