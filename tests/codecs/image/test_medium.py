"""Images in files: PNG images are opened to pixels, and others are found; all come back, and never larger."""

import io
import zlib

import numpy as np
import pytest

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.image import coder, medium
from squeeze.codecs.image.layout import LIGHT_MARK, Layout
from squeeze.codecs.image.medium import Image
from squeeze.codecs.stream import container, media, opened
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.measuring import measure
from squeeze.codecs.stream.resources import Resources
from tests.makers import images, inputs, wrapped


def interlaced(made: np.ndarray) -> bytes:
    """Return the filtered rows of the passes of Adam7."""
    passes = (0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2), (0, 1, 1, 2)
    parts = [made[top::down, first::step] for first, step, top, down in passes]
    pixel = made.shape[2]
    return b"".join(images.filtered(p.reshape(len(p), -1), pixel, [1, 4, 2]) for p in parts if p.size)


GREY, COLOURS, ALPHA = (images.pixels(60, 50, channels) for channels in (1, 3, 4))
DEEP = images.deep_rows(60, 50)
ROWS = COLOURS.reshape(50, -1)
PALETTE = bytes(range(48)) * 16
PNGS = {
    "grey": images.png((60, 50, 8, 0, 0), images.filtered(GREY[:, :, 0], 1, [1, 2, 4])),
    "colours": images.png((60, 50, 8, 2, 0), images.filtered(ROWS, 3, [4, 1, 2, 3, 0])),
    "alpha": images.png((60, 50, 8, 6, 0), images.filtered(ALPHA.reshape(50, -1), 4, [4])),
    "16 bits": images.png((60, 50, 16, 0, 0), images.filtered(DEEP, 2, [2])),
    "palette": images.png((60, 50, 8, 3, 0), images.filtered(GREY[:, :, 0] // 16, 1, [0]), PALETTE),
    "interlaced": images.png((60, 50, 8, 2, 1), interlaced(COLOURS)),
}
OTHERS = {"BMP": images.bmp(COLOURS), "PPM": images.pnm(COLOURS), "TIFF": images.tiff(GREY), "TGA": images.tga(ALPHA)}


def kinds_of(stream: bytes) -> set[int]:
    """Return the kinds of the blocks of a stream, and of those in them."""
    kinds = set()
    for block in (block for one in read_index(io.BytesIO(stream)) for block in one.blocks):
        start = block.coded_offset + block.coded_length - block.payload_length
        payload = stream[start : start + block.payload_length]
        kinds.add(block.kind)
        if block.kind == container.OPENED:
            kinds |= {part.kind for part in opened.read(payload, block.raw_length).blocks()}
    return kinds


def contents_of(stream: bytes) -> set[str]:
    """Return the names of the contents of blocks, and of those in opened ones, as `list -v` and `explain` have them."""
    listed = {block.content for one in read_index(io.BytesIO(stream)) for block in one.blocks}
    explained = {block.content.kind for block in measure(io.BytesIO(stream), Resources())}
    assert listed <= explained | {"opened wrappers"}
    return explained


@pytest.mark.parametrize(("name", "level"), [*((name, 1) for name in PNGS), ("palette", 4), ("alpha", 4)])
def test_a_png_image_is_coded_as_pixels(name, level):
    data = PNGS[name]
    stream = squeeze.compress(data, level)
    assert squeeze.decompress(stream) == data
    assert kinds_of(stream) >= {container.OPENED, container.IMAGE}
    assert len(stream) < 0.9 * len(squeeze.compress(data, level, parse=False))


@pytest.mark.parametrize(("name", "level"), [*((name, 1) for name in OTHERS), ("TIFF", 4)])
def test_an_image_without_compression_is_coded_as_pixels(name, level):
    data = OTHERS[name]
    stream = squeeze.compress(data, level)
    assert squeeze.decompress(stream) == data and container.IMAGE in kinds_of(stream)
    assert len(stream) < len(squeeze.compress(data, level, parse=False))


def test_images_within_other_files_are_coded_as_pixels():
    data = inputs.words(3_000) + PNGS["colours"] + OTHERS["BMP"] + inputs.words(3_000, 1)
    archive = wrapped.zip_archive({"a.bmp": OTHERS["BMP"], "b.txt": inputs.words(3_000)})
    for raw in (data, archive, zlib.compress(OTHERS["PPM"])):
        stream = squeeze.compress(raw, 1)
        assert squeeze.decompress(stream) == raw and container.IMAGE in kinds_of(stream)


def test_a_png_image_with_another_header_is_coded_as_before():
    wrong = PNGS["grey"].replace((60).to_bytes(4, "big"), (61).to_bytes(4, "big"), 1)
    stream = squeeze.compress(wrong, 1)
    assert squeeze.decompress(stream) == wrong and container.IMAGE not in kinds_of(stream)


@pytest.mark.parametrize("level", [1, 4])
def test_an_image_is_never_larger_than_without_its_model(level):
    noise = np.random.default_rng(1).integers(0, 256, (40, 40, 3)).astype(np.uint8)
    text = np.frombuffer(inputs.words(4_800), np.uint8).reshape(40, 40, 3)
    for made in (noise, text):
        data = images.bmp(made)
        assert len(squeeze.compress(data, level)) <= len(squeeze.compress(data, level, parse=False))


def test_a_sample_has_whole_rows():
    medium = media.of_block(container.IMAGE)
    assert medium
    form = Layout(100, 8, 3, filtered=1)
    start, end, content = medium.sample(301 * 1000, Content("image", 0, form), 9_000)
    assert start % 301 == (end - start) % 301 == 0 and content.form == form
    assert medium.sample(301, Content("image", 0, form), 9_000)[:2] == (0, 301)


def test_rows_of_a_filtered_image_are_sampled_with_what_is_above_them():
    made = images.pixels(100, 400, 3, seed=3)
    content = Content("image", 0, Layout(100, 8, 3, filtered=1))
    data = np.frombuffer(images.filtered(made.reshape(400, -1), 3, [2]), np.uint8)
    medium = media.of_content(content)
    sample = medium.sample(data.size, content, 9_000)
    whole = medium.encode(data, content, 1)
    assert sample[0] > 0 and medium.coded_size(data, sample, 1) < 1.5 * len(whole) * (sample[1] - sample[0]) / data.size


PAGE = images.page(800, 300)
PAGES = {
    "PBM": b"P4\n800 300\n" + np.packbits(PAGE, axis=1).tobytes(),
    "PNG of bits": images.png((800, 300, 1, 0, 0), images.filtered(np.packbits(1 - PAGE, axis=1), 1, [0])),
    "PNG of bytes": images.png((800, 300, 8, 0, 0), images.filtered(PAGE * np.uint8(255), 1, [0, 2])),
    "BMP": images.bmp(PAGE[:, :, None], bytes(1024)),
    "rows alone": np.packbits(PAGE, axis=1).tobytes(),
}


@pytest.mark.parametrize(("name", "level"), [*((name, 1) for name in PAGES), ("PBM", 4), ("PNG of bits", 4)])
def test_a_page_of_two_colours_is_coded_as_one(name, level):
    stream = squeeze.compress(PAGES[name], level)
    assert squeeze.decompress(stream) == PAGES[name]
    assert container.IMAGE in kinds_of(stream)
    assert "image of two colours" in contents_of(stream)
    assert len(stream) < 2_000  # 30,000 bytes of six shapes with a little noise


def test_large_images_have_a_smaller_model_at_level_1(monkeypatch):
    data, content = COLOURS.ravel(), Content("image", 0, Layout(60, 8, 3))
    page = np.where(COLOURS[..., 0] > 120, np.uint8(9), np.uint8(3)).ravel()
    other = Image().encode(data, content, 1)
    monkeypatch.setattr(medium, "_LARGE", data.size // 4)
    light, second = (Image().encode(data, content, level) for level in (1, 2))
    assert other == second and light[0] == LIGHT_MARK
    assert len(second) < len(light) < 1.1 * len(second)
    assert np.array_equal(coder.decode(light, data.size), data)
    assert Image().encode(page, Content("image", 0, Layout(60, 8, 1)), 1)[0] == 2
    assert Image().name_of(light) == "image" and Image().name_of(b"\2") == "image of two colours"
