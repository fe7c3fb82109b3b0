"""Data with the order-0 entropy of noise that still shrinks is coded, and record lengths are found by trial."""

import itertools
import lzma

import numpy as np
import pytest

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.stream import blocks, encoding, sampling
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.stream.settings import resolve_settings
from tests.makers import inputs, sheets
from tests.makers.cases import every

CHANCE = np.random.default_rng(7)
TIME = np.arange(6000)
RAMP = (3 * np.arange(10_000)).astype(">u2").tobytes()
NUMBERS = {
    "ramp": RAMP,
    "small ramp": np.arange(6000, dtype="<u2").tobytes(),
    "sorted keys": np.sort(CHANCE.integers(0, 2**32, 4000, np.uint64)).astype(">u4").tobytes(),
    "sorted 64-bit keys": np.sort(CHANCE.integers(0, 2**63, 2500, np.uint64)).astype("<u8").tobytes(),
    "sound": (30_000 * np.sin(TIME / 19) + CHANCE.normal(0, 300, TIME.size))
    .clip(-32768, 32767)
    .astype("<i2")
    .tobytes(),
    "random walk": np.cumsum(CHANCE.normal(size=2000)).tobytes(),
    "counters next to noise": b"".join(i.to_bytes(4, "big") + CHANCE.bytes(15) for i in range(700)),
}


def as_array(raw):
    return np.frombuffer(raw, np.uint8)


@pytest.mark.parametrize(("name", "level"), every(3, itertools.product(NUMBERS, (1, 3))))
def test_numbers_are_never_larger_than_xz_makes_them(name, level):
    raw = NUMBERS[name]
    coded = squeeze.compress(raw, level)
    assert len(coded) <= len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)) + 32
    assert squeeze.decompress(coded) == raw


@pytest.mark.parametrize(
    ("name", "record"),
    [("sorted keys", 4), ("sorted 64-bit keys", 8), ("random walk", 8), ("counters next to noise", 19)],
)
def test_the_record_length_is_found(name, record):
    assert blocks.content(as_array(NUMBERS[name])) == Content("table", record)


STEPS = np.cumsum(CHANCE.integers(-3, 4, (60, 700)), 0)
FIELDS = CHANCE.integers(0, 10 ** CHANCE.integers(1, 6, 200), (100, 200))
ROWS = {
    "rows of a matrix": (2800, (STEPS + CHANCE.integers(0, 5000, 700)).astype("<i4").tobytes()),
    "fixed fields": (1201, b"".join(b" " + b"".join(b"%6d" % number for number in row) for row in FIELDS)),
}


@pytest.mark.parametrize("name", ROWS)
def test_records_of_more_than_512_bytes_are_found(name):
    record, raw = ROWS[name]
    assert sampling.with_far_records(as_array(raw), sampling.OTHER) == Content("table", record)


def test_long_records_are_found_in_spite_of_short_ones():
    record = np.dtype([(f"f{k}", "<i2" if k % 3 else "<f4") for k in range(250)])
    rows = np.zeros(300, record)
    for k, name in enumerate(record.names):
        rows[name] = (np.cumsum(CHANCE.integers(-2, 3, 300)) + 10 * k) / (1 if k % 3 else 10)
    raw = rows.tobytes()
    assert blocks.content(as_array(raw)) == Content("table", record.itemsize)
    coded = squeeze.compress(raw, 1)
    assert len(coded) < 0.2 * len(raw) and squeeze.decompress(coded) == raw


def test_text_of_fixed_fields_is_a_table():
    record, raw = ROWS["fixed fields"]
    assert blocks.content(as_array(raw)) == Content("table", record)
    assert blocks.content(as_array(raw.replace(b" ", b"\n"))).kind == "text"
    assert blocks.content(as_array(inputs.words(50_000).replace(b"\n", b" "))).kind == "text"


@pytest.mark.parametrize("name", ["sound", "counters next to noise"])
def test_short_records_are_no_long_ones(name):
    raw = as_array(NUMBERS[name] * 3)
    assert sampling.with_far_records(raw, blocks.content(raw)) == blocks.content(raw)


def test_small_blocks_are_no_smaller():
    assert len(squeeze.compress(RAMP, 1)) <= len(squeeze.compress(RAMP, 1, block_size=1 << 13))


@pytest.mark.parametrize("size", [5000, 30_000, 300_000])
def test_noise_is_stored(size):
    assert blocks.content(as_array(inputs.random_bytes(size))) == Content("packed")


def test_a_header_before_noise_is_coded():
    raw = b"\x89PNG" + bytes(60) + b"tEXtSoftware made by hand, version 3; " * 3 + inputs.random_bytes(9000)
    assert len(squeeze.compress(raw, 1)) < len(raw)


def test_a_text_among_packed_bytes_is_cut_out():
    text = inputs.words(9000)
    raw = inputs.random_bytes(3 << 19) + text + inputs.random_bytes(3 << 19, seed=9)
    (_, *texts, _) = blocks.regions(as_array(raw))
    assert [content.kind for _, _, content in blocks.regions(as_array(raw))] == ["packed", texts[0][2].kind, "packed"]
    assert texts[0][0] <= 3 << 19 and texts[0][1] >= (3 << 19) + len(text) - 4096


def test_one_value_is_of_the_kind_around_it():
    """So that no block is cut there."""
    code = inputs.machine_code(30_000)
    raw = code + bytes(1 << 20) + code
    assert [content.kind for _, _, content in blocks.regions(as_array(raw))] == ["executable"]


def test_a_sample_keeps_the_places_of_records():
    rows = np.tile(np.arange(24, dtype=np.uint8), 9000)
    assert (sampling._sample(rows, 24).reshape(-1, 24) == np.arange(24)).all()


def test_noise_that_a_short_input_begins_with_is_cut_off():
    """The low bytes of sorted keys are noise, and spoil the models for the high ones."""
    keys = np.sort(np.random.default_rng(0).integers(0, 1 << 32, 3000, np.uint64)).astype("<u4")
    raw = np.ascontiguousarray(keys.view(np.uint8).reshape(-1, 4).T).tobytes()
    data = np.frombuffer(raw, np.uint8)
    assert abs(sampling.noise_before(data) - 6000) < 600
    for level in (1, 3):
        coded = squeeze.compress(raw, level)
        assert squeeze.decompress(coded) == raw
        assert len(coded) < len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))


@pytest.mark.parametrize(
    "raw",
    [b"", inputs.random_bytes(12_000), inputs.machine_code(2000), inputs.words(9000), bytes(20_000)],
    ids=["empty", "noise", "code", "text", "zeros"],
)
def test_nothing_is_cut_off_where_no_noise_is_before_the_rest(raw):
    assert sampling.noise_before(np.frombuffer(raw, np.uint8)) == 0


@pytest.mark.parametrize(
    ("raw", "record", "expected"),
    [
        (sheets.sheet(8, 40)[3_000:], 0, True),
        (sheets.sheet(2, 60), 0, True),
        (b"".join(bytes([7, 0, i % 200, i * i % 5, 1, 9]) for i in range(900)), 6, True),
        (b"".join(bytes([7, 0, i * i % 200, i % 5, 1, 9]) for i in range(900)), 6, False),
        (inputs.python_text(9_000), 0, False),
        (inputs.random_bytes(9_000), 8, False),
        (bytes(9_000), 4, False),
        (b"\2\0\x40\0" * 2, 0, False),
        (b"", 0, False),
    ],
    ids=["BIFF 8", "BIFF 2", "numbered", "not numbered", "text", "noise", "zeros", "two headers", "empty"],
)
def test_cells_are_recognised_by_pairs_of_them_or_by_numbers(raw, record, expected):
    assert sampling.are_cells(as_array(raw), record) is expected


def test_a_sheet_is_coded_as_cells_and_smaller_than_as_a_table():
    raw = sheets.sheet(8, 60)
    settings, _ = resolve_settings(6, 1, None, None, LanguageOptions())
    plans = {plan.content.kind: plan for plan in encoding.candidates(as_array(raw), Content("table", 14), settings)}
    assert "cells" in plans and "table" not in plans
