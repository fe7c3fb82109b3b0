"""The decoder that is written from the specification reads the same coefficients."""

import pytest

from squeeze.codecs.jpeg import coder
from squeeze.codecs.jpeg.image import open_image
from tests.makers import jpegs
from tests.references import naive_jpeg


@pytest.mark.parametrize(
    ("data", "with_header"),
    [
        pytest.param(lambda: jpegs.by_hand(24, 24, seed=2), True, id="grey, by hand"),
        pytest.param(lambda: jpegs.jpeg(24, 24, quality=90), False, id="colours"),
        pytest.param(lambda: jpegs.jpeg(24, 24, "CMYK", progressive=True), False, id="four components, progressive"),
    ],
)
def test_the_specification_gives_the_same_coefficients(data, with_header):
    """Headers are of one kind, and take long to decode in Python: one of them is."""
    image = open_image(data())
    header, tails, coefficients = naive_jpeg.decode(coder.encode(data()), None if with_header else image.header)
    assert header == image.header and tails == list(zip(image.paddings, image.rests, strict=True))
    assert coefficients == image.coefficients.tolist()
