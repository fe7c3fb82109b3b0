"""Calls of all kernels with the types that occur when files of every kind are coded, and checkpoints packed."""

import bz2
import io
import json
import quopri
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import numpy as np

import squeeze
from prebuilt import checkpoints
from squeeze.codecs.image.sampling import Sampling
from squeeze.codecs.stream import levels
from squeeze.lm import adapter, convert
from squeeze.numerics import rotation
from tests.golden.samples import COPIES, REPEATS, STREAMS, tuned_dictionary
from tests.golden.wrapped import WRAPPED
from tests.makers import arrays, faxes, images, inputs, jpegs, objects, programs, quick, sounds, wrapped

_ACCENTS = "Größe, été; " + inputs.words(900).decode() + " «déjà vu»\n" * 40


def _golden(*which: int) -> None:
    """Make and decode the golden files of some levels, whose names have them."""
    for name, golden in STREAMS.items():
        if int(name.split(".")[1]) in which:
            _round_trip(golden.make(), golden.raw)


def _round_trip(coded: bytes, raw: bytes) -> None:
    if squeeze.decompress(coded) != raw:
        raise AssertionError("a file does not decode to what was coded")


def _both_ways(raw: bytes, level: int, threads: int = 1, **options: int) -> None:
    """Compress data with verification, and restore it, as files are."""
    with io.BytesIO() as sink, io.BytesIO() as back:
        squeeze.compress_stream(io.BytesIO(raw), sink, level=level, threads=threads, **options)
        sink.seek(0)
        squeeze.decompress_stream(sink, back, threads=threads)
        if back.getvalue() != raw:
            raise AssertionError("a file does not decode to what was coded")


def _dictionaries() -> None:
    known = squeeze.Dictionary.from_bytes(tuned_dictionary())
    _round_trip_with(inputs.PROSE[:900], known, 5)
    pages = [inputs.words(600, seed=seed) for seed in range(12)]
    for level in (4, 5, 6):
        _round_trip_with(pages[0], squeeze.train(pages, level=level), level)


def _round_trip_with(raw: bytes, dictionary: squeeze.Dictionary, level: int) -> None:
    coded = squeeze.compress(raw, level, dictionary=dictionary)
    if squeeze.decompress(coded, dictionary=dictionary) != raw:
        raise AssertionError("a file does not decode to what was coded")


def _media() -> list[bytes]:
    """Return files with wrappers, images, sounds, arrays and programs in several forms."""
    rows, deep = images.pixels(40, 30).reshape(30, -1), images.deep_rows(40, 30)
    made = images.pixels(40, 30, 1).astype(np.uint16) * 257
    deflated = zlib.compressobj(9, zlib.DEFLATED, -15)
    return [
        images.png((40, 30, 8, 2, 0), images.filtered(rows, 3, [0, 1, 2, 3, 4])),
        images.png((40, 30, 16, 0, 0), images.filtered(deep, 2, [1, 4])),
        images.bmp(images.pixels(40, 30)),
        images.bmp(images.decoded(40, 30)),
        images.pnm(images.from_blocks(64, 64, 3, 0, Sampling(2, 2, 0, 0, 1))),
        images.bmp(images.pixels(40, 30, 1), bytes(64)),
        images.tiff(images.pixels(40, 30)),
        images.tiff(made, ">"),
        images.tga(images.pixels(40, 30, 4)),
        images.pnm(images.pixels(40, 30, 1)),
        b"P4\n400 90\n" + np.packbits(images.page(400, 90), axis=1).tobytes(),
        images.png((400, 90, 8, 0, 0), images.filtered(images.page(400, 90), 1, [0, 2])),
        faxes.tiff("group 3, mixed, filled", images.page(400, 90)),
        jpegs.by_hand(48, 32),
        *(sounds.wav(sounds.samples(900, channels, 8 * width), width) for channels in (1, 2) for width in (1, 2, 3)),
        sounds.aiff(sounds.samples(900, 2, 16), 2),
        arrays.npy("<f4", "300, 3", arrays.points(300)),
        arrays.npy("<f8", "900,", arrays.walk(900)),
        arrays.npy("<u2", "900,", arrays.ramp(900)),
        arrays.npy(">u4", "900,", arrays.keys(900)),
        arrays.npy("<i8", "900,", arrays.times(900)),
        bz2.compress(inputs.words(4_000)),
        bytes(99) + deflated.compress(inputs.words(9_000)) + deflated.flush() + bytes(99),
        quote(_ACCENTS).encode(),
        quopri.encodestring(_ACCENTS.encode()),
        json.dumps(_ACCENTS).encode(),
        WRAPPED,
        *wrapped.documents().values(),
        *programs.images().values(),
        *objects.object_files().values(),
        quick.parquet(2),
        quick.parquet(quick.LZ4),
        quick.lz4_file(inputs.words(70_000)),
        quick.snappy_file(inputs.words(900)),
    ]


def _media_of_levels(*which: int) -> None:
    found = _media()
    some = (*found[:2], found[8], found[11], found[17], WRAPPED, programs.elf(functions=40))
    for level in which:
        for raw in found if level in (1, 3, 4) else some:
            _both_ways(raw, level)


def _large(*which: int) -> None:
    """Blocks of a size at which threads and repeats are used, with and without verification."""
    text = inputs.words(60_000) + inputs.machine_code(3_000) + inputs.words(9_000)
    for level in which:
        for threads in (1, 2):
            _both_ways(text if level < 7 else inputs.PROSE + text[:9_000], level, threads)
        if level >= 7:
            _both_ways(REPEATS, level)


def _told() -> None:
    """Copies between blocks, and what each bit cost."""
    for level in (1, 3, 8):
        _both_ways(COPIES, level, block_size=2_000, long=1 << 20)
    mixed = inputs.words(2_000) + inputs.machine_code(200)
    for level in levels.LEVELS:
        squeeze.explain(squeeze.compress(mixed, level, block_size=len(mixed)))


def _opened() -> None:
    """Parts of files, and of several blocks."""
    raw = inputs.words(9_000)
    with TemporaryDirectory() as name:
        path = Path(name, "text.sqz")
        for level in (1, 3, 4, 6, 8):
            path.write_bytes(squeeze.compress(raw, level, block_size=4_000))
            with squeeze.open(path) as opened:
                opened.seek(5_000)
                if opened.read(99) != raw[5_000:5_099]:
                    raise AssertionError("a part of a file is not that of what was coded")


def _converted() -> None:
    """Rotate and quantise weights, and add an adapter, as when a language model is used for the first time."""
    drawn = np.random.default_rng(1).normal(size=(64, 96)).astype(np.float32)
    turned = rotation.rotate_rows(rotation.rotate(drawn, 32), 64)
    if not np.allclose(rotation.rotate_rows(rotation.rotate(turned, 32), 64), drawn, atol=1e-4):
        raise AssertionError("a rotation is not its own inverse")
    change = adapter.round_factors(drawn[:4], drawn[:, :4])
    if not np.allclose(change.rows(0, 64), drawn[:, :4] @ drawn[:4], atol=1):
        raise AssertionError("an adapter's change is not the product of its factors")
    values, scales = np.empty(drawn.shape, np.int8), np.empty(len(drawn), np.float32)
    if not convert.round_rows(drawn, values, scales) or not np.allclose(values * scales[:, None], drawn, atol=0.02):
        raise AssertionError("weights are not their integers times the scale")


# Each is run in a process of its own. Together they code files at all levels, and checkpoints with all codings.
PARTS: dict[str, Callable[[], None]] = {
    "tokens": partial(_golden, 7, 8, 9),
    "large-tokens": partial(_large, 7, 8, 9),
    "media-deep": partial(_media_of_levels, 5, 6, 8),
    "deep": partial(_golden, 4, 5, 6),
    "large-deep": partial(_large, 4, 5, 6),
    "dictionaries": _dictionaries,
    "media": partial(_media_of_levels, 1, 2, 3, 4),
    "told": _told,
    "checkpoints": checkpoints.run,
    "bytes": partial(_golden, 1, 2, 3),
    "large": partial(_large, 1, 2, 3),
    "opened": _opened,
    "converted": _converted,
}
