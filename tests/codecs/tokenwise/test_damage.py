"""Damaged and forged files of the language model give an error or the right bytes."""

import io
import threading

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream import container, decoding
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.index import read_index
from squeeze.lm import models
from squeeze.system.binary import varint
from tests.makers import inputs
from tests.makers.mutations import mutate
from tests.makers.tokenwise import TEXT, language_alone, settings_of, text_around_noise

DATA = TEXT[:500] + inputs.random_bytes(500) + TEXT[2_000:2_400]


@pytest.fixture(scope="module")
def coded(folder) -> bytes:
    return text_around_noise(folder, DATA, 500)


def outcome(data: bytes, threads: int = 1) -> bytes | None:
    try:
        return squeeze.decompress(data, threads=threads)
    except squeeze.SqueezeError:
        return None


def test_mutated_files_never_give_wrong_data(coded):
    generator = np.random.default_rng(5)
    for i in range(30):
        assert outcome(mutate(coded, generator), 1 + i % 2) in (None, DATA)


def test_cut_files_raise_and_give_nothing(coded):
    for size in [*range(0, 120, 3), *range(120, len(coded), 61), len(coded) - 1]:
        with pytest.raises(squeeze.SqueezeError):
            squeeze.decompress(coded[:size])


def test_a_changed_layout_never_gives_wrong_data(folder):
    """Change content, entries, lanes, window and lengths, which only the block's checksum covers."""
    with language_alone():
        coded = squeeze.compress(DATA[:500], 8, model=folder, lanes=3, window=32, block_size=500)
    block = read_index(io.BytesIO(coded))[0].blocks[0]
    source = io.BytesIO(coded)
    source.seek(block.coded_offset)
    header = container.read_block_header(source)
    start = block.coded_offset + header.size
    wrong = [b"\x00", b"\x01", b"\x02", b"\x03", b"\x7f", b"\xff", b"\xff\x7f", b"\xff" * 8, b"\xff" * 8 + b"\x7f"]
    for at in range(start, start + 14):
        for value in wrong[at % 2 :: 2]:
            damaged = coded[:at] + value + coded[at + len(value) :]
            assert outcome(damaged, 1 + at % 2) in (None, DATA[:500])


def _of(layout: tuple[int, ...]) -> bytes:
    """Return a payload's layout without repeats, by entries, lanes, window and lengths."""
    entries, count, *rest = layout
    return b"".join(map(varint, (entries, 2 * count, *rest)))


@pytest.mark.parametrize(
    "layout",
    [
        *((0, 0, 1), (0, 1, 1), (5, 0, 1), (1, 2, 1, 1), (2000, 1, 1), (9, 1, 0), (9, 1, 1 << 17), (9, 1, 1 << 60)),
        *((9, 2, 1, 0), (9, 2, 1, 1000), (9, 2, 1, 2000), (1100, 1025, 1, *[1] * 1024), (9, 1024, 1 << 12)),
    ],
)
def test_refuses_impossible_layouts(folder, layout):
    payload = b"\x01" + _of(layout) + bytes(50)
    with pytest.raises(squeeze.DamagedError):
        decoding.decode_block(container.Coded(container.TOKENWISE, payload), 1000, settings_of(folder, 1))


@pytest.mark.parametrize("rest", [b"", b"\x00" * 30, b"\xff" * 30, inputs.random_bytes(400)])
@pytest.mark.parametrize("layout", [(1, 1, 1), (9, 3, 1, 1, 2), (900, 1, 4), (900, 9, 1 << 13, *[100] * 8)])
def test_payloads_of_nonsense_end(folder, layout, rest):
    payload = b"\x01" + _of(layout) + rest
    for threads in (1, 2):
        block = container.Coded(container.TOKENWISE, payload)
        try:
            assert decoding.decode_block(block, 1000, settings_of(folder, threads)).size == 1000
        except squeeze.DamagedError:
            continue


def forged(coded: bytes, **changes: object) -> bytes:
    """Return the file with another header, whose check is right; the index after it gives another size."""
    header, size, *_ = container.read_header(io.BytesIO(coded))
    text = {key: value for key, value in {**header, **changes}.items() if value is not None}
    return container.header_bytes(text) + coded[size:]


def test_headers_that_name_another_model_or_too_little(coded, monkeypatch):
    monkeypatch.setattr(models, "bundled_path", lambda: None)  # whose identity takes long to compute
    weights = read_index(io.BytesIO(coded))[0].header["weights"]
    with pytest.raises(squeeze.ModelError):
        squeeze.decompress(forged(coded, weights="0" * 32))
    for changes in ({"weights": None}, {"model": None}, {"weights": 5}, {"model": 5}, {"more": 1}, {"level": 3}):
        with pytest.raises(squeeze.FormatError, match="use a newer squeeze"):
            squeeze.decompress(forged(coded, **changes))
    for wrong in (
        weights[:31],
        weights + "0",
        "../" + weights[3:],
        "*" * 32,
        weights[:8] + "\0" + weights[9:],
        "A" * 32,
    ):
        with pytest.raises(squeeze.FormatError, match="use a newer squeeze"):
            squeeze.decompress(forged(coded, weights=wrong))
    with pytest.raises(squeeze.DamagedError, match="names no level"):
        squeeze.decompress(forged(coded, level=None, numerics=None, model=None, weights=None))
    low = forged(coded, level=3, numerics=1, model=None, weights=None)
    with pytest.raises(squeeze.DamagedError, match="the header names none: the file is damaged"):
        squeeze.decompress(low)


def test_damage_ends_the_threads(coded):
    running = threading.active_count()
    block = read_index(io.BytesIO(coded))[0].blocks[0]
    for at in range(40, block.coded_length, 20):
        damaged = bytearray(coded)
        damaged[block.coded_offset + at] ^= 0x55
        assert outcome(bytes(damaged), threads=2) is None
    assert threading.active_count() == running


def test_salvage_restores_undamaged_blocks(coded):
    blocks = read_index(io.BytesIO(coded))[0].blocks
    damaged = bytearray(coded)
    damaged[blocks[0].coded_offset + blocks[0].coded_length // 2] ^= 1
    sink = io.BytesIO()
    totals = decompress_stream(io.BytesIO(bytes(damaged)), sink, salvage=True)
    assert sink.getvalue() == bytes(500) + DATA[500:]
    assert totals.damage[0] == "bytes 0 to 500 are lost: their block is damaged"
    assert totals.damage[1].startswith("the order of the other blocks in bytes 0 to 1400 is unproved: ")
