"""Layouts of images: what a payload says of them, and what is refused."""

import io

import pytest

from squeeze.codecs.image.layout import MOST_ROW, Layout, from_header
from squeeze.errors import DamagedError

LAYOUTS = {
    "grey": Layout(20, 8, 1),
    "colours with a prefix and padding": Layout(7, 8, 3, padding=3, prefix=54),
    "filtered": Layout(9, 16, 4, filtered=1),
    "palette of 2 bits": Layout(9, 2, 1, indexed=1, filtered=1),
    "low byte first": Layout(5, 16, 1, little=1),
    "interlaced": Layout(9, 8, 1, filtered=1, height=9),
}


def size_of(form: Layout) -> int:
    if not form.height:
        return form.prefix + 3 * (form.stride + form.filtered)
    return next(size for size in range(1000) if form.sections(size) is not None)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_as_it_was_written(name):
    form = LAYOUTS[name]
    assert Layout.read(io.BytesIO(form.to_bytes()), size_of(form)) == form


def test_passes_have_all_pixels_of_an_interlaced_image():
    for width in range(1, 12):
        for height in range(1, 12):
            form = Layout(width, 8, 1, filtered=1, height=height)
            sections = form.sections(size_of(form))
            assert sections is not None and sum(size for size, _ in sections) == width * height


@pytest.mark.parametrize(
    "form",
    [
        Layout(0, 8, 1),
        Layout(101, 8, 1),
        Layout(1 << 40, 8, 1),
        Layout(9, 8, 1, prefix=101),
        Layout(9, 8, 1, padding=1 << 17),
        Layout(9, 8, 1, filtered=1, height=8),
        Layout(9, 8, 1, height=1 << 50),
    ],
)
def test_layouts_that_the_bytes_cannot_have_are_refused(form):
    assert not form.is_possible(100)
    with pytest.raises(DamagedError):
        Layout.read(io.BytesIO(form.to_bytes()), 100)


@pytest.mark.parametrize("written", [b"\x40\3\5\0\0", b"\0\7\5\0\0", b"\x08\3\5\0\0\0"])
def test_unknown_flags_are_refused(written):
    with pytest.raises(DamagedError):
        Layout.read(io.BytesIO(written), 100)


def header(width, height, bits, colour, coding=0, filtering=0, interlaced=0):
    return width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([bits, colour, coding, filtering, interlaced])


def test_the_header_of_a_png_image_gives_its_layout():
    assert from_header(header(10, 3, 8, 2), 93) == Layout(10, 8, 3, filtered=1)
    assert from_header(header(10, 3, 4, 3), 18) == Layout(10, 4, 1, indexed=1, filtered=1)
    assert from_header(header(1, 1, 16, 6, interlaced=1), 9) == Layout(1, 16, 4, filtered=1, height=1)


@pytest.mark.parametrize(
    ("wrong", "size"),
    [
        (header(10, 3, 3, 2), 93),
        (header(10, 3, 8, 5), 93),
        (header(10, 3, 8, 2, coding=1), 93),
        (header(10, 3, 8, 2, interlaced=2), 93),
        (header(9, 9, 8, 0, interlaced=1), 9),
        (header(MOST_ROW, 3, 16, 2), 1 << 30),
        (b"short", 93),
    ],
)
def test_other_headers_give_none(wrong, size):
    assert from_header(wrong, size) is None
