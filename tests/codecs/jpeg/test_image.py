"""JPEG images are opened to coefficients and closed to the same bytes, or are left as they are."""

import numpy as np
import pytest

from squeeze.codecs.jpeg.image import close, open_image
from squeeze.codecs.jpeg.medium import find_images
from squeeze.errors import DamagedError
from tests.makers import jpegs


def check(data):
    image = open_image(data)
    assert image is not None and close(image, len(data)) == data
    return image


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("name", jpegs.SETTINGS)
def test_closes_to_the_same_bytes(name, mode):
    for width, height in ((93, 57), (200, 161), (16, 16)):
        check(jpegs.jpeg(width, height, mode, **jpegs.SETTINGS[name]))


def test_an_image_of_one_component_has_its_own_blocks_only():
    image = check(jpegs.jpeg(57, 41, "L"))
    assert image.coefficients.shape == (8 * 6, 64)


def test_the_coefficients_are_those_of_the_pixels():
    """Undo quantisation and transform by the formula of T.81, A.3.3."""
    values = jpegs.pixels(24, 16, 1)
    image = check(jpegs.jpeg(24, 16, "L", quality=100))
    x = np.arange(8)
    basis = np.cos((2 * x[:, None] + 1) * x * np.pi / 16) * np.where(x == 0, np.sqrt(1 / 8), 1 / 2)
    blocks = (image.coefficients * image.frame.components[0].steps).reshape(2, 3, 8, 8)
    restored = np.einsum("yv,rcvu,xu->rycx", basis, blocks, basis).reshape(16, 24) + 128
    assert np.abs(restored - values[..., 0]).max() <= 1.5


def test_bytes_behind_a_scan_stay():
    data = jpegs.jpeg(64, 48)
    image = check(data[:-2] + b"\x12\x34\x56" + data[-2:])
    assert image.rests == (b"\x12\x34\x56",)


def test_padding_of_zeros_stays():
    data = bytearray(jpegs.jpeg(64, 48, "L", seed=5))
    image = check(bytes(data))
    bare = image.coefficients.copy()
    again = type(image)(image.header, image.frame, bare, (0,), image.rests)
    check(close(again, len(data) + 9))


def test_fill_bytes_before_a_marker_stay():
    data = jpegs.jpeg(40, 40)
    check(data[:-2] + b"\xff" + data[-2:])


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9])
def test_a_cut_image_is_none(cut):
    data = jpegs.jpeg(64, 48, progressive=True)
    assert list(find_images(data[: int(cut * len(data))])) == []


def test_a_damaged_scan_closes_to_its_own_bytes_or_stays_closed():
    data = jpegs.jpeg(64, 48, optimize=True)
    start = data.index(b"\xff\xda") + 20
    for place in range(start, len(data) - 2, 41):
        damaged = data[:place] + b"\x7f" + data[place + 1 :]
        image = open_image(damaged)
        assert image is None or close(image, len(damaged)) == damaged


def test_restart_markers_out_of_order_stay_closed():
    data = jpegs.jpeg(64, 48, restart_marker_blocks=2)
    assert open_image(data) is not None
    assert open_image(data.replace(b"\xff\xd1", b"\xff\xd2", 1)) is None


@pytest.mark.parametrize(
    ("place", "value"),
    [(4, 12), (5, 0), (9, 0), (11, 0x51), (11, 0x01)],
    ids=["12 bits", "no rows", "no components", "factor of 5", "factor of 0"],
)
def test_a_frame_of_another_kind_stays_closed(place, value):
    data = bytearray(jpegs.jpeg(64, 48))
    start = data.index(b"\xff\xc0")
    data[start + place] = value
    if place == 5:
        data[start + 6] = 0
    assert open_image(bytes(data)) is None


def test_arithmetic_coding_stays_closed():
    data = jpegs.jpeg(64, 48)
    assert open_image(data.replace(b"\xff\xc0", b"\xff\xc9", 1)) is None


def test_more_blocks_than_bytes_stay_closed():
    data = bytearray(jpegs.jpeg(64, 48, "L"))
    start = data.index(b"\xff\xc0")
    data[start + 5 : start + 9] = b"\xff\xff\xff\xff"
    assert open_image(bytes(data)) is None


def test_finds_images_between_other_bytes():
    one, two = jpegs.jpeg(64, 48), jpegs.jpeg(80, 32, progressive=True)
    data = b"head\xff\xd8\xff" + one + bytes(100) + two + b"\xff\xd8\xff\xe0tail"
    assert [data[start:end] for start, end in find_images(data)] == [one, two]


def test_closing_refuses_coefficients_without_codes():
    image = check(jpegs.jpeg(64, 48, "L", optimize=True))
    changed = np.full_like(image.coefficients, 1000)
    with pytest.raises(DamagedError, match="coefficients of a JPEG image are impossible"):
        close(type(image)(image.header, image.frame, changed, image.paddings, image.rests), 5000)


def test_closing_stops_at_the_length():
    image = check(jpegs.jpeg(64, 48, "L"))
    with pytest.raises(DamagedError, match="longer than its block"):
        close(image, 10)
