"""Coded images: sizes, round trips, thumbnails, damage, and their blocks in files."""

import io
import itertools
import random
from contextlib import suppress

import numpy as np
import pytest

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.jpeg import coder
from squeeze.codecs.jpeg.medium import Jpeg
from squeeze.codecs.stream.index import read_index
from squeeze.errors import SqueezeError
from tests.makers import inputs, jpegs, wrapped
from tests.makers.cases import every


def check(data):
    coded = coder.encode(data)
    assert coded is not None and coder.decode(coded, len(data)).tobytes() == data
    return len(coded) / len(data)


@pytest.mark.parametrize(("name", "mode"), every(2, itertools.product(jpegs.SETTINGS, ["L", "RGB", "CMYK"])))
def test_every_kind_of_image_comes_back(name, mode):
    assert check(jpegs.jpeg(120, 75, mode, **jpegs.SETTINGS[name])) < 1


def test_a_smooth_image_takes_a_quarter_less():
    assert check(jpegs.jpeg(320, 240, quality=90)) < 0.75


def test_a_large_image_that_other_models_make_smaller_too_is_coded_by_its_own():
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    y, x = np.mgrid[:1000, :1200]
    waves, out = (128 + 60 * np.sin(x / 90) + 50 * np.cos(y / 70)).astype(np.uint8), io.BytesIO()
    image.fromarray(waves).save(out, "JPEG", quality=95)
    stream = squeeze.compress(out.getvalue(), 3)
    assert [block.codec for block in read_index(io.BytesIO(stream))[0].blocks] == ["jpeg"]
    assert len(out.getvalue()) > 1 << 16 and squeeze.decompress(stream) == out.getvalue()


def test_the_scans_of_an_image_do_not_matter():
    """Progressive images have the same coefficients as sequential ones."""
    sizes = [len(coder.encode(jpegs.jpeg(200, 120, progressive=progressive))) for progressive in (False, True)]
    assert abs(sizes[0] - sizes[1]) < 200  # the longer header, with codes of its own


def test_a_thumbnail_in_the_header_is_opened():
    thumb, data = jpegs.jpeg(80, 64, quality=90), jpegs.jpeg(160, 128, seed=4)
    noise = inputs.random_bytes(len(thumb))
    sizes = [
        len(coder.encode(data[:2] + jpegs.segment(0xE1, b"Exif\0\0" + inner) + data[2:])) for inner in (thumb, noise)
    ]
    assert sizes[0] < sizes[1] - len(thumb) // 8
    check(data[:2] + jpegs.segment(0xE1, b"Exif\0\0" + thumb) + data[2:])


def test_an_image_of_any_coefficients_comes_back():
    check(jpegs.by_hand(40, 24, seed=7))


def test_what_is_no_image_is_not_coded():
    assert coder.encode(b"\xff\xd8\xff\xe0" + inputs.random_bytes(2000)) is None


@pytest.mark.parametrize("seed", range(6))
def test_damage_is_an_error_or_other_bytes_and_never_more_than_the_length(seed):
    data = jpegs.jpeg(96, 64, quality=80)
    coded, choice = bytearray(coder.encode(data)), random.Random(seed)
    for _ in range(12):
        damaged = bytearray(coded)
        for _ in range(choice.randint(1, 3)):
            damaged[choice.randrange(len(damaged) if seed % 2 else 60)] = choice.randrange(256)
        with suppress(SqueezeError):
            assert len(coder.decode(bytes(damaged), len(data))) == len(data)


def test_a_cut_payload_is_refused():
    data = jpegs.jpeg(96, 64)
    coded = coder.encode(data)
    for size in (0, 1, 10, len(coded) // 3):
        with pytest.raises(SqueezeError):
            coder.decode(coded[:size], len(data))


@pytest.mark.parametrize("level", [1, 3, 6])
def test_a_file_that_is_an_image_is_a_block_of_its_own(level):
    data = jpegs.jpeg(200, 150)
    coded = squeeze.compress(data, level=level)
    assert squeeze.decompress(coded) == data and len(coded) < 0.9 * len(data)
    assert [block.codec for block in read_index(io.BytesIO(coded))[0].blocks] == ["jpeg"]


def test_images_in_an_archive_and_between_text_are_found():
    photo, text = jpegs.jpeg(200, 150), inputs.words(20_000)
    data = text + photo + text + wrapped.zip_archive({"a.txt": text, "photo.jpg": photo})
    closed = squeeze.compress(data, level=1, parse=False)
    coded = squeeze.compress(data, level=1)
    assert squeeze.decompress(coded) == data and len(coded) < len(closed) - 2 * len(photo) // 8


def test_a_large_image_is_compared_by_a_part_of_it():
    data = jpegs.jpeg(640, 480, quality=95)
    start, end, _ = Jpeg().sample(len(data), Content("jpeg"), 1 << 14)
    assert end - start == 1 << 14
    coded = squeeze.compress(data, level=1, verify=False)
    assert len(data) > 1 << 16 and len(coded) < 0.9 * len(data) and squeeze.decompress(coded) == data


def test_progress_ends_at_the_size():
    data, told = jpegs.jpeg(120, 90), list[int]()
    coded = coder.encode(data, told.append)
    assert sum(told) == len(data)
    told.clear()
    coder.decode(coded, len(data), told.append)
    assert sum(told) == len(data)
