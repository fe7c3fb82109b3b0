"""The kinds of content of regions, and the reversible filter for machine code."""

import io

import numpy as np
import pytest
from hypothesis import given, strategies as st

import squeeze
from squeeze.codecs.stream import blocks
from squeeze.codecs.stream.blocks import WINDOW
from squeeze.codecs.stream.index import read_index
from tests.makers import inputs
from tests.makers.cases import all_slow_but


def kinds(data):
    return [str(content) for _, _, content in blocks.regions(np.frombuffer(data, np.uint8))]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (inputs.words(30_000), "text"),
        (inputs.python_text(30_000), "text"),
        ("日本語の文章です。".encode() * 300, "text"),
        (inputs.random_bytes(100_000), "packed"),
        (inputs.random_bytes(50_000) * 2, "other"),
        (inputs.machine_code(3_000), "executable"),
        (inputs.records(3_000), "table 24"),
        (b"\x00\x01\x02" * 10, "other"),
    ],
)
def test_each_kind_of_content_is_recognised(data, kind):
    assert kinds(data) == [kind]


def test_doubles_that_look_like_calls_are_a_table():
    values = (0.765 + np.sin(np.arange(480) / 16) / 64).astype(np.float32).astype("<f8").repeat(2)
    data = values.tobytes()
    assert data.count(b"\xe8\x3f\x00\x00") > len(data) / 400
    assert kinds(data)[0].startswith("table")


def test_object_code_whose_calls_all_have_distance_zero_is_executable():
    code = bytearray(inputs.machine_code(3_000))
    for start in range(7, len(code), 11):
        code[start : start + 4] = bytes(4)
    assert kinds(bytes(code)) == ["executable"]


def test_a_picture_of_rows_is_a_table_though_most_of_it_is_white():
    rows = np.zeros((600, 216), np.uint8)
    rows[np.arange(600) % 40 < 30, 50:60] = 0x3C
    rows[:, 150] = np.arange(600) // 50
    assert kinds(rows.tobytes()) == ["table 216"]


def test_regions_cover_the_input_and_split_where_the_kind_changes():
    data = inputs.words(6 * WINDOW) * 2
    data = data[: 6 * WINDOW] + inputs.random_bytes(6 * WINDOW)
    parts = list(blocks.regions(np.frombuffer(data, np.uint8)))
    assert [(start, end) for start, end, _ in parts] == [(0, 6 * WINDOW), (6 * WINDOW, 12 * WINDOW)]
    assert [content.kind for _, _, content in parts] == ["text", "packed"]


def test_a_short_change_makes_no_region():
    data = (inputs.words(200_000) * 4)[: 4 * WINDOW] + inputs.random_bytes(WINDOW) + inputs.words(9_000)
    assert len(kinds(data)) == 1


def _columns(record: int, size: int) -> bytes:
    """Return records whose bytes move by small steps, of `size` bytes."""
    chance = np.random.default_rng(record)
    rows = chance.integers(0, 256, record) + np.cumsum(chance.integers(-1, 2, (size // record + 1, record)), 0)
    return rows.astype(np.uint8).tobytes()[:size]


@pytest.mark.parametrize(("ends",), all_slow_but([((2, 6, 2),)], [((6, 0, 2),), ((2, 6, 0),), ((2, 6, 2),)]))
def test_ends_of_a_table_with_other_records_are_cut_off(ends):
    windows = zip((31, 50, 73), ends, strict=True)
    data = b"".join(_columns(record, size * WINDOW) for record, size in windows)
    parts = list(blocks.regions(np.frombuffer(data, np.uint8)))
    assert [end // WINDOW for _, end, _ in parts] == sorted(set(np.cumsum(ends).tolist()))
    longest = max(parts, key=lambda part: part[1] - part[0])[2]
    assert longest.kind == "table" and longest.record % (31, 50, 73)[int(np.argmax(ends))] == 0
    assert squeeze.decompress(squeeze.compress(data, 1)) == data


def test_a_table_of_one_kind_of_records_stays_whole():
    assert kinds(_columns(50, 8 * WINDOW + 700)) == ["table 50"]


def test_the_first_of_equally_frequent_kinds_is_taken():
    """Choose the same kind in each process, so that all write the same bytes."""
    text, code = (inputs.words(100_000) * 4)[: 2 * WINDOW], (inputs.machine_code(30_000) * 4)[: 2 * WINDOW]
    assert len(code) == len(text) and (kinds(text + code), kinds(code + text)) == (["text"], ["executable"])


def test_nothing_has_no_regions():
    assert kinds(b"") == []


@given(st.lists(st.sampled_from([0xE8, 0xE9, 0x00, 0xFF, 0x01, 0x7F, 0x80]), max_size=80))
def test_the_call_filter_is_reversible(values):
    data = np.array(values, np.uint8)
    filtered = data.copy()
    blocks.calls_to_absolute(filtered)
    blocks.calls_to_relative(filtered)
    assert np.array_equal(filtered, data)


def test_the_call_filter_makes_calls_of_one_function_alike():
    data = np.frombuffer(inputs.machine_code(500), np.uint8).copy()
    before = len({data[i + 1 : i + 4].tobytes() for i in np.flatnonzero(data == 0xE8)})
    blocks.calls_to_absolute(data)
    after = len({data[i + 1 : i + 4].tobytes() for i in np.flatnonzero(data == 0xE8)})
    assert after < before / 10


def test_machine_code_goes_through_the_filter():
    data = inputs.machine_code(3_000)
    coded = squeeze.compress(data, 2)
    assert read_index(io.BytesIO(coded))[0].blocks[0].content == "executable"
    assert squeeze.decompress(coded) == data
