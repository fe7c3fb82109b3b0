"""Images of every layout, without a library for images: pixels that look like a photo or like a drawing, and files."""

import struct
import zlib

import numpy as np

from squeeze.codecs.image.blocks import Plane, draw
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.image.sampling import WHOLE, Sampling
from squeeze.codecs.jpeg.transform import wide_of
from tests.makers import gifs


def pixels(width: int, height: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Return uint8 [height, width, channels]: smooth colours with a little noise, and rectangles of one colour."""
    random = np.random.default_rng(seed)
    y, x, c = np.mgrid[0:height, 0:width, 0:channels]
    waves = 90 * np.sin((x + 3 * c) / 17) * np.cos(y / 11) + 110 + 20 * c
    made = (waves + random.integers(0, 4, waves.shape)).clip(0, 255).astype(np.uint8)
    made[height // 4 : height // 2, width // 3 : width // 2] = 200
    return made


def decoded(width: int, height: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Return uint8 [height, width, channels]: `pixels` as a JPEG decoder makes them, a few of them drawn over."""
    y, cb, cr = np.moveaxis(pixels(width, height, 3, seed).astype(np.int64), 2, 0)
    made = _in_colour(2 * y - 100, cb // 2 + 68, 208 - cr // 2)
    made[height // 2, width // 2 : width // 2 + 2] ^= 85
    return made[:, :, :channels]


def _in_colour(y: np.ndarray, cb: np.ndarray, cr: np.ndarray) -> np.ndarray:
    """Return uint8 [height, width, 4]: red, green, blue and 255, from a luminance and two differences."""
    cb, cr = cb - 128, cr - 128
    red, blue = y + ((91881 * cr + 32768) >> 16), y + ((116130 * cb + 32768) >> 16)
    green = y + ((-22554 * cb - 46802 * cr + 32768) >> 16)
    return np.stack([red, green, blue, 0 * y + 255], axis=2).clip(0, 255).astype(np.uint8)


def from_blocks(width: int, height: int, channels: int = 3, seed: int = 0, sampling: Sampling = WHOLE) -> np.ndarray:
    """Return uint8 [height, width, channels] as a JPEG decoder makes it from blocks.

    Grey has one channel. In colour, `sampling` says how the colour differences are made larger.
    """
    random, planes = np.random.default_rng(seed), list[np.ndarray]()
    for number in range(min(channels, 3)):
        how, steps = sampling if number else WHOLE, np.maximum(np.add.outer(np.arange(8), np.arange(8)).ravel() * 3, 5)
        small = how.small(height, width)
        high, wide = wide_of(small[0], 0), wide_of(small[1], 0)
        drawn = np.rint(random.normal(0, 9, (high * wide, 64)) / (1 + np.arange(64) % 8 + np.arange(64) // 8) ** 2)
        drawn[:, 0] = np.rint((pixels(wide, high, 1, seed)[:, :, 0].ravel() - 128.0) / (1 + 2 * (number > 0)))
        plane = Plane(steps, 0, 0, how, drawn.astype(np.int16))
        planes.append(draw(plane, (height, width)).astype(np.int64))
    if channels == 1:
        return planes[0][:, :, None].astype(np.uint8)
    return _in_colour(*planes)[:, :, :channels]


def page(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Return uint8 [height, width] of 0 and 1: lines of rings of six shapes, as letters are, with some noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[-9:10, -7:8]
    shapes = [(abs(np.hypot(x, y * tall / 4) - size) < 1.5).astype(np.uint8) for size in (3, 5) for tall in (2, 3, 4)]
    made = np.zeros((height, width), np.uint8)
    for top in range(2, height - 19, 26):
        for left in range(3, width - 15, 17):
            made[top : top + 19, left : left + 15] = shapes[random.integers(6)]
    made[random.random(made.shape) < 0.0005] ^= 1
    return made


def deep_rows(width: int, height: int) -> np.ndarray:
    """Return uint8 [height, 2 * width]: grey samples of 16 bits, the high byte first."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(0).integers(0, 40, (height, width))
    made = 20_000 + 9_000 * np.sin(x / 17) * np.cos(y / 11) + noise
    return made.astype(np.uint16).astype(">u2").view(np.uint8)


def filtered(rows: np.ndarray, pixel: int, kinds: list[int]) -> bytes:
    """Return rows with the filters of PNG, which are taken from `kinds` in turn, written from its specification."""
    done, above = bytearray(), [0] * rows.shape[1]
    for y, row in enumerate(rows.tolist()):
        kind = kinds[y % len(kinds)]
        done.append(kind)
        for x, value in enumerate(row):
            a = row[x - pixel] if x >= pixel else 0
            b, c = above[x], above[x - pixel] if x >= pixel else 0
            near = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            done.append((value - (0, a, b, (a + b) // 2, near)[kind]) % 256)
        above = row
    return bytes(done)


def png(header: tuple[int, int, int, int, int], content: bytes, palette: bytes = b"") -> bytes:
    """Return a PNG file.

    Args:
        header: width, height, bits, colour type, and 1 if it is interlaced.
        content: the filtered rows.
        palette: three bytes for each colour, if it has one.
    """
    width, height, bits, colour, interlaced = header
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced))]
    chunks += [(b"PLTE", palette)] if palette else []
    chunks += [(b"IDAT", zlib.compress(content, 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def bmp(made: np.ndarray, palette: bytes = b"") -> bytes:
    """Return a bitmap of Windows of uint8 [height, width, channels]."""
    height, width, channels = made.shape
    padding = bytes(-width * channels % 4)
    body = b"".join(row.tobytes() + padding for row in made[::-1])
    info = struct.pack(
        "<IiiHHIIiiII", 40, width, height, 1, 8 * channels, 0, len(body), 2835, 2835, len(palette) // 4, 0
    )
    first = 14 + len(info) + len(palette)
    return struct.pack("<2sIHHI", b"BM", first + len(body), 0, 0, first) + info + palette + body


def _in_planes(piece: np.ndarray) -> np.ndarray:
    """Return uint8 [rows, bytes]: of each row the highest bytes first, as differences from a pixel before."""
    channels, big = piece.shape[2], np.ascontiguousarray(piece.astype(piece.dtype.newbyteorder(">")))
    rows = np.moveaxis(big.view(np.uint8).reshape(len(piece), -1, piece.itemsize), 2, 1).reshape(len(piece), -1)
    return np.concatenate([rows[:, :channels], rows[:, channels:] - rows[:, :-channels]], 1)


def tiff(
    made: np.ndarray,
    order: str = "<",
    strips: int = 1,
    gap: int = 0,
    tile: int = 0,
    coding: int = 1,
    predictor: int = 1,
) -> bytes:
    """Return a TIFF file of integers or floats [height, width, channels].

    Args:
        made: the samples.
        order: of the bytes of a number, "<" or ">".
        strips: in which they are stored.
        gap: bytes between them.
        tile: pixels of the side of a tile, a part of both sides; 0 for strips.
        coding: 1 for none, 5 for LZW, 8 for deflate.
        predictor: 1 for none, 2 for differences from the pixel to the left, 3 for bytes of floats in planes as well.
    """
    height, width, channels = made.shape
    bits, rows = 8 * made.itemsize, -(-height // strips)
    pieces = [made[at : at + rows] for at in range(0, height, rows)]
    if tile:
        corners = [(y, x) for y in range(0, height, tile) for x in range(0, width, tile)]
        pieces = [made[y : y + tile, x : x + tile] for y, x in corners]
    if predictor == 2:
        pieces = [np.diff(piece, axis=1, prepend=np.zeros_like(piece[:, :1])) for piece in pieces]
    if predictor == 3:
        pieces = [_in_planes(piece) for piece in pieces]
    coded = {1: bytes, 5: lambda part: gifs.packed_early(gifs.codes_of(part, 8, 4094)), 8: zlib.compress}[coding]
    ordered = np.dtype(np.uint8) if predictor == 3 else made.dtype.newbyteorder(order)
    parts = [coded(piece.astype(ordered).tobytes()) for piece in pieces]
    places, place = [], 8
    for part in parts:
        places.append(place)
        place += len(part) + gap
    tags = [(256, 4, [width]), (257, 4, [height]), (258, 3, [bits] * channels), (259, 3, [coding])]
    tags += [(262, 3, [2 if channels > 2 else 1])]
    sizes = [len(part) for part in parts]
    if tile:
        tags += [(277, 3, [channels]), (322, 3, [tile]), (323, 3, [tile]), (324, 4, places), (325, 4, sizes)]
    else:
        tags += [(273, 4, places), (277, 3, [channels]), (278, 4, [rows]), (279, 4, sizes)]
    if predictor != 1:
        tags += [(317, 3, [predictor])]
    if made.dtype.kind == "f":
        tags += [(339, 3, [3] * channels)]
    after, entries, extra = place + 2 + 12 * len(tags) + 4, b"", b""
    for tag, kind, values in tags:
        packed = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(packed) > 4:
            packed, extra = struct.pack(order + "I", after + len(extra)), extra + packed
        entries += struct.pack(order + "HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, place)
    body = b"".join(part + bytes(gap) for part in parts)
    return head + body + struct.pack(order + "H", len(tags)) + entries + bytes(4) + extra


def tga(made: np.ndarray) -> bytes:
    """Return a TGA file of uint8 [height, width, 3 or 4]."""
    height, width, channels = made.shape
    return struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, width, height, 8 * channels, 0x20) + made.tobytes()


def pnm(made: np.ndarray) -> bytes:
    """Return a PGM or PPM file of uint8 [height, width, 1 or 3]."""
    height, width, channels = made.shape
    return b"P%d\n# made\n%d %d\n255\n" % (6 if channels == 3 else 5, width, height) + made.tobytes()


def rows_of(form: Layout, height: int) -> bytes:
    """Return the bytes of an image that has such a layout."""
    made = pixels(max(form.stride, 1), height, 1)[:, :, 0]
    body = filtered(made, form.pixel, [4, 2, 1, 3, 0]) if form.filtered else made.tobytes()
    return bytes(range(form.prefix)) + body
