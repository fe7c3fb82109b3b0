"""Pages of TIFF files are found with the kind of their samples, in strips and in tiles."""

import numpy as np
import pytest

from squeeze.codecs.tiff import FLOAT, Page, find_pages
from tests.makers import images

MADE = images.pixels(48, 32, 3)
HEIGHTS = MADE[:, :, :1].astype(np.float32) / 7


def test_the_first_page_begins_with_the_header():
    data = images.tiff(MADE, strips=3)
    assert list(find_pages(data)) == [(0, 8 + MADE.size, Page(8, MADE.size, 48, 8, 3, False, True, 1))]
    assert [(start, end) for start, end, _ in find_pages(b"before" + data)] == [(6, 14 + MADE.size)]


@pytest.mark.parametrize("order", ["<", ">"])
def test_floats_are_told_from_integers(order):
    ((_, _, page),) = find_pages(images.tiff(HEIGHTS, order))
    assert page == Page(8, HEIGHTS.nbytes, 48, 32, 1, False, order == "<", FLOAT)
    ((_, _, page),) = find_pages(images.tiff(MADE.astype(np.uint32), order))
    assert (page.bits, page.form) == (32, 1)


def test_tiles_are_rows_one_below_the_other():
    ((start, end, page),) = find_pages(images.tiff(MADE, tile=16))
    assert (start, end) == (0, 8 + MADE.size) and page == Page(8, MADE.size, 16, 8, 3, False, True, 1)


def test_strips_with_gaps_are_left():
    assert list(find_pages(images.tiff(MADE, strips=3, gap=1))) == []
