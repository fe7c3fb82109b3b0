"""Images without compression are found in data, with their layout."""

import struct

import numpy as np
import pytest

from squeeze.codecs.image import formats
from squeeze.codecs.image.layout import Layout
from tests.makers import arrays, images, inputs

GREY, COLOURS, ALPHA = (images.pixels(41, 30, channels) for channels in (1, 3, 4))
DEEP = images.pixels(41, 30, 1).astype(np.uint16) * 257
RAMP = b"".join(bytes([grey, grey, grey, 0]) for grey in range(256))
_MARKS = 20_000
# Many files with the same list of tags, and a list whose tags have nearly all the data as their values.
MANY_FILES = b"".join(b"II*\0" + struct.pack("<I", 8 * (_MARKS - n)) for n in range(_MARKS))
MANY_FILES += struct.pack("<H", 500) + struct.pack("<HHII", 258, 1, 1, 0) * 500 + bytes(4)
MANY_VALUES = b"II*\0\x08\0\0\0" + struct.pack("<H", 60_000) + struct.pack("<HHII", 273, 1, 700_000, 0) * 60_000
FILES = {
    "BMP": (images.bmp(COLOURS), Layout(41, 8, 3, padding=1, prefix=54)),
    "grey BMP": (images.bmp(GREY, RAMP), Layout(41, 8, 1, padding=3, prefix=54 + 1024)),
    "BMP with a palette": (images.bmp(GREY, bytes(64)), Layout(41, 8, 1, indexed=1, padding=3, prefix=118)),
    "PPM": (images.pnm(COLOURS), Layout(41, 8, 3, prefix=20)),
    "NPY of colours": (arrays.npy("|u1", "30, 41, 3", COLOURS.tobytes()), Layout(41, 8, 3, prefix=128)),
    "NPY of greys": (arrays.npy("|u1", "3, 10, 41", GREY.tobytes()), Layout(41, 8, 1, prefix=128)),
    "PGM": (images.pnm(GREY), Layout(41, 8, 1, prefix=20)),
    "PGM of 16 bits": (b"P5 41 30 65535\n" + DEEP.byteswap().tobytes(), Layout(41, 16, 1, prefix=15)),
    "PBM": (b"P4\n400 30\n" + bytes(1500), Layout(400, 1, 1, prefix=10)),
    "TIFF": (images.tiff(COLOURS), Layout(41, 8, 3, prefix=8)),
    "TIFF in strips": (images.tiff(COLOURS, strips=4), Layout(41, 8, 3, prefix=8)),
    "TIFF in tiles": (images.tiff(COLOURS[:, :30], tile=15), Layout(15, 8, 3, prefix=8)),
    "TIFF of 16 bits": (images.tiff(DEEP, ">"), Layout(41, 16, 1, prefix=8)),
    "TIFF of 16 bits, low byte first": (images.tiff(DEEP), Layout(41, 16, 1, little=1, prefix=8)),
    "TGA": (images.tga(ALPHA), Layout(41, 8, 4, prefix=18)),
}


def found(data: bytes) -> list[formats.Found]:
    return formats.find(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("name", FILES)
def test_an_image_is_found(name):
    data, form = FILES[name]
    ((start, end, layout),) = found(data)
    assert (start, layout) == (0, form)
    assert (end - form.prefix) >= 30 * form.stride and len(data) - end in range(200)


@pytest.mark.parametrize("name", [name for name in FILES if name != "TGA"])
def test_an_image_is_found_within_other_data(name):
    data, form = FILES[name]
    before, after = inputs.words(3_000), inputs.words(3_000, 1)
    ((start, end, layout),) = found(before + data + after)
    assert (start, layout) == (len(before), form) and end <= len(before) + len(data)


def test_an_image_that_is_cut_off_is_found_as_far_as_it_goes():
    data, form = FILES["BMP"]
    assert found(data[:2000]) == [(0, 2000, form)]


def test_an_icon_has_half_of_the_rows_that_it_says():
    data = bytearray(images.bmp(images.pixels(32, 64, 4))[14:])
    ((start, end, layout),) = found(bytes(data) + bytes(500))
    assert (start, end) == (0, 40 + 32 * 32 * 4) and layout.prefix == 40


def test_several_images_are_found_in_order():
    data = FILES["BMP"][0] + FILES["PPM"][0] + FILES["BMP"][0]
    assert [form.prefix for _, _, form in found(data)] == [54, 20, 54]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        inputs.words(20_000),
        inputs.random_bytes(20_000),
        images.tiff(COLOURS, strips=3, gap=5),
        images.tiff(COLOURS).replace(b"\3\1\3\0\1\0\0\0\1\0", b"\3\1\3\0\1\0\0\0\5\0"),
        b"P5 0 0 255\n" + bytes(100),
        b"P6 1000 1000 255\n" + bytes(100),
        b"II*\0\xff\xff\xff\xff" * 100,
        b"II*\0\x08\0\0\0" * 100,
        MANY_FILES,
        MANY_VALUES,
        b"P5 #" * 250_000,
        b"P5\n#\n" * 200_000,
    ],
    ids=range(13),
)
def test_other_data_has_no_images(data):
    assert found(data) == []
