"""Files with wrappers and media as they are compressed: whatever their headers say, their bytes come back."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

import squeeze
from tests.fuzz import mutations
from tests.fuzz.judging import SAME, Wrong, one_of
from tests.makers import arrays, byte_code, classes, faxes, gifs, hdf5, images, inputs, jpegs, programs, quick, wrapped

_HEADER = 200  # bytes of a file in which most changes are
_EXTREMES = (0, 1, 2, 3, 7, 8, 15, 16, 127, 128, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_MOST = 1 << 16  # bytes of a changed file


@dataclass(frozen=True)
class Case:
    """A file, and the options with which it is compressed."""

    data: bytes
    options: dict[str, int]


class Opening:
    """Images of every format, archives, and texts in other forms, with other bytes around them."""

    seconds = 0.3

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.samples = name, [*_images(), *_wrappers()]
        self.read(Case(b"".join(self.samples), {"level": 1}), folder)

    def mutate(self, random: Random) -> Case:
        """Return a changed file, or several of them one after the other."""
        data = bytes(random.choice(self.samples))
        for _ in range(random.choice((1, 1, 2, 4))):
            data = one_of(
                random,
                (4, lambda r, data=data: _with_extreme(data, r)),
                (3, lambda r, data=data: mutations.damaged(data[:_HEADER], r) + data[_HEADER:]),
                (2, lambda r, data=data: mutations.damaged(data, r)),
                (1, lambda r, data=data: data + r.choice(self.samples)),
                (1, lambda r, data=data: inputs.words(r.randrange(90)) + data),
            )[:_MOST]
        options = {"level": random.choice((1, 1, 1, 3))}
        if random.random() < 0.3:
            options |= {"block_size": random.choice((700, 5_000)), "long": 1 << 20}
        return Case(data, options)

    def read(self, case: Case, folder: Path) -> str:
        """Compress a file, and compare what comes back; it is not verified, so that faults are seen here."""
        if squeeze.decompress(squeeze.compress(case.data, verify=False, threads=1, **case.options)) != case.data:
            raise Wrong("compression does not give the same bytes again")
        return SAME


def _images() -> Iterator[bytes]:
    grey, colours = images.pixels(40, 30, 1), images.pixels(33, 21)
    rows = np.packbits(grey[..., 0] > 120, axis=1)
    for bits, made in ((1, rows), (2, grey[:, :10, 0]), (4, grey[:, :20, 0]), (8, grey[..., 0])):
        yield images.png((40, 30, bits, 0, 0), images.filtered(made, 1, [0, 2, 4]))
    yield images.png((20, 30, 16, 0, 0), images.filtered(images.deep_rows(20, 30), 2, [1, 3]))
    yield images.png((33, 21, 8, 2, 0), images.filtered(colours.reshape(21, -1), 3, [4]))
    yield images.png((40, 30, 8, 0, 1), bytes(40 * 30 + 30 + 26))
    yield from (images.bmp(colours), images.bmp(grey, bytes(1024)), images.tga(colours), images.pnm(colours))
    yield from (images.tiff(colours), images.tiff(grey, ">", 3), images.pnm(grey))
    page = images.page(120, 60)
    yield b"P4\n120 60\n" + np.packbits(page, axis=1).tobytes()
    yield images.png((120, 60, 8, 3, 0), images.filtered(page, 1, [0, 2, 4]), bytes(6))
    for coding, predictor in ((5, 1), (5, 2), (8, 2)):
        yield images.tiff(colours, strips=2, coding=coding, predictor=predictor)
    yield from map(faxes.tiff, ("group 4", "group 3, mixed, filled"))
    yield from map(faxes.pdf, ("group 4, aligned", "group 3, ends of lines"))
    yield b"between".join(jpegs.by_hand(48, 32, seed) for seed in range(2))
    yield gifs.gif(40, [gifs.image(40, gifs.packed(gifs.codes_of(grey.tobytes(), 8), 8), 8, 30)])


def _wrappers() -> Iterator[bytes]:
    documents = wrapped.documents()
    yield from documents.values()
    yield from programs.images().values()
    yield b"\xff\xfe" + inputs.words(800).decode().encode("utf-16-le")
    yield base64.encodebytes(documents["gzip"])
    yield from wrapped.escaped().values()
    yield from (quick.parquet(2), quick.parquet(quick.LZ4), quick.lz4_file(inputs.words(3_000), 0x5C))
    yield from (quick.snappy_file(inputs.words(3_000)), quick.lz4_file_with_stored(inputs.random_bytes(900)))
    yield from (byte_code.by_hand("3.11"), byte_code.by_hand("3.8"), classes.class_file(20))
    yield hdf5.hdf5(np.frombuffer(arrays.heights(40, 50), ">i2").reshape(40, 50), 10)
    yield images.tiff(images.pixels(30, 40) / np.float32(7), coding=8, predictor=3)
    yield wrapped.zip_archive({"word/media/image1.png": documents["PNG"], "word/document.xml": inputs.words(2_000)})


def _with_extreme(data: bytes, random: Random) -> bytes:
    """Return data with a number of one to four bytes, most often in its header, replaced by an extreme one."""
    size, order = random.choice((1, 2, 4)), random.choice(("little", "big"))
    end = min(len(data), _HEADER if random.random() < 0.7 else len(data))
    place = random.randrange(max(end - size, 1))
    number = random.choice(_EXTREMES) & ((1 << 8 * size) - 1)
    return data[:place] + number.to_bytes(size, order) + data[place + size :]


FORMAT = Opening
