"""Templates of images of two values, the bytes of their models, and which images have them."""

import numpy as np
import pytest

from squeeze.codecs.image import bilevel, bilevel_rows, coder
from squeeze.codecs.image.filters import Filtered
from squeeze.codecs.image.layout import Layout
from tests.makers import images


def test_templates_are_in_the_windows_and_fit_in_a_word():
    for row, right, mask, place in bilevel.PARTS:
        bits = int(mask).bit_length()
        assert place + bits < 64
        assert bits + 7 - right + bilevel.ABOVE - 7 <= 32 if row else bits <= 32
        assert right <= bilevel.ABOVE - 7
    assert bilevel.FULL.contexts == bilevel_rows.POSITION + 1


@pytest.mark.parametrize("preset", [bilevel.FAST, bilevel.FULL])
@pytest.mark.parametrize("size", [100, 5_000, 3_000_000])
def test_the_memory_is_estimated(preset, size):
    m = bilevel.build_model(Filtered.empty(size, 0), size // 50, bilevel.Values(0, 255, False), preset)
    taken = sum(part.nbytes for part in m if isinstance(part, np.ndarray))
    assert taken - m.data.nbytes <= bilevel.memory(size, preset)


@pytest.mark.parametrize(
    ("values", "is_of_two"),
    [((0, 255), True), ((7, 8), True), ((3, 3), True), ((0, 1, 2), False)],
)
def test_bytes_of_two_values_are_pixels(values, is_of_two):
    data = np.array(values, np.uint8)[images.page(90, 60) * images.page(90, 60, 1) % len(values)]
    if len(values) > 2:
        data[0, 0] = values[2]
    payload = coder.encode(data.ravel(), Layout(90, 8, 1), True)
    assert payload is not None
    assert (payload[0] == 3) is is_of_two
    assert coder.decode(payload, data.size).tobytes() == data.tobytes()
