"""Images with a palette have ranks of colours by brightness, and come back."""

import struct
import zlib

import numpy as np
import pytest

from squeeze.codecs.parse import tree
from squeeze.codecs.parse.gif import Gif, RankedGif
from squeeze.codecs.parse.palette import FARTHEST, Palette, ranks_of
from squeeze.codecs.parse.streams import Png, RankedPng
from squeeze.errors import DamagedError
from squeeze.system.binary import varint
from tests.codecs.parse import trees
from tests.makers import gifs, images, inputs
from tests.references import naive_opened

GREY = images.pixels(64, 48, 1)[:, :, 0] // 2
SHUFFLED = np.random.default_rng(5).permutation(128).astype(np.uint8)
NUMBERS = SHUFFLED[GREY]
COLOURS = np.repeat(np.argsort(SHUFFLED).astype(np.uint8) * 2, 3).tobytes()


def png(numbers: np.ndarray, colours: bytes, filters: int = 0, between: bytes = b"") -> bytes:
    rows = np.pad(numbers, ((0, 0), (1, 0)), constant_values=filters).tobytes()
    header = struct.pack(">IIBBBBB", *numbers.shape[::-1], 8, 3, 0, 0, 0)
    chunks = (b"IHDR" + header, b"PLTE" + colours, b"tEXt" + between, b"IDAT" + zlib.compress(rows), b"IEND")
    parts = (struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def gif(numbers: np.ndarray, colours: bytes, local: bytes = b"") -> bytes:
    made = gifs.packed(gifs.codes_of(numbers.tobytes(), 7), 7)
    image = gifs.image(numbers.shape[1], made, 7, len(numbers))
    if local:
        image = image[:9] + b"\x86" + local + image[10:]
    header = struct.pack("<6sHHBBB", b"GIF89a", *numbers.shape[::-1], 0x86 if colours else 0, 0, 0)
    return header + colours + image + b";"


def opened(data: bytes) -> tree.Node:
    """Return the tree of data, which comes back as it was, also by the decoder of the specification."""
    root = trees.parsed(data)
    written, own = trees.written(root)
    assert tree.close(tree.read(written, own), len(data)).tobytes() == data
    plan = bytes(varint(len(written))) + written + varint(own.size) + b"\0"
    payload = b"\0" + b"".join(
        head + b"\1" + varint(len(part)) + part for head, part in ((b"", plan), (varint(1), own.tobytes()))
    )
    assert naive_opened.decode(payload, lambda *part: b"") == data
    return root


FILES = {
    "GIF": (gif(NUMBERS, COLOURS), RankedGif.kind),
    "GIF with a table for the image": (gif(NUMBERS, bytes(384), COLOURS), RankedGif.kind),
    "PNG": (png(NUMBERS, COLOURS), RankedPng.kind),
    "two images": (gif(NUMBERS, COLOURS)[:-1] + gif(NUMBERS, COLOURS)[13 + 384 :], RankedGif.kind),
}


@pytest.mark.parametrize("name", FILES)
def test_numbers_of_colours_become_ranks(name):
    data, kind = FILES[name]
    root = opened(b"before" + data)
    assert {child.found.kind for child in root.children} == {kind}
    content = root.children[0].node.own
    rows = content.reshape(-1, 65)[:, 1:] if kind == RankedPng.kind else content.reshape(-1, 64)
    assert np.array_equal(rows, GREY)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (gif(GREY, bytes(range(128)) * 3), Gif.kind),
        (gif(NUMBERS, b""), Gif.kind),
        (png(GREY, np.repeat(np.arange(128, dtype=np.uint8), 3).tobytes()), Png.kind),
        (png(NUMBERS, COLOURS, 1), Png.kind),
        (png(NUMBERS, COLOURS[:-1]), Png.kind),
        (png(NUMBERS, COLOURS, between=inputs.random_bytes(FARTHEST)), Png.kind),
    ],
    ids=["in order", "no palette", "in order, PNG", "filters", "a cut palette", "a far palette"],
)
def test_others_keep_their_numbers(data, kind):
    assert [child.found.kind for child in opened(data).children] == [kind]


def test_a_palette_in_a_wrapper_is_not_used():
    hidden = zlib.compress(bytes(range(64)) * 20)
    data = gif(NUMBERS, COLOURS)
    data = data[:13] + (hidden + data[13:])[:384] + data[13 + 384 :]
    assert RankedGif.kind not in [child.found.kind for child in opened(data).children]


def test_a_comment_like_a_header_right_before_an_image_is_no_palette():
    # The palette would be in the image itself: where a header has flags, there is the low byte of its width.
    chance = np.random.default_rng(3)
    grey = np.add.outer(np.arange(60), np.arange(130)) // 9 % 3
    for _ in range(20):
        numbers = chance.permutation(8).astype(np.uint8)[grey]
        made = gifs.image(130, gifs.packed(gifs.codes_of(numbers.tobytes(), 3), 3), 3, 60)
        data = b"GIF89a" + bytes(7) + b"\x21\xfe\4GIF8\0" + made + b";"
        assert [child.found.kind for child in opened(data).children] == [Gif.kind]


@pytest.mark.parametrize("shape", [(1, 400), (48, 64)])
def test_ranks_that_are_no_nearer_are_not_used(shape):
    numbers = np.full(shape, 3, np.uint8)
    assert [child.found.kind for child in opened(gif(numbers, COLOURS)).children] in ([Gif.kind], [])
    made = png(np.random.default_rng(1).integers(0, 9, (1, 400), np.uint8), COLOURS)
    assert [child.found.kind for child in opened(made).children] == [Png.kind]


def test_ranks_are_stable_and_complete():
    colours = np.array([[9, 9, 9], [0, 0, 0], [9, 9, 9], [255, 0, 0]], np.uint8)
    assert ranks_of(colours)[:5].tolist() == [1, 0, 2, 3, 4]
    assert sorted(ranks_of(colours)) == list(range(256))


@pytest.mark.parametrize(
    "extra", [b"", varint(FARTHEST + 1) + b"\7\0", b"\x05", b"\x05\x7f\0", b"\x00\x7f\x07", b"\xff\x7f\x01\0"]
)
@pytest.mark.parametrize("kind", [RankedGif.kind, RankedPng.kind])
def test_impossible_palettes_are_refused(kind, extra):
    own = np.frombuffer(COLOURS[:100] + NUMBERS.tobytes(), np.uint8)
    node = varint(NUMBERS.size) + b"\0"
    written = varint(100) + b"\1" + varint(100) + bytes([kind]) + node + varint(len(extra)) + extra + b"\0"
    with pytest.raises(DamagedError):
        tree.close(tree.read(written, own), 1 << 20)


def test_a_palette_says_what_it_is():
    palette = Palette(300, 256, 65)
    assert Palette.read(palette.to_bytes() + b"rest") == (palette, b"rest")
