"""The pixels of GIF images are found, and their codes come back as any encoder wrote them."""

import numpy as np
import pytest

from squeeze.codecs.image.layout import Layout
from squeeze.codecs.parse import lzw
from squeeze.codecs.parse.gif import Gif
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from tests.codecs.parse import trees
from tests.makers import gifs, inputs
from tests.references import naive_gif

WIDTH, HEIGHT = 60, 50
_X, _Y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
PIXELS = (
    (np.hypot(_X - 30, _Y - 20) / 3).astype(np.uint8)
    ^ (np.frombuffer(inputs.random_bytes(3_000), np.uint8).reshape(HEIGHT, WIDTH) > 250)
).tobytes()
NOISE = inputs.random_bytes(12_000)


def streams() -> dict[str, bytes]:
    found = {f"cleared at {count}": gifs.packed(gifs.codes_of(NOISE, 8, count), 8) for count in (260, 4095, 4096, 4097)}
    codes = gifs.codes_of(PIXELS, 8)
    return found | {
        "mistakes": gifs.packed(gifs.codes_of(PIXELS, 8, 4096, 40), 8),
        "no end": gifs.packed(codes[:-1], 8),
        "cleared twice": gifs.packed(
            [
                256,
                *codes,
            ],
            8,
        ),
        "more after the end": gifs.packed(codes, 8) + b"more",
        "few colours": gifs.packed(gifs.codes_of(bytes(byte & 3 for byte in PIXELS), 2), 2),
    }


STREAMS = streams()


def opened(data: bytes) -> list:
    wrapper = Gif()
    return [wrapper.open(data, place, Room(1 << 20)) for place in wrapper.find(data)]


@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_encoders_come_back(name):
    bits = 2 if name == "few colours" else 8
    data = gifs.gif(WIDTH, [gifs.image(WIDTH, STREAMS[name], bits, HEIGHT, block=255 - bits)])
    (found,) = opened(data)
    assert found.content.tobytes() in (PIXELS, NOISE, bytes(byte & 3 for byte in PIXELS))
    closed = Gif().close(found.content, found.content[:0], found.extra).tobytes()
    assert closed == data[found.start : found.start + found.size]
    assert closed == naive_gif.close(found.content.tobytes(), found.extra)


@pytest.mark.parametrize("name", ["cleared at 4096", "cleared at 4097", "few colours"])
def test_usual_encoders_cost_ten_bytes(name):
    bits = 2 if name == "few colours" else 8
    (found,) = opened(gifs.gif(WIDTH, [gifs.image(WIDTH, STREAMS[name], bits, HEIGHT)]))
    assert len(found.extra) <= 10


def test_rows_of_an_interlaced_image_are_put_in_order():
    stream = gifs.packed(gifs.codes_of(gifs.interlaced(PIXELS, WIDTH), 8), 8)
    (found,) = opened(gifs.gif(WIDTH, [gifs.image(WIDTH, stream, 8, HEIGHT, interlaced=True)]))
    assert found.content.tobytes() == PIXELS
    assert found.content_kind.form == tuple(Layout(WIDTH, 8, 1, indexed=1))
    assert naive_gif.close(PIXELS, found.extra) == gifs.image(WIDTH, stream, 8, HEIGHT, interlaced=True)[10:]


def test_all_images_of_a_file_are_found():
    images = [gifs.image(WIDTH, STREAMS[name], 8, HEIGHT) for name in ("cleared at 4095", "mistakes")]
    data = b"before" + gifs.gif(WIDTH, images) + b"after"
    root = trees.opened(data)
    assert [child.node.own.tobytes() for child in root.children] == [NOISE, PIXELS]


def test_codes_without_strings_stay_closed():
    codes = [code for at in range(0, 300, 100) for code in (256, *PIXELS[at : at + 100])]
    data = gifs.gif(WIDTH, [gifs.image(WIDTH, gifs.packed([*codes, 257], 8), 8, 5)])
    assert opened(data) == [None]


def test_cut_and_wrong_files_stay_closed():
    data = gifs.gif(WIDTH, [gifs.image(WIDTH, STREAMS["cleared at 4096"], 8, HEIGHT)])
    for size in range(0, len(data), 499):
        assert all(found is None for found in opened(data[:size]))
    assert opened(data.replace(b"\xff", b"\xfe")) in ([], [None])


@pytest.mark.parametrize(
    "extra",
    [
        b"",
        b"\x09\0\xff\0\0\0",
        b"\x08\0\0\x80\x20\0\0",
        b"\x08\x07\xff\x80\x20\0\0",
        b"\x08\0\xff\x02\0\0",
        b"\x08\0\xff\x80\x20\x01\0\0\0",
        b"\x08\0\xff\x80\x20\x01\0\xff\xff\x03\0",
        b"\x08\0\xff\x80\x20\x01\x7f\x03\0",
    ],
)
def test_impossible_closings_are_refused(extra):
    content = np.frombuffer(PIXELS[:100], np.uint8)
    with pytest.raises(DamagedError):
        Gif().close(content, content[:0], extra)


def test_symbols_beyond_the_bits_are_refused():
    none = lzw.Differences(np.zeros(0, np.int64), np.zeros(0, np.int64))
    with pytest.raises(DamagedError):
        lzw.choose(np.array([0, 4, 1], np.uint8), 2, lzw.NEVER, none)
