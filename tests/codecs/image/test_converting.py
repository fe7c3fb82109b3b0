"""Images that a JPEG decoder made are coded as the blocks that it had, and come back byte for byte."""

import io

import numpy as np
import pytest

from squeeze.codecs.image import blocks, coder, converting, origin
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.image.sampling import WHOLE, Sampling, enlarge, find_sampling, reduce
from squeeze.codecs.jpeg.transform import FINE, FORWARD, INVERSE, forward, inverse
from squeeze.errors import DamagedError
from tests.makers import images
from tests.makers.cases import every
from tests.references import naive_image

SAMPLINGS = [Sampling(2, 2, 0, 0, 1), Sampling(1, 2, 0, 1, 1), Sampling(2, 1, 1, 0, 1), Sampling(2, 2, 1, 1, 0)]


def converted(made: np.ndarray, with_blocks: bool = True) -> tuple[converting.Converted, np.ndarray]:
    """Return what an image was made of, and its rows then."""
    form = Layout(made.shape[1], 8, made.shape[2])
    rows = made.flatten()
    return converting.convert([(rows, form.stride)], form, with_blocks), rows


@pytest.mark.parametrize(("channels", "full"), [(1, True), (3, False), (4, False)])
def test_an_image_from_blocks_is_much_smaller_by_them_and_comes_back(channels, full):
    made = images.from_blocks(112, 80, channels)
    form = Layout(112, 8, channels, prefix=5)
    data = np.concatenate([np.arange(5, dtype=np.uint8), made.ravel()])
    payload = coder.encode(data, form, full)
    _, other = coder._encode(data, form, full, None, False, False)
    assert payload is not None and other is not None and 3 * len(payload) < 2 * len(other)
    assert np.array_equal(coder.decode(payload, data.size), data)


@pytest.mark.parametrize(("sampling", "part"), every(2, [(one, part) for one in SAMPLINGS for part in (0, 1)]))
def test_blocks_are_found_in_whole_and_cropped_images(sampling, part):
    made = images.from_blocks(160, 144, 3, 1, sampling)
    made = made[13 * part : 144 - 9 * part, 6 * part : 160 - 5 * part]
    found, rows = converted(made)
    assert len(found.planes) == 3 and found.form.blocks
    luminance, first, second = found.planes
    assert (luminance.top, luminance.left) == ((5, 6) if part else (0, 0))
    assert first.sampling == second.sampling
    assert (first.sampling.down, first.sampling.across) == (sampling.down, sampling.across)
    assert np.count_nonzero(rows) < rows.size // 8
    converting.restore([(rows, 3 * made.shape[1])], found)
    assert np.array_equal(rows, made.ravel())


def test_the_steps_of_blocks_are_found():
    found, _ = converted(images.from_blocks(160, 160, 1, 2))
    (plane,) = found.planes
    (expected,) = (np.maximum(np.add.outer(np.arange(8), np.arange(8)).ravel() * 3, 5),)
    is_used = np.abs(plane.coefficients).max(axis=0) > 1
    assert np.count_nonzero(is_used) > 9
    assert np.array_equal(plane.steps[is_used], expected[is_used])


def test_a_library_that_decodes_jpeg_makes_such_images():
    library = pytest.importorskip("PIL.Image")
    for channels, more in ((3, 0), (3, 2), (1, 0)):
        file = io.BytesIO()
        pixels = images.pixels(176, 144, channels)
        library.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(
            file, "jpeg", quality=85, **({"subsampling": more} if channels > 1 else {})
        )
        made = np.asarray(library.open(file)).reshape(144, 176, channels)
        found, rows = converted(made)
        assert found.planes, (channels, more)
        assert np.count_nonzero(rows) < rows.size // 8


@pytest.mark.parametrize("made", [images.pixels(80, 64, 1), images.pixels(80, 64, 3), images.decoded(80, 64)])
def test_other_images_have_no_blocks(made):
    found, _ = converted(made)
    assert not found.planes and not found.form.blocks


def test_blocks_that_pay_less_than_pixels_are_left_out(monkeypatch):
    made = images.from_blocks(64, 64, 1)
    data, form = made.ravel(), Layout(64, 8, 1)
    monkeypatch.setattr(blocks, "to_bytes", lambda planes: bytes(5000 * len(planes)))
    payload = coder.encode(data, form, False)
    assert payload is not None and len(payload) < 4096
    assert np.array_equal(coder.decode(payload, data.size), data)


@pytest.mark.parametrize(
    "made", [np.full((64, 64, 1), 90, np.uint8), np.repeat(np.uint8([[[0]], [[255]]]), 40, 0).repeat(64, 1)]
)
def test_simple_images_are_not_larger_by_blocks(made):
    data, form = made.ravel(), Layout(64, 8, 1)
    payload, (_, other) = coder.encode(data, form, False), coder._encode(data, form, False, None, False, False)
    assert payload is not None and other is not None and len(payload) <= len(other)


def test_coefficients_and_pixels_are_inverse():
    random, work, pixels, again = np.random.default_rng(0), np.zeros(64, np.int64), *np.zeros((2, 64), np.int64)
    block = random.integers(-20, 20, 64)
    inverse.py_func(block, np.full(64, 8), INVERSE, work, pixels)
    forward.py_func(pixels, FORWARD, work, again)
    assert np.abs(again / FINE - 8 * block).max() < 3


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_plane_that_was_made_larger_is_made_smaller_again(sampling):
    small = images.pixels(40, 36, 1)[:, :, 0]
    shape = small.shape[0] * sampling.down - sampling.top, small.shape[1] * sampling.across - sampling.left
    plane, is_known = enlarge(small, shape, sampling), np.ones(shape, np.bool_)
    again = enlarge(reduce(plane, is_known, sampling), shape, sampling)
    assert np.count_nonzero(again != plane) < plane.size // 50
    assert find_sampling([plane], is_known) == sampling
    assert find_sampling([images.pixels(40, 36, 1)[:, :, 0]], np.ones((36, 40), np.bool_)) == WHOLE


@pytest.mark.parametrize(("channels", "filtered"), [(1, 0), (3, 1)])
@pytest.mark.parametrize(
    "sampling", [SAMPLINGS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in SAMPLINGS[1:])]
)
def test_images_with_blocks_decode_by_the_specification(channels, filtered, sampling):
    if channels == 1 and sampling != SAMPLINGS[0]:
        pytest.skip("grey has no sampling")
    made = images.from_blocks(48, 40, channels, 3, sampling)
    made[20, 20] ^= 3
    form = Layout(48, 8, channels, filtered=filtered, padding=0 if filtered else 2, prefix=3)
    rows = np.pad(made.reshape(40, -1), ((0, 0), (0, form.padding)))
    body = images.filtered(rows, form.pixel, [4, 1]) if filtered else rows.tobytes()
    data = np.frombuffer(b"abc" + body, np.uint8)
    payload = coder.encode(data, form, False)
    assert payload is not None and payload[2] == 3 + 8
    assert naive_image.decode(payload, data.size) == data.tobytes()
    assert np.array_equal(coder.decode(payload, data.size), data)


@pytest.mark.parametrize("places", [b"\x00\x40", b"\x20\x00", b"\x01\x00", b"\x02\x00", b"\x0c\x00", b"\x00"])
def test_impossible_places_of_blocks_are_damage(places):
    with pytest.raises(DamagedError):
        blocks.read(io.BytesIO(places), 1, (40, 40))


@pytest.mark.parametrize(
    ("form", "length"),
    [
        (Layout(15, 8, 1, blocks=1), 15 * 40),
        (Layout(16, 8, 1, blocks=1), 16 * 15),
        (Layout(16, 8, 1, blocks=1), 16 * 40 - 1),
        (Layout(16, 8, 3, blocks=1), 48 * 40),
        (Layout(16, 8, 1, indexed=1, blocks=1), 16 * 40),
        (Layout(16, 16, 1, blocks=1), 32 * 40),
        (Layout(16, 8, 1, blocks=2), 16 * 40),
    ],
)
def test_a_layout_that_cannot_have_blocks_is_damage(form, length):
    with pytest.raises(DamagedError):
        Layout.read(io.BytesIO(form.to_bytes()), length)


def test_planes_are_written_and_read():
    made = [
        blocks.Plane(np.ones(64, np.int64), 3, 5, sampling, np.zeros((0, 64), np.int16))
        for sampling in (WHOLE, *SAMPLINGS)
    ]
    for plane, again in zip(made, blocks.read(io.BytesIO(blocks.to_bytes(tuple(made))), 5, (50, 70)), strict=True):
        assert (plane.top, plane.left, plane.sampling) == (again.top, again.left, again.sampling)
        assert len(again.coefficients) == again.size((50, 70))[0] * again.size((50, 70))[1]


def test_small_images_and_dark_ones_are_not_searched():
    assert origin.find_planes([np.zeros((15, 40), np.uint8)], np.ones((15, 40), np.bool_)) is None
    assert origin.find_planes([np.zeros((40, 40), np.uint8)], np.zeros((40, 40), np.bool_)) is None
