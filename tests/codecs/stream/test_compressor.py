"""Compressed data is restored, byte for byte, at every level and by every way of calling."""

import base64
import io
import itertools
import random
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.stream import container, encoding, levels, sampling
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.settings import Settings
from tests.makers import inputs

BYTEWISE = [n for n, row in levels.LEVELS.items() if not row.needs_language_model]  # the others: test_lanes.py


_LONG = pytest.mark.slow  # at levels that take their time
_MOST = {1: 1 << 20, 2: 500_000, 3: 500_000, 5: 1_000, 6: 5_000}  # bytes by level
CASES = [
    pytest.param(name, level, marks=[_LONG] * (len(data) > _MOST.get(level, 20_000)))
    for name, data in inputs.EDGE_CASES.items()
    for level in BYTEWISE
]


@pytest.mark.parametrize(("name", "level"), CASES)
def test_every_edge_case_at_every_level(name, level):
    data = inputs.EDGE_CASES[name]
    coded = squeeze.compress(data, level, verify=False)
    assert squeeze.decompress(coded) == data
    assert len(coded) <= len(data) + 64


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=600), st.sampled_from([1, 2, 3, 4]))
def test_any_bytes_come_back(data, level):
    assert squeeze.decompress(squeeze.compress(data, level, verify=False)) == data


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from([b"abc", b"\x00" * 9, b"{'key': ", b"\xe8\x00\x01\x00\x00", b"\n"]), max_size=200))
def test_repetitive_bytes_come_back(parts):
    data = b"".join(parts)
    assert squeeze.decompress(squeeze.compress(data, 3)) == data


def compress_in_blocks(data, **options):
    sink = io.BytesIO()
    compress_stream(io.BytesIO(data), sink, **options)
    return sink.getvalue()


def test_bytes_do_not_depend_on_threads():
    data = inputs.words(9_000) + inputs.random_bytes(9_000) + inputs.records(300)
    one, *others = [compress_in_blocks(data, level=1, block_size=4096, threads=threads) for threads in (1, 2, 5)]
    assert all(other == one for other in others)
    for threads in (1, 2, 3):
        assert squeeze.decompress(one, threads=threads) == data


class Pipe(io.RawIOBase):
    """A source that cannot seek and gives a few bytes at a time."""

    def __init__(self, data):
        self._data, self._sizes = io.BytesIO(data), itertools.cycle([1, 7, 100, 3])

    def readable(self):
        return True

    def read(self, size=-1):
        return self._data.read(min(next(self._sizes), size) if size >= 0 else -1)


@pytest.mark.parametrize("data", [b"", inputs.words(3_000), inputs.random_bytes(3_000), inputs.words(900) * 9])
def test_pipes_are_compressed_and_restored(data):
    coded, restored = io.BytesIO(), io.BytesIO()
    compress_stream(Pipe(data), coded, level=1, block_size=1024)
    decompress_stream(Pipe(coded.getvalue()), restored)
    assert restored.getvalue() == data


def test_streams_one_after_another_decode_to_their_contents_one_after_another():
    parts = [inputs.words(500), b"", inputs.random_bytes(100), b"x"]
    assert squeeze.decompress(b"".join(squeeze.compress(part, 1) for part in parts)) == b"".join(parts)


def test_incompressible_input_grows_by_at_most_64_bytes_however_many_blocks_it_is_read_in():
    data = inputs.random_bytes(300_000)
    coded = compress_in_blocks(data, level=1, block_size=10_000)
    assert len(coded) <= len(data) + 64
    assert [block.codec for block in read_index(io.BytesIO(coded))[0].blocks] == ["stored"]


def test_what_is_stored_lies_in_blocks_of_at_most_a_mebibyte_which_cost_20_bytes_each():
    data = inputs.random_bytes(5 << 19)
    coded = squeeze.compress(data, 1)
    blocks = read_index(io.BytesIO(coded))[0].blocks
    assert [(block.codec, block.raw_length) for block in blocks] == [
        ("stored", 1 << 20),
        ("stored", 1 << 20),
        ("stored", 1 << 19),
    ]
    assert len(coded) <= len(data) + 64 + 20 * len(blocks)


def test_many_small_blocks_that_hardly_shrink_do_not_add_up():
    parts = [inputs.words(400, seed)[:200] + inputs.random_bytes(200, seed) for seed in range(100)]
    data = b"".join(parts)
    assert len(compress_in_blocks(data, level=1, block_size=200)) <= len(data) + 64


def test_totals_and_progress_count_all_bytes():
    data, ticks = inputs.words(15_000) + inputs.random_bytes(70_000), []
    totals = compress_stream(io.BytesIO(data), sink := io.BytesIO(), level=1, progress=ticks.append)
    assert (totals.raw, totals.coded) == (len(data), len(sink.getvalue()))
    assert 0 < sum(ticks) <= 2 * len(data)
    ticks.clear()
    sink.seek(0)
    assert decompress_stream(sink, None, progress=ticks.append).raw == sum(ticks) == len(data)


def test_a_wrong_result_is_never_reported_as_success(monkeypatch):
    from squeeze.codecs.bytewise import coder as bytewise

    right = bytewise.decode
    monkeypatch.setattr(bytewise, "decode", lambda *a, **k: right(*a, **k) ^ 1)
    with pytest.raises(squeeze.VerifyError, match="did not decode to the input"):
        squeeze.compress(inputs.words(1_000), 1)


def test_an_input_that_changes_behind_what_was_read_is_what_was_read():
    data = inputs.random_bytes(5_000)
    source, sink = io.BytesIO(data), io.BytesIO()
    compress_stream(source, sink, level=1, block_size=1_000, progress=lambda n: overwrite(source))
    assert source.getvalue() != data == squeeze.decompress(sink.getvalue())


def overwrite(source):
    here = source.tell()
    source.seek(0)
    source.write(b"changed")
    source.seek(here)


@pytest.mark.parametrize(
    ("level", "message"),
    [
        (0, "level 0 does not exist: use a level from 1 to 9"),
        (10, "level 10 does not exist: use a level from 1 to 9"),
    ],
)
def test_levels_that_cannot_be_used_are_refused_with_the_reason(level, message):
    with pytest.raises(squeeze.LevelError) as caught:
        squeeze.compress(b"data", level)
    assert str(caught.value) == message


@pytest.mark.parametrize("size", [0, -1, container.MAX_BLOCK + 1])
def test_refuses_impossible_block_sizes(size):
    with pytest.raises(squeeze.LevelError, match="a block size must be from 1 byte"):
        compress_in_blocks(b"data", level=1, block_size=size)


@pytest.mark.parametrize("size", [300, 2_000])
def test_level_3_is_no_larger_than_level_2_on_small_inputs(size):
    """Numbers, on which fewer models learn faster."""
    data = struct.pack(f"<{size // 4}I", *(n * n // 7 for n in range(size // 4)))
    sizes = [len(squeeze.compress(data, level, verify=False)) for level in (2, 3, 4)]
    assert sizes == sorted(sizes, reverse=True)


def test_level_2_is_no_larger_than_level_1_on_small_binaries():
    """Five bytes determine the next one, and level 2 has no context of order 5."""
    chance, data, likely = random.Random(1), bytearray(range(5)), {}
    while len(data) < 1 << 16:
        expected = likely.setdefault(bytes(data[-5:]), chance.randrange(5))
        data.append(expected if chance.random() < 0.9 else chance.randrange(5))
    coded = squeeze.compress(bytes(data), 2, verify=False)
    (stream,) = read_index(io.BytesIO(coded))
    assert stream.header["level"] == 1 and squeeze.decompress(coded) == data


@pytest.mark.parametrize(
    ("size", "kind", "numbers"),
    [
        ((1 << 16) - 1, "other", [2]),
        (1 << 16, "other", [2, 1]),
        (1 << 16, "text", [2]),
        (1 << 17, "other", [2]),
    ],
)
def test_level_1_is_tried_on_binaries_of_some_sizes_alone(size, kind, numbers):
    rows = levels.candidate_levels(levels.level(2), size, levels.Looks(lambda: kind))
    assert [row.number for row in rows] == numbers


@pytest.mark.parametrize(("distinct", "numbers"), [(1, [1, 2]), (30, [1])])
def test_level_2_is_tried_on_small_binaries_that_mostly_repeat(distinct, numbers):
    pieces = (inputs.random_bytes(400, i % distinct)[: 300 + i * i % 90] for i in range(30))
    data = np.frombuffer(b"".join(pieces), np.uint8)
    looks = levels.Looks(lambda: "other", repetitive=lambda: sampling.mostly_repeats(data))
    assert [row.number for row in levels.candidate_levels(levels.level(1), data.size, looks)] == numbers


def test_a_lower_level_is_tried_on_small_inputs_alone():
    data = inputs.records(300)
    (small,) = read_index(io.BytesIO(squeeze.compress(data, 3, verify=False)))
    (large,) = read_index(io.BytesIO(squeeze.compress(data * 20, 3, verify=False)))
    assert (small.header["level"], large.header["level"]) == (2, 3)


@pytest.mark.parametrize("repeated", [1, 14], ids=["short", "with an index"])
def test_level_4_is_no_larger_than_level_3_on_small_inputs(repeated):
    """Code a list of numbers on which the models of level 4 learn too slowly."""
    chance, numbers = random.Random(1), [97]
    for _ in range(1200 * repeated):
        numbers.append(numbers[-1] + chance.choice((1, 1, 1, 2, 7)))
    data = "\n".join(map(str, numbers)).encode()
    coded = squeeze.compress(data, 4, verify=False)
    assert len(coded) <= len(squeeze.compress(data, 3, verify=False))
    (stream,) = read_index(io.BytesIO(coded))
    assert stream.short == (repeated == 1) and stream.header["level"] in (3, 4)
    assert squeeze.decompress(coded) == data
    if repeated == 1:
        whole = squeeze.compress(data, 4, block_size=len(data), verify=False)
        assert len(coded) < len(whole)


UNREAD = {
    "hexadecimal": (inputs.machine_code(350) + inputs.python_text(1000)).hex().encode(),
    "EBCDIC": inputs.python_text(4500).decode("latin1").encode("cp037"),
    "base64": base64.encodebytes(inputs.machine_code(550)),
    "samples": np.random.default_rng(3).normal(128, 50, 4_500).astype(np.uint8).tobytes(),
}


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("level", [5, pytest.param(6, marks=_LONG)])
def test_what_the_network_does_not_read_is_no_larger_than_at_level_4(name, level):
    coded = squeeze.compress(UNREAD[name], level, verify=False)
    assert squeeze.decompress(coded) == UNREAD[name]
    assert len(coded) <= len(squeeze.compress(UNREAD[name], 4, verify=False))


@pytest.mark.parametrize("sample", [1 << 16, 1 << 11], ids=["whole", "by a sample"])
def test_text_that_the_network_does_not_read_is_coded_as_no_text_where_that_is_smaller(sample, monkeypatch):
    monkeypatch.setattr(encoding, "_SAMPLE", sample)
    data = np.frombuffer(UNREAD["hexadecimal"], np.uint8)
    text, settings = Content("text"), Settings(levels.level(5))
    assert encoding.is_unpredicted(data, settings)
    coded = encoding.encode_block(data, text, settings)
    assert container.read_content(io.BytesIO(coded.payload))[0].kind == "other"
    assert len(coded.payload) < len(encoding._bytewise(data, text, settings, None).payload)
    for others in (replace(settings, level=levels.level(4)), replace(settings, content=text)):
        assert not encoding.is_unpredicted(data, others)
    prose = np.frombuffer(inputs.python_text(3000), np.uint8)
    assert container.read_content(io.BytesIO(encoding.encode_block(prose, text, settings).payload))[0].kind == "lines"


@pytest.mark.parametrize(("level", "kinds"), [(4, ["table"]), (5, ["table", "other"])])
def test_a_table_is_tried_as_what_the_network_reads(level, kinds):
    data, settings = np.frombuffer(inputs.words(1_500), np.uint8), Settings(levels.level(level))
    table = Content("table", 12)
    assert [way.content.kind for way in encoding.candidates(data, table, settings)] == kinds
    coded = encoding.encode_block(data, table, settings)
    assert container.read_content(io.BytesIO(coded.payload))[0].kind == kinds[-1]
