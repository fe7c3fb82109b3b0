"""The curve of sRGB in a colour profile is computed."""

import struct
import zlib

import numpy as np
import pytest

from squeeze.codecs.jpeg.known import srgb_curve
from squeeze.codecs.parse.curve import Curve
from squeeze.codecs.parse.streams import Png, Zlib
from squeeze.errors import DamagedError
from tests.codecs.parse import trees
from tests.makers import inputs, wrapped
from tests.references import naive_jpeg

PROFILE = b"mntrRGB XYZ " * 8 + srgb_curve() + b"text"


def test_a_curve_is_nothing_and_comes_back():
    (child,) = trees.wrappers(PROFILE, Curve.kind)
    assert child.found
    assert child.found.content.size == 0
    assert child.found.size == 12 + 2048


def test_a_curve_is_found_in_a_deflated_profile():
    assert len(trees.wrappers(zlib.compress(PROFILE), Curve.kind)) == 1


def test_a_profile_before_the_data_of_an_image_is_opened_and_the_image_is():
    content = b"sRGB\0\0" + zlib.compress(PROFILE)
    chunk = struct.pack(">I", len(content)) + b"iCCP" + content + struct.pack(">I", zlib.crc32(b"iCCP" + content))
    image = wrapped.png(inputs.words(8_000))
    at = image.index(b"IDAT") - 4
    found = trees.wrappers(image[:at] + chunk + image[at:], Curve.kind, Png.kind, Zlib.kind)
    assert [child.kind for child in found] == [Zlib.kind, Png.kind, Curve.kind]


def test_another_curve_stays():
    other = PROFILE.replace(b"\0\x05\0\x0a\0\x0f", b"\0\x05\0\x0a\0\x10")
    assert not trees.wrappers(other, Curve.kind)


def test_agrees_with_the_format():
    assert srgb_curve() == naive_jpeg.srgb_curve()


def test_refuses_a_content():
    with pytest.raises(DamagedError):
        Curve().close(np.zeros(1, np.uint8), np.zeros(0, np.uint8), b"")
