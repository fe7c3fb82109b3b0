"""The decoder that is written from the specification reads the same coefficients."""

import pytest

from squeeze.codecs.jpeg import coder
from squeeze.codecs.jpeg.image import open_image
from tests.makers import jpegs
from tests.references import naive_jpeg


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: jpegs.by_hand(24, 24, seed=2), id="grey, by hand"),
        pytest.param(lambda: jpegs.jpeg(24, 24, quality=90), id="colours"),
        pytest.param(lambda: jpegs.jpeg(24, 24, "CMYK", progressive=True), id="four components, progressive"),
    ],
)
def test_the_specification_gives_the_same_coefficients(data):
    image = open_image(data())
    header, tails, coefficients = naive_jpeg.decode(coder.encode(data()))
    assert header == image.header and tails == list(zip(image.paddings, image.rests, strict=True))
    assert coefficients == image.coefficients.tolist()
