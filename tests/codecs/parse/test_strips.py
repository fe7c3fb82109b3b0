"""The coded strips of TIFF files become images, with differences undone, and come back."""

import numpy as np
import pytest

from squeeze.codecs.content import Content
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.parse import tree
from squeeze.codecs.parse.strips import Differences, Strip, strips_in
from squeeze.errors import DamagedError
from tests.makers import images, inputs
from tests.references import naive_opened

COLOURS, GREY = images.pixels(48, 32, 3), images.pixels(48, 32, 1)
DEEP = GREY.astype(np.uint16) * 257 + 3
NOTHING = np.empty(0, np.uint8)


def images_in(data: bytes) -> list[tuple[Layout, bytes]]:
    """Return the images in data, which comes back as it was."""
    root = tree.parse(np.frombuffer(data, np.uint8), lambda data, found: True)
    written, own = tree.to_bytes(root), np.concatenate([node.own for node in root.nodes()])
    assert tree.close(tree.read(written, own), len(data)).tobytes() == data
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


def test_tiles_become_pixels():
    found = images_in(images.tiff(COLOURS, tile=16, coding=8, predictor=2))
    assert [form for form, _ in found] == [Layout(16, 8, 3)] * 6


@pytest.mark.parametrize("made", [GREY.astype(np.float32), GREY.astype(np.uint32)])
def test_other_samples_stay_what_they_are(made):
    assert images_in(images.tiff(made, coding=5)) == []


def test_another_predictor_names_no_image():
    assert strips_in(images.tiff(COLOURS, coding=5, predictor=3)) == {}


def test_a_strip_of_another_size_is_no_image():
    assert Strip(Layout(48, 8, 3), True).content(48 * 3 + 1) is None
    assert Strip(Layout(48, 8, 3), True).content(48 * 3) == Content("image", 0, tuple(Layout(48, 8, 3)))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("little", [0, 1])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_differences_of_any_bytes_come_back_by_the_specification(bits, little, channels):
    form = Layout(7, bits, channels, little=little)
    data = np.frombuffer(inputs.random_bytes(5 * form.stride), np.uint8)
    found = Differences().undone(data, Strip(form, True))
    assert found and Differences().close(found.content, NOTHING, found.extra).tobytes() == data.tobytes()
    assert naive_opened.differences(found.content.tobytes(), found.extra) == data.tobytes()


@pytest.mark.parametrize(
    "extra", [b"", b"\7\3\10", b"\0\3\10\0", b"\7\5\10\0", b"\7\3\11\0", b"\7\3\10\2", b"\7\3\10\0\0"]
)
def test_refuses_impossible_rows(extra):
    with pytest.raises(DamagedError):
        Differences().close(np.zeros(42, np.uint8), NOTHING, extra)


def test_refuses_a_part_of_a_row():
    with pytest.raises(DamagedError, match="rows of pixels are impossible"):
        Differences().close(np.zeros(43, np.uint8), NOTHING, b"\7\3\10\0")
