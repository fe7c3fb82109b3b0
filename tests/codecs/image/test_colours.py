"""Images that a JPEG decoder made are coded as what they were made of, and come back with all exceptions."""

import io

import numpy as np
import pytest

from squeeze.codecs.image import coder, colours
from squeeze.codecs.image.layout import Layout
from squeeze.errors import DamagedError
from tests.makers import images

FORM = Layout(60, 8, 3)
DECODED = images.decoded(60, 40)


def order_of(made: np.ndarray) -> int:
    form = Layout(made.shape[1], 8, made.shape[2])
    return colours.find_order((made.ravel(), form.stride), form)


def test_the_order_of_bytes_is_found():
    assert order_of(DECODED) == 1
    assert order_of(DECODED[:, :, ::-1]) == 2
    assert order_of(images.decoded(60, 40, 4)) == 1
    assert order_of(images.pixels(60, 40)) == 0
    assert order_of(np.repeat(images.pixels(60, 40, 1), 3, axis=2)) == 1, "grey"
    assert order_of(np.full((60, 40, 3), (9, 90, 201), np.uint8)) == 0, "one colour"
    assert order_of(DECODED[:3, :9]) == 0, "few pixels"


def test_a_decoder_of_jpeg_makes_such_images():
    library = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    library.fromarray(images.pixels(120, 90)).save(file, "jpeg", quality=80)
    assert order_of(np.asarray(library.open(file))) == 1


def test_conversion_pays(monkeypatch):
    payload = coder.encode(DECODED.ravel(), FORM, True)
    monkeypatch.setattr(colours, "find_order", lambda part, form: 0)
    other = coder.encode(DECODED.ravel(), FORM, True)
    assert payload is not None and other is not None
    assert len(payload) < len(other)


def test_exceptions_come_back_unless_they_are_too_many():
    made = DECODED.copy()
    made[7, 3:10] = images.pixels(7, 1, 3, 5)
    made[20:22] = 255
    form = FORM._replace(colours=1)
    parts = [(made.ravel().copy(), FORM.stride)]
    exceptions = colours.convert(parts, form)
    assert exceptions and (parts[0][0] != made.ravel()).any()
    colours.restore(parts, form, exceptions)
    assert (parts[0][0] == made.ravel()).all()
    assert colours.convert([(images.pixels(60, 40).ravel(), FORM.stride)], form) is None


def test_a_decoder_that_rounds_green_otherwise_has_few_exceptions():
    form, converted = FORM._replace(colours=1), DECODED.ravel().copy()
    colours.convert([(converted, FORM.stride)], form)
    differences = converted.reshape(-1, 3)[:, 1:] @ np.array([256, 1])
    inside = (DECODED.reshape(-1, 3) > 0).all(axis=1) & (DECODED.reshape(-1, 3) < 255).all(axis=1)
    commonest = np.bincount(differences[inside]).argmax()
    made = DECODED.copy().reshape(-1, 3)
    is_other = inside & (differences == commonest)
    made[is_other, 1] -= 1
    parts = [(made.ravel().copy(), FORM.stride)]
    exceptions = colours.convert(parts, form)
    assert is_other.sum() > 9
    assert exceptions is not None and len(exceptions) < 3 * is_other.sum()
    colours.restore(parts, form, exceptions)
    assert (parts[0][0] == made.ravel()).all()


@pytest.mark.parametrize("exceptions", [b"\xff\xff\x01\1\2\3", b"\xe0\x12\1\2\3", b"\1\2\3", b"\x80"])
def test_impossible_exceptions_are_damage(exceptions):
    with pytest.raises(DamagedError):
        colours.restore([(np.zeros(7200, np.uint8), 180)], FORM._replace(colours=1), exceptions)


def test_a_layout_that_cannot_be_converted_is_damage():
    for form in (Layout(60, 8, 3, colours=3), Layout(60, 8, 1, colours=1), Layout(60, 16, 3, colours=1)):
        with pytest.raises(DamagedError, match="impossible"):
            Layout.read(io.BytesIO(form.to_bytes()), 21_600)
    assert Layout.read(io.BytesIO(FORM._replace(colours=2).to_bytes()), 7200) == FORM._replace(colours=2)
