"""A .sqz file with images: layouts, prefixes and rows, and those of PNG in opened wrappers."""

from pathlib import Path

import numpy as np

from tests.fuzz.formats.sqz import Sqz
from tests.makers import images


class Image(Sqz):
    """Files of an image alone, with filters, of two colours, made by a JPEG decoder, and of several."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder, 1)

    def _inputs(self) -> list[tuple[bytes, int]]:
        colours, grey = images.pixels(33, 21), images.pixels(40, 30, 1)
        filtered = images.png((33, 21, 8, 2, 0), images.filtered(colours.reshape(21, -1), 3, [1, 4]))
        page = images.page(120, 60)
        bits = b"P4\n120 60\n" + np.packbits(page, axis=1).tobytes()
        drawn = images.png((120, 60, 8, 0, 0), images.filtered(page * np.uint8(90), 1, [0, 1, 2]))
        was_jpeg = images.decoded(24, 20)
        decoded = images.png((24, 20, 8, 2, 0), images.filtered(was_jpeg.reshape(20, -1), 3, [2, 1]))
        blocks = images.bmp(images.from_blocks(48, 32))
        files = [blocks, images.bmp(colours), images.tiff(grey), filtered, bits, drawn, decoded, images.bmp(was_jpeg)]
        return [*((file, 1 << 20) for file in files), (b"between".join(files), 1 << 20)]


FORMAT = Image
