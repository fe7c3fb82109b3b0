"""Arrays in files are found by their headers or their bytes, and none becomes larger."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.array.fits import find_fits
from squeeze.codecs.array.formats import Array
from squeeze.codecs.array.layout import FLOAT, SIGNED, UNSIGNED, Layout
from squeeze.codecs.array.raw import find_raw
from squeeze.codecs.content import Content
from squeeze.codecs.numbers import apart
from squeeze.codecs.stream import container, media
from squeeze.codecs.stream.index import read_index
from tests.makers import arrays, images, inputs

POINTS = arrays.npy("<f4", "2000, 3", arrays.points(2000))


def guess(data: bytes) -> Layout | None:
    return find_raw(np.frombuffer(data, np.uint8))


def find(data: bytes) -> list[tuple[int, int, Layout]]:
    return apart(Array().named(data), len(data))


def test_npy_files_are_found():
    assert find(POINTS) == [(0, len(POINTS), Layout(4, 3, FLOAT, 0, 128))]
    before = inputs.words(500)
    assert find(before + POINTS + inputs.words(500)) == [(500, 500 + len(POINTS), Layout(4, 3, FLOAT, 0, 128))]
    times = arrays.npy("<i8", "300,", arrays.times(300))
    assert find(times)[0][2] == Layout(8, 1, SIGNED, 0, 128)
    columns = arrays.npy("<f4", "2000, 3", arrays.points(2000), "True")
    assert find(columns)[0][2].columns == 1


def test_lines_follow_from_the_shape_of_an_array():
    heights = arrays.heights(70, 90)
    assert find(arrays.npy(">i2", "70, 90", heights))[0][2] == Layout(2, 1, SIGNED, 1, 128, 90)
    assert find(arrays.npy(">i2", "70, 90", heights, "True"))[0][2].across == 70
    assert find(arrays.npy(">i2", "7, 10, 90", heights))[0][2].across == 90
    assert find(arrays.npy(">i2", "70, 30, 3", heights))[0][2][1:] == (3, SIGNED, 1, 128, 90)


@pytest.mark.parametrize("extension", [False, True])
def test_images_of_fits_are_found(extension):
    data = arrays.fits(arrays.heights(70, 90), 16, 90, 70, extension=extension)
    ((start, end, form),) = find(data)
    assert list(find_fits(data)) == [(start, end, form)]
    assert start == 2880 * (1 + extension) and end - start == 70 * 90 * 2 and form == Layout(2, 1, SIGNED, 1, 0, 90)
    floats = find(arrays.fits(arrays.points(900), -32, 2700, extension=extension))
    assert floats[0][2] == Layout(4, 1, FLOAT, 1)


def test_pages_of_tiff_with_long_samples_are_found():
    heights = images.pixels(48, 32, 1).astype(np.float32) / 7
    assert find(images.tiff(heights)) == [(0, 8 + heights.nbytes, Layout(4, 1, FLOAT, 0, 8, 48))]
    colours = images.pixels(48, 32, 3).astype(np.uint32)
    assert find(images.tiff(colours, ">"))[0][2] == Layout(4, 3, UNSIGNED, 1, 8, 144)
    assert find(images.tiff(images.pixels(48, 32, 1))) == []


def test_lines_of_numbers_without_a_header_are_found():
    form = guess(arrays.heights(100, 120))
    assert form and form == Layout(2, 1, form.kind, 1, 0, 120)
    assert [found.across for found in map(guess, (arrays.ramp(9000), arrays.keys(9000))) if found] == [0, 0]


def test_of_several_media_the_one_that_makes_a_sample_smaller_has_the_data():
    heights = np.frombuffer(arrays.heights(400, 300), np.uint8)
    guesses = [medium.kind for medium in media.MEDIA if medium.guess(heights)]
    ((_, _, content),) = media.regions(heights)
    assert guesses == ["sound", "array"] and content.kind == "array"


@pytest.mark.parametrize(
    "header",
    [
        arrays.npy("<c16", "300,", bytes(4800)),
        arrays.npy("|u1", "4800,", bytes(4800)),
        b"\x93NUMPY\1\0" + bytes(5000),
        arrays.npy("<i8", "99999999999999999999, 0", b"")[:90],
        arrays.fits(bytes(2000), 8, 50, 40),
        arrays.fits(bytes(2000), 32, 999_999_999, 0),
        arrays.fits(bytes(2000), 16, 50, 50)[:2000],
        arrays.fits(b"", 16, 50, 50)[:80] * 60,
        arrays.fits(bytes(9000), 16, 50, 90).replace(b"                   2 / axes", b"           999999999 / axes"),
        arrays.npy("<f4", "9" * 5000 + ",", bytes(4800)),
    ],
    ids=range(10),
)
def test_headers_of_others_find_nothing(header):
    assert not find(header)


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (arrays.keys(5000), Layout(4, 1, UNSIGNED, 1)),
        (arrays.times(3000), Layout(8, 1, UNSIGNED)),
        (arrays.points(3000), Layout(4, 3, FLOAT)),
        (arrays.ramp(9000), Layout(2, 1, UNSIGNED)),
    ],
    ids=["keys", "times", "points", "ramp"],
)
def test_numbers_without_a_header_are_found_by_their_bytes(data, form):
    found = guess(data)
    assert found and (found.width, found.columns, found.big) == form[:2] + form[3:4]


def test_other_data_is_not_taken_for_numbers():
    noise = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8).tobytes()
    for data in (inputs.words(100_000), bytes(100_000), noise, inputs.machine_code(20_000)):
        assert guess(data) is None


def test_an_array_is_coded_by_its_model():
    stream = squeeze.compress(POINTS, 1)
    assert squeeze.decompress(stream) == POINTS
    assert [block.codec for block in read_index(io.BytesIO(stream))[0].blocks] == ["array"]
    assert len(stream) < len(squeeze.compress(POINTS, 1, parse=False))


def test_an_array_is_never_larger_than_without_its_model():
    data = arrays.npy("<f8", "1000,", inputs.words(8_000))
    assert len(squeeze.compress(data, 1)) <= len(squeeze.compress(data, 1, parse=False))


def test_a_sample_has_whole_rows():
    medium = media.of_block(container.ARRAY)
    assert medium
    start, end, content = medium.sample(600_128, Content("array", 0, Layout(4, 3, FLOAT, 0, 128)), 9_000)
    assert (start - 128) % 12 == (end - start) % 12 == 0 and content.form == Layout(4, 3, FLOAT)
