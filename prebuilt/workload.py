"""Calls of all kernels with the types that occur when files of every kind are coded."""

import io
import tempfile
from pathlib import Path

import squeeze
from squeeze.packing.codings import LEVELS as PACKING_LEVELS
from tests.golden.checkpoint import golden_checkpoint
from tests.golden.samples import STREAMS, tuned_dictionary
from tests.makers import images, inputs, programs, sounds, wrapped


def run() -> None:
    """Compress and restore files at all levels and checkpoints with all codings."""
    for golden in STREAMS.values():
        _round_trip(golden.make(), golden.raw)
    _dictionaries()
    _media()
    _large()
    _checkpoints()


def _round_trip(coded: bytes, raw: bytes) -> None:
    if squeeze.decompress(coded) != raw:
        raise AssertionError("a file does not decode to what was coded")


def _dictionaries() -> None:
    known = squeeze.Dictionary.from_bytes(tuned_dictionary())
    page = inputs.PROSE[:900]
    _round_trip_with(page, known, 5)
    pages = [inputs.words(600, seed=seed) for seed in range(12)]
    for level in (4, 5, 6):
        _round_trip_with(pages[0], squeeze.train(pages, level=level), level)


def _round_trip_with(raw: bytes, dictionary: squeeze.Dictionary, level: int) -> None:
    coded = squeeze.compress(raw, level, dictionary=dictionary)
    if squeeze.decompress(coded, dictionary=dictionary) != raw:
        raise AssertionError("a file does not decode to what was coded")


def _media() -> None:
    """Files with wrappers, images, sounds, arrays and programs in several forms."""
    rows = images.pixels(40, 30).reshape(30, -1)
    found = [
        images.png((40, 30, 8, 2, 0), images.filtered(rows, 3, [0, 1, 2, 3, 4])),
        images.bmp(images.pixels(40, 30)),
        images.tiff(images.pixels(40, 30)),
        images.tga(images.pixels(40, 30)),
        images.pnm(images.pixels(40, 30, 1)),
        *(sounds.wav(sounds.samples(900, channels, 8 * width), width) for channels in (1, 2) for width in (1, 2, 3)),
        *wrapped.documents().values(),
        *programs.images().values(),
    ]
    for raw in found:
        for level in (1, 3, 4):
            _round_trip(squeeze.compress(raw, level), raw)


def _large() -> None:
    """Blocks of a size at which threads and repeats are used, with and without verification."""
    text = inputs.words(60_000) + inputs.machine_code(3_000) + inputs.words(9_000)
    for level in (1, 3, 4, 5, 6):
        for threads in (1, 2):
            with io.BytesIO() as sink:
                squeeze.compress_stream(io.BytesIO(text), sink, level=level, threads=threads)
                coded = sink.getvalue()
            with io.BytesIO() as sink:
                squeeze.decompress_stream(io.BytesIO(coded), sink, threads=threads)
                if sink.getvalue() != text:
                    raise AssertionError("a file does not decode to what was coded")
    mixed = inputs.words(2_000) + inputs.machine_code(200)
    for level in (7, 8, 9):
        for threads in (1, 2):
            raw = inputs.PROSE + text[:9_000]
            _round_trip(squeeze.compress(raw, level, threads=threads), raw)
    for level in (1, 4, 6, 8):
        squeeze.explain(squeeze.compress(mixed, level, block_size=len(mixed)))


def _checkpoints() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, packed, restored = (folder / f"{part}.safetensors" for part in ("source", "packed", "restored"))
        base = folder / "base.safetensors"
        base.write_bytes(golden_checkpoint())
        for steps, zeros in ((0, False), (0, True), (3, False)):
            source.write_bytes(golden_checkpoint(steps=steps, zeros=zeros))
            for level in PACKING_LEVELS:
                squeeze.pack(source, packed, level=level, base=base if steps else None, overwrite=True)
                squeeze.unpack(packed, restored, base=base if steps else None, overwrite=True)
                if restored.read_bytes() != source.read_bytes():
                    raise AssertionError("a checkpoint does not unpack to what was packed")
