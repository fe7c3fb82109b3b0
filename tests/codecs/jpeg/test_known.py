"""What headers have in common costs next to nothing in them."""

import numpy as np

from squeeze.codecs.bytewise import coder as bytewise
from squeeze.codecs.bytewise.presets import LARGE
from squeeze.codecs.jpeg import coder
from squeeze.codecs.jpeg.image import open_image
from squeeze.codecs.jpeg.known import known_header
from tests.makers import jpegs
from tests.references import naive_jpeg


def test_the_specification_gives_the_same_bytes():
    assert known_header() == naive_jpeg.known()


def test_a_header_with_usual_tables_takes_few_bytes():
    data = jpegs.jpeg(16, 16, quality=90)
    header = open_image(data).header
    alone = bytewise.encode(np.frombuffer(header, np.uint8), LARGE["other"])
    assert len(header) > 600 and len(alone) > 300
    assert len(coder._header_bytes(header, 0)) < 130
    assert coder.decode(coder.encode(data), len(data)).tobytes() == data


def test_the_curve_of_srgb_in_a_header_takes_few_bytes():
    profile = known_header()[known_header().index(b"ICC_PROFILE") :][:2200]
    data = jpegs.by_hand(16, 16)
    longer = data[:2] + jpegs.segment(0xE2, profile) + data[2:]
    coded = coder.encode(longer)
    assert coder.decode(coded, len(longer)).tobytes() == longer
    assert len(coded) < len(coder.encode(data)) + 30
