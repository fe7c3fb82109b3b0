"""The coded strips of TIFF files become images, with differences undone, and come back."""

import base64
import struct
import zlib

import numpy as np
import pytest

from squeeze.codecs.image.layout import Layout
from squeeze.codecs.parse import finding
from squeeze.codecs.parse.strips import Differences, Strip, strips_in
from squeeze.codecs.tiff import find_strips
from squeeze.errors import DamagedError
from squeeze.system.binary import varint
from tests.codecs.parse import trees
from tests.makers import images, inputs
from tests.references import naive_opened

COLOURS, GREY = images.pixels(48, 32, 3), images.pixels(48, 32, 1)
DEEP = GREY.astype(np.uint16) * 257 + 3
NOTHING = np.empty(0, np.uint8)


def images_in(data: bytes) -> list[tuple[Layout, bytes]]:
    """Return the images in data, which comes back as it was."""
    root = trees.opened(data)
    return [(Layout(*node.content.form), node.own.tobytes()) for node in root.nodes() if node.content]


@pytest.mark.parametrize("coding", [5, 8])
@pytest.mark.parametrize("predictor", [1, 2])
@pytest.mark.parametrize("order", ["<", ">"])
def test_strips_become_pixels(coding, predictor, order):
    found = images_in(b"before" + images.tiff(COLOURS, order, 2, coding=coding, predictor=predictor))
    assert [form for form, _ in found] == [Layout(48, 8, 3)] * 2
    assert b"".join(pixels for _, pixels in found) == COLOURS.tobytes()


@pytest.mark.parametrize("predictor", [1, 2])
@pytest.mark.parametrize("order", ["<", ">"])
def test_samples_of_16_bits_keep_their_order_of_bytes(predictor, order):
    ((form, pixels),) = images_in(images.tiff(DEEP, order, coding=5, predictor=predictor))
    assert form == Layout(48, 16, 1, little=int(order == "<"))
    assert pixels == DEEP.astype(DEEP.dtype.newbyteorder(order)).tobytes()


def pdf(content: bytes, says: bytes) -> bytes:
    dictionary = b"<< /Type /XObject /Subtype /Image /Width 48 /Height 32 " + says + b" /Filter /FlateDecode >>"
    return b"7 0 obj\n" + dictionary + b"\nstream\r\n" + zlib.compress(content) + b"\nendstream\nendobj\n"


@pytest.mark.parametrize(
    ("says", "made", "form"),
    [
        (b"/ColorSpace /DeviceRGB /BitsPerComponent 8", COLOURS, Layout(48, 8, 3)),
        (b"/BitsPerComponent 8 /ColorSpace [/ICCBased 9 0 R]", COLOURS, Layout(48, 8, 3)),
        (b"/ColorSpace/DeviceGray/BitsPerComponent 16", DEEP.astype(">u2"), Layout(48, 16, 1)),
        (b"/ColorSpace [/Indexed /DeviceRGB 255 9 0 R] /BitsPerComponent 8", GREY, Layout(48, 8, 1, 1)),
        (b"/ImageMask true", np.packbits(GREY[..., 0] & 1, axis=1), Layout(48, 1, 1)),
    ],
)
def test_images_of_pdf_become_pixels(says, made, form):
    assert images_in(b"%PDF-1.4\n" + pdf(made.tobytes(), says)) == [(form, made.tobytes())]


def test_predictors_of_pdf_are_those_of_tiff_and_png():
    says = b"/ColorSpace /DeviceRGB /BitsPerComponent 8 /DecodeParms << /Predictor %d /Colors 3 /Columns 48 >>"
    differences = np.diff(COLOURS, axis=1, prepend=np.zeros_like(COLOURS[:, :1])).tobytes()
    assert images_in(pdf(differences, says % 2)) == [(Layout(48, 8, 3), COLOURS.tobytes())]
    filtered = images.filtered(COLOURS.reshape(32, -1), 3, [4, 1])
    assert images_in(pdf(filtered, says % 15)) == [(Layout(48, 8, 3, 0, 1), filtered)]


def test_digits_around_coded_pixels_are_no_obstacle():
    data = pdf(COLOURS.tobytes(), b"/ColorSpace /DeviceRGB /Filter [/ASCII85Decode /FlateDecode]")
    start, end = data.index(b"stream\r\n") + 8, data.index(b"\nendstream")
    digits = base64.a85encode(data[start:end], wrapcol=76) + b"~>"
    assert images_in(data[:start] + digits + data[end:]) == [(Layout(48, 8, 3), COLOURS.tobytes())]


@pytest.mark.parametrize("says", [b"/BitsPerComponent 7", b"/ColorSpace /DeviceCMYK"])
def test_what_a_dictionary_says_otherwise_is_no_image(says):
    assert images_in(pdf(COLOURS.tobytes(), says)) == []


def test_tiles_become_pixels():
    found = images_in(images.tiff(COLOURS, tile=16, coding=8, predictor=2))
    assert [form for form, _ in found] == [Layout(16, 8, 3)] * 6


def test_another_predictor_names_no_image():
    assert strips_in(images.tiff(COLOURS, coding=5, predictor=3)) == {}


def test_a_place_that_lists_name_again_and_again_is_found_once():
    places = [200, 8, 200, 90, 0xFFFFFFFF] * 1000
    head = b"II*\0" + struct.pack("<IH" + "HHII" * 3 + "I", 8, 3, 256, 4, 1, 48, 259, 4, 1, 5, 273, 4, 5000, 50, 0)
    data = head + struct.pack("<5000I", *places)
    assert [place for place, _, _ in find_strips(data)] == [8, 90, 200]
    assert [place for place, _, _ in find_strips(bytes(10) + data)] == [18, 100, 210]
    data = head + struct.pack("<5000I", *range(5000))
    assert len(list(find_strips(data))) == len(data) // 48


def test_differences_count_as_wrappers(monkeypatch):
    data = np.frombuffer(images.tiff(COLOURS, strips=4, coding=8, predictor=2), np.uint8)
    for most, images_found in ((1, 0), (5, 2), (8, 4)):
        monkeypatch.setattr(finding, "MOST_WRAPPERS", most)
        nodes = list(finding.parse(data, lambda data, found: True).nodes())
        assert sum(node.content is not None for node in nodes) == images_found and len(nodes) - 1 <= most


def test_a_strip_of_another_size_is_no_image():
    colours = Layout(48, 8, 3)
    assert Strip((colours,), True).layout(48 * 3 + 1) is None and Strip((colours,), True).layout(48 * 6) == colours
    assert Strip((colours,), True, 3).layout(48 * 6) is None


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("little", [0, 1])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_differences_of_any_bytes_come_back_by_the_specification(bits, little, channels):
    form = Layout(7, bits, channels, little=little)
    data = np.frombuffer(inputs.random_bytes(5 * form.stride), np.uint8)
    found = Differences().undone(data, form)
    assert Differences().close(found.content, NOTHING, found.extra).tobytes() == data.tobytes()
    assert naive_opened.differences(found.content.tobytes(), found.extra) == data.tobytes()


@pytest.mark.parametrize(
    "extra", [b"", b"\7\3\10", b"\0\3\10\0", b"\7\5\10\0", b"\7\3\11\0", b"\7\3\10\2", b"\7\3\10\0\0"]
)
def test_refuses_impossible_rows(extra):
    with pytest.raises(DamagedError):
        Differences().close(np.zeros(42, np.uint8), NOTHING, extra)


def test_refuses_rows_of_nothing():
    with pytest.raises(DamagedError, match="rows of pixels are impossible"):
        Differences().close(NOTHING, NOTHING, varint(1 << 62) + b"\3\10\0")


def test_refuses_a_part_of_a_row():
    with pytest.raises(DamagedError, match="rows of pixels are impossible"):
        Differences().close(np.zeros(43, np.uint8), NOTHING, b"\7\3\10\0")
