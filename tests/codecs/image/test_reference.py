"""Images decode by a decoder written from docs/format.md."""

import itertools

import numpy as np
import pytest

from squeeze.codecs.image import coder
from squeeze.codecs.image.layout import LIGHT_MARK, Layout
from tests.makers import images
from tests.makers.cases import all_slow_but, every
from tests.references import naive_image

CASES = {
    "grey": Layout(17, 8, 1),
    "filtered colours": Layout(9, 8, 3, filtered=1),
    "padding and a prefix": Layout(9, 8, 4, padding=3, prefix=30),
    "16 bits": Layout(7, 16, 3, filtered=1),
    "low byte first": Layout(12, 16, 1, little=1),
    "palette": Layout(21, 8, 1, indexed=1),
    "bits": Layout(150, 1, 1, indexed=1, filtered=1),
    "narrow": Layout(2, 8, 3),
    "interlaced": Layout(9, 8, 2, filtered=1, height=9),
}


@pytest.mark.parametrize(("name", "model"), every(2, itertools.product(CASES, (0, 1, LIGHT_MARK))))
def test_an_image_decodes_by_the_specification(name, model):
    form = CASES[name]
    size = form.prefix + (12 + 30 * (name == "narrow")) * (form.stride + form.filtered) - 1
    if form.height:
        size = next(size for size in range(1_000) if form.sections(size) is not None)
        data = bytes(size)
    else:
        made = images.pixels(form.stride, 50, 1)[:, :, 0] // 8
        body = images.filtered(made, form.pixel, [4, 2, 1, 3, 0]) if form.filtered else made.tobytes()
        data = (bytes(form.prefix) + body)[:size]
    payload = coder.encode(np.frombuffer(data, np.uint8), form, model == 1, None, model == LIGHT_MARK)
    assert payload is not None and (form.bits == 1 or payload[0] == model)
    assert naive_image.decode(payload, size) == data


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "form",
    [
        Layout(99, 1, 1),
        Layout(90, 1, 1, padding=3, prefix=20),
        Layout(75, 1, 1, indexed=1, filtered=1),
        Layout(70, 8, 1, filtered=1),
        Layout(45, 8, 1, indexed=1),
        Layout(99, 1, 1, filtered=1, height=40),
    ],
    ids=str,
)
@pytest.mark.parametrize("light", [False, True])
def test_two_values_decode_by_the_specification(form, light, full):
    page = images.page(form.width, 40) ^ light
    rows = np.packbits(page, axis=1) if form.bits == 1 else page * np.uint8(200)
    rows = np.pad(rows, ((0, 0), (0, form.padding)))
    if form.height:
        size = next(size for size in range(1_000) if form.sections(size) is not None)
        data = bytes(light * (k % 7 == 3) for k in range(size))  # any of them is the number of a filter
    else:
        body = images.filtered(rows, 1, [0, 2, 1, 4, 3]) if form.filtered else rows.tobytes()
        data = bytes(form.prefix) + body[:-1]
    payload = coder.encode(np.frombuffer(data, np.uint8), form, full)
    assert payload is not None
    assert payload[0] == 2 + full
    assert naive_image.decode(payload, len(data)) == data


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "form",
    [
        Layout(40, 8, 1, indexed=1),
        Layout(24, 8, 3, filtered=1),
        Layout(24, 8, 3, padding=2),
        Layout(20, 16, 1),
        Layout(300, 1, 1),
    ],
)
def test_flat_parts_decode_by_the_specification(form, full):
    made = np.zeros((20, form.stride), np.uint8)
    made[3:9, 6:21] = 7  # a rectangle, and another one in part above it
    made[6:15, 12:31] = 200
    made[17, 5] = made[12, -1] = 1
    body = images.filtered(made, form.pixel, [2, 0, 4]) if form.filtered else made.tobytes()
    payload = coder.encode(np.frombuffer(body, np.uint8), form, full)
    assert payload is not None
    assert naive_image.decode(payload, len(body)) == body


DECODED = {
    "rows": Layout(14, 8, 3, prefix=3),
    "filtered": Layout(14, 8, 3, filtered=1),
    "from blue to red, padding": Layout(13, 8, 3, padding=1),
    "alpha": Layout(12, 8, 4, filtered=1),
    "interlaced": Layout(29, 8, 3, filtered=1, height=27),
}


@pytest.mark.parametrize(
    ("name", "model"),
    all_slow_but(
        [("rows", 0), ("rows", 4), ("filtered", 1), ("from blue to red, padding", 0), ("alpha", 1), ("interlaced", 4)],
        itertools.product(DECODED, (0, 1, LIGHT_MARK)),
    ),
)
def test_what_a_jpeg_decoder_made_decodes_by_the_specification(name, model):
    form = DECODED[name]
    made = images.decoded(form.width, form.height or 12, form.channels)
    order = 2 if "blue" in name else 1
    made = made[:, :, ::-1] if order == 2 else made
    body = np.ascontiguousarray(made).reshape(len(made), -1)
    if form.height:
        passes = (made[top::down, left::step] for left, step, top, down in naive_image.PASSES)
        data = b"".join(images.filtered(one.reshape(len(one), -1), form.pixel, [4, 1, 2]) for one in passes)
    elif form.filtered:
        data = images.filtered(body, form.pixel, [4, 1, 2])
    else:
        data = bytes(form.prefix) + np.pad(body, ((0, 0), (0, form.padding))).tobytes()[:-2]
    payload = coder.encode(np.frombuffer(data, np.uint8), form, model == 1, None, model == LIGHT_MARK)
    assert payload is not None and payload[0] == model and payload[1] >> 6 == order
    assert naive_image.decode(payload, len(data)) == data
    assert coder.decode(payload, len(data)).tobytes() == data
