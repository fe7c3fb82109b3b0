"""Repeats far apart are found in a stream, and blocks that hold them decode by every way of reading."""

import io
from functools import cache
from random import Random

import numpy as np
import pytest

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.stream import container, integers, matcher, repeats
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.copies import Copies, Literals, restore
from squeeze.codecs.stream.decoding import decode_block
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.stream.settings import resolve_settings
from squeeze.errors import DamagedError, FormatError, LimitError, OptionError
from squeeze.recipes.reports.explanation.explain import explain
from squeeze.system.binary import varint
from squeeze.system.limits import Limits
from tests.makers import inputs, wrapped
from tests.references import naive_repeats

MIB = 1 << 20
SETTINGS, _ = resolve_settings(1, 1, None, None, LanguageOptions())
NOISE, TEXT = inputs.random_bytes(9_000), inputs.words(9_000)
EDITED = TEXT[:3_000] + b" an insertion " + TEXT[3_100:8_000]
DATA = TEXT + NOISE + EDITED + NOISE[500:8_500] + b"new" + EDITED[100:7_000] + inputs.records(40)
DOCUMENTS = wrapped.documents()
RUN = inputs.random_bytes(40, 9) * 90
CASES = {
    "versions": (DATA, 4_000),
    "large blocks": (DATA, 20_000),
    "twice": (NOISE * 2, 9_000),
    "stored": (NOISE + inputs.random_bytes(3_000, 5) + NOISE, 5_000),
    "archives": (DOCUMENTS["zip"] + NOISE + DOCUMENTS["zip"] + DOCUMENTS["nested"], 12_000),
    "images": (DOCUMENTS["PNG"] + TEXT + DOCUMENTS["PNG"], 5_000),
    "periods": (NOISE + RUN + NOISE[:4_000] + RUN + NOISE[3_000:] + RUN, 1_000),
    "runs": (TEXT + bytes(20_000) + NOISE + bytes(9_000) + TEXT, 7_000),
}
NAMES = pytest.mark.parametrize("name", CASES)


@cache
def compressed(name="versions", **options):
    raw, size = CASES[name]
    return squeeze.compress(raw, 1, block_size=size, **{"long": MIB, **options})


def blocks_of(coded):
    return [block for stream in read_index(io.BytesIO(coded)) for block in stream.blocks]


def payload_of(coded, block):
    return coded[block.coded_offset + block.coded_length - block.payload_length :][: block.payload_length]


@NAMES
def test_repeats_come_back_and_are_coded_once(name):
    raw, _ = CASES[name]
    coded, without = compressed(name), compressed(name, long=False)
    assert squeeze.decompress(coded) == squeeze.decompress(coded, threads=3) == raw
    assert any(block.kind == container.REPEATS for block in blocks_of(coded))
    assert len(coded) < (0.6 if name == "twice" else 1) * len(without)


@NAMES
def test_blocks_decode_by_the_specification(name):
    raw, coded = b"", compressed(name)

    def decode(kind, payload, length):
        return decode_block(Coded(kind, payload), length, SETTINGS).tobytes()

    for block in blocks_of(coded):
        payload = payload_of(coded, block)
        if block.kind == container.REPEATS:
            raw += naive_repeats.decode(payload, block.raw_length, raw, 1, decode)
        else:
            raw += decode(block.kind, payload, block.raw_length)
    assert raw == CASES[name][0]


def test_no_source_is_in_a_copy():
    coded, copied, found = compressed(), set(), 0
    for block in blocks_of(coded):
        if block.kind != container.REPEATS:
            continue
        copies = repeats.read(payload_of(coded, block), block.raw_length).copies
        rows = np.stack([copies.places + block.raw_offset, copies.lengths, copies.sources + block.raw_offset], 1)
        for place, length, source in rows.tolist():
            assert copied.isdisjoint(range(source, source + length))
            copied |= set(range(place, place + length))
            found += 1
    assert found > 4


def test_bytes_do_not_depend_on_threads_or_on_pipes():
    class Pipe(io.BytesIO):
        def seekable(self):
            return False

    raw, size = CASES["versions"]
    sinks = [io.BytesIO() for _ in range(2)]
    for sink, threads in zip(sinks, (1, 3), strict=True):
        squeeze.compress_stream(Pipe(raw), sink, level=1, block_size=size, long=MIB, threads=threads)
    assert sinks[0].getvalue() == sinks[1].getvalue() == compressed()
    out = Pipe()
    squeeze.decompress_stream(Pipe(sinks[0].getvalue()), out)
    assert out.getvalue() == raw


@NAMES
def test_any_place_is_read_alone(name):
    raw, random = CASES[name][0], Random(1)
    coded = squeeze.compress(TEXT, 2) + compressed(name) + compressed()  # sources count from the stream's start
    whole = TEXT + raw + DATA
    for _ in range(12):
        place = random.randrange(len(whole))
        with squeeze.open(io.BytesIO(coded)) as file:
            file.seek(place)
            assert file.read(300) == whole[place : place + 300]


def test_damage_is_named_in_the_blocks_that_repeat_it():
    coded = bytearray(compressed("stored"))
    first, *others = blocks_of(bytes(coded))
    coded[first.coded_offset + first.coded_length - 5] ^= 1
    sink = io.BytesIO()
    damage = squeeze.decompress_stream(io.BytesIO(bytes(coded)), sink, salvage=True).damage
    raw, size = CASES["stored"][0], first.raw_length
    last = next(block for block in others if block.kind == container.REPEATS)
    assert damage[0] == f"bytes 0 to {size} are lost: their block is damaged"
    assert (
        f"bytes {last.raw_offset} to {len(raw)} are lost: they repeat bytes 0 to {size}, whose block is damaged"
        in damage
    )
    assert sink.getvalue()[size : last.raw_offset] == raw[size : last.raw_offset]
    with pytest.raises(DamagedError, match="checksum"):
        squeeze.decompress(bytes(coded))


def test_sound_files_are_salvaged_whole():
    sink = io.BytesIO()
    assert squeeze.decompress_stream(io.BytesIO(compressed()), sink, salvage=True).damage == ()
    assert sink.getvalue() == DATA


def test_blocks_name_the_ranges_that_they_repeat():
    first, *others = blocks_of(compressed("twice"))
    assert first.sources == ()
    assert [(block.content, block.sources) for block in others] == [("stored and repeats", ((0, 9_000),))]


@NAMES
def test_explained_bytes_are_the_file(name):
    raw, _ = CASES[name]
    sink = io.BytesIO(compressed(name))
    explanation = explain(sink.getvalue())
    assert explanation.data == raw or name in ("archives", "images")
    assert any(block.content == "repeats" for block in explanation.blocks)


def test_data_without_repeats_costs_the_window_in_the_header():
    raw = TEXT[:4_000] + inputs.random_bytes(9_000, 7)
    coded = [squeeze.compress(raw, 1, block_size=5_000, long=long) for long in (MIB, False)]
    assert len(coded[0]) - len(coded[1]) == len(',"window":1')


def test_small_blocks_have_no_repeats_unless_they_are_asked_for():
    raw, size = CASES["twice"]
    assert all(block.kind != container.REPEATS for block in blocks_of(squeeze.compress(raw, 1, block_size=size)))
    found, _ = resolve_settings(1, 1, None, None, LanguageOptions())
    assert found.window == 1 << 28


@pytest.mark.parametrize("window", [1, MIB - 1, (1 << 40) + 1, -5])
def test_impossible_windows_are_refused(window):
    with pytest.raises(OptionError, match="a window of repeats must be from 1 MiB to 1 TiB, got"):
        squeeze.compress(DATA, 1, long=window)


def test_a_chunk_is_no_longer_than_a_block_may_be():
    most = container.MAX_BLOCK
    assert [matcher.longest(size) for size in (MIB, most // 4, most // 2, most)] == [4 * MIB, most, most, most]


def test_repeats_beyond_the_window_are_not_found():
    noise = np.random.default_rng(3).integers(0, 256, 3 * MIB, np.uint8).tobytes()
    chunks = list(matcher.chunks(NOISE, io.BytesIO(noise + NOISE).read, MIB, MIB, None))
    assert sum(chunk.data.size for chunk in chunks) == len(noise) + 2 * len(NOISE)
    assert all(chunk.copies is None for chunk in chunks)
    chunks = list(matcher.chunks(NOISE, io.BytesIO(noise + NOISE).read, MIB, 4 * MIB, None))
    assert chunks[-1].copies and chunks[-1].copies.removed > len(NOISE) - 100


def test_a_buffer_that_is_used_again_keeps_the_window():
    noise = np.random.default_rng(3).integers(0, 256, 3 * MIB // 2, np.uint8).tobytes()
    fresh = np.random.default_rng(4)
    file = io.BytesIO(b"".join(noise + fresh.integers(0, 256, MIB, np.uint8).tobytes() for _ in range(30)))
    raw, removed, done = file.getvalue(), 0, 0
    for chunk in matcher.chunks(file.read(MIB), file.read, MIB, 4 * MIB, None):
        if chunk.copies:
            removed += chunk.copies.removed
            for place, length, source in zip(
                chunk.copies.places, chunk.copies.lengths, chunk.copies.sources, strict=True
            ):
                assert raw[done + place :][:length] == raw[done + source :][:length]
        done += chunk.data.size
    assert done == len(raw)
    assert removed > 12 * len(noise)


def test_an_input_shorter_than_a_block_is_searched_if_much_of_it_repeats():
    noise = np.random.default_rng(5).integers(0, 256, 9 << 18, np.uint8).tobytes()
    coded = squeeze.compress(noise * 2, 1)
    assert len(coded) < 1.001 * len(noise)
    assert squeeze.decompress(coded) == noise * 2
    assert any(block.kind == container.REPEATS for block in blocks_of(coded))
    assert [matcher.pays_alone(noise + noise[: len(noise) // part], 8 * MIB) for part in (5, 9)] == [True, False]


def test_wrappers_that_are_new_stay_open_next_to_repeats():
    new = wrapped.zip_archive({"new.txt": inputs.words(20_000, seed=9)})
    raw = DOCUMENTS["zip"] + NOISE + DOCUMENTS["zip"] + new + NOISE
    coded = squeeze.compress(raw, 1, block_size=len(DOCUMENTS["zip"]) + len(NOISE), long=MIB)
    assert squeeze.decompress(coded) == raw
    assert [block.content for block in blocks_of(coded)][1:] == ["opened wrappers and repeats"]


def literals(raw, copies=None):
    return Literals(0, len(raw), np.frombuffer(raw, np.uint8), copies)


def as_copies(size, *rows):
    return Copies(size, *np.array(rows, np.int64).reshape(-1, 3).T.copy())


def test_a_source_in_a_copy_is_refused():
    before = Literals(0, 9_064, np.frombuffer(NOISE, np.uint8), as_copies(9_064, (5_000, 64, 100)))
    found, rest = as_copies(164, (100, 64, -9_064 + 4_990)), np.zeros(100, np.uint8)
    with pytest.raises(DamagedError, match="a block repeats bytes that another block repeats"):
        restore(found, rest, 9_064, lambda offset: before)
    found = as_copies(164, (100, 64, -9_064 + 4_900))
    assert restore(found, rest, 9_064, lambda offset: before)[100:].tobytes() == NOISE[4_900:4_964]


def test_the_example_of_the_specification():
    copies, none = as_copies(100, (0, 100, -100)), np.zeros(0, np.uint8)
    assert repeats.to_bytes(copies, none, None).hex(" ") == "01 00 64 01 03 80 52 50 01 00"


def test_a_source_may_reach_from_block_to_block():
    one, two = literals(NOISE[:500]), Literals(500, 300, np.frombuffer(NOISE[500:800], np.uint8))
    found = as_copies(300, (50, 250, -400))
    data = restore(found, np.frombuffer(TEXT[:50], np.uint8), 800, lambda offset: one if offset < 500 else two)
    assert data.tobytes() == TEXT[:50] + NOISE[400:650]


PAYLOADS = {
    "no copies": b"\0\0\0\1\x64" + NOISE[:100],
    "an empty range": b"\1\0\0\1\1\0\1\x44" + NOISE[:68],
    "too many copies": b"\1\0\x64\4\1\0\1\x64" + NOISE[:100],
    "a list beyond the end": b"\1\0\x64\1\x7f\0",
    "a rest of repeats": b"\1\0\x64\1\1\0\x08\x64\x64" + NOISE[:100],
    "no rest": b"\1\0\x64\1\1\0",
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_impossible_payloads_are_refused(name):
    with pytest.raises(FormatError):
        repeats.read(PAYLOADS[name], 100)


@pytest.mark.parametrize("fields", [(0, 31, 0), (-1, 32, 1), (69, 32, -69), (0, 32, 69), (0, 32, -1), (0, 101, 0)])
def test_impossible_copies_are_refused(fields):
    listed = integers.encode(np.array(fields).reshape(3, 1))
    size = 100 - fields[1] if fields[1] < 100 else 0
    payload = b"\1\0\x64\1" + varint(len(listed)) + listed + b"\1" + varint(size) + NOISE[:size]
    with pytest.raises(DamagedError, match="the repeats of a block are impossible"):
        repeats.read(payload, 100)


def test_a_block_may_not_repeat_bytes_before_the_window():
    header = container.header_bytes({"level": 1, "numerics": 1})
    body = compressed("twice")
    whole = header + body[blocks_of(body)[0].coded_offset :]
    with pytest.raises(DamagedError, match="too far back"):
        squeeze.decompress(whole)


def test_memory_for_earlier_blocks_is_limited():
    coded = compressed("twice")
    with pytest.raises(LimitError, match="which later blocks may repeat"):
        squeeze.decompress_stream(io.BytesIO(coded), None, limits=Limits(memory=5_000))


@NAMES
def test_what_was_written_is_read_back_if_memory_is_short(name, tmp_path):
    raw, path = CASES[name][0], tmp_path / "restored"
    limits, without = Limits(memory=60 << 20), Limits(memory=200 << 20)
    coded = squeeze.compress(bytes(9_000), 1) + compressed(name)
    with path.open("w+b") as sink:
        sink.write(b"before")
        squeeze.decompress_stream(io.BytesIO(coded), sink, limits=limits)
    assert path.read_bytes() == b"before" + bytes(9_000) + raw
    with path.open("wb") as sink:  # which cannot be read
        squeeze.decompress_stream(io.BytesIO(coded), sink, limits=without)
    assert path.read_bytes() == bytes(9_000) + raw


def test_a_block_in_a_block_repeats_nothing():
    coded = compressed("twice")
    last = blocks_of(coded)[-1]
    with pytest.raises(DamagedError, match="the repeats of a block are impossible"):
        decode_block(Coded(last.kind, payload_of(coded, last)), last.raw_length, SETTINGS)
    assert Content("repeats") != Content("text")
