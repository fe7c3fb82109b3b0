"""Runs are removed from blocks and put back, whatever is around them."""

import io
from random import Random

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream import container, decoding, media, opened, runs
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.runs import LEAST
from squeeze.errors import DamagedError, LimitError
from squeeze.recipes.reports.explanation.explain import explain
from squeeze.system.binary import varint
from squeeze.system.limits import Limits
from tests.makers import inputs
from tests.references import naive_runs

MIXED = inputs.machine_code(150) + bytes(50_000) + inputs.machine_code(200)[900:] + b"\x01\x02\x03" * 9000 + b"the end"


def as_array(raw):
    return np.frombuffer(raw, np.uint8)


def blocks_of(coded):
    return [block for stream in read_index(io.BytesIO(coded)) for block in stream.blocks]


def stretch(random, chance):
    if random.random() < 0.5:
        top = random.choice((2, 256))
        return chance.integers(0, top, random.randrange(1, 4000), dtype=np.uint8)
    pattern = chance.integers(0, 256, random.choice((1, 1, 2, 3, 8, 24, 63, 64, 65)), dtype=np.uint8)
    return np.resize(pattern, random.randrange(1, 7000))


def test_any_runs_come_back():
    random, chance, times = Random(1), np.random.default_rng(1), 0
    for _ in range(200):
        data = np.concatenate([stretch(random, chance) for _ in range(random.randrange(1, 8))])
        found = runs.find(data, random.choice((0, 0, 3, 24, 500)))
        if found:
            again, behind = runs.read(found.to_bytes() + b"behind", data.size)
            rest = found.rest(data)
            assert np.array_equal(again.expand(rest), data) and behind == b"behind"
            assert np.array_equal(data[~found.within], rest) and rest.size == data.size - found.removed
            times += 1
    assert times > 50


@pytest.mark.parametrize("period", [1, 2, 3, 24, 64])
def test_runs_of_every_period_are_found(period):
    head, pattern = inputs.random_bytes(777), inputs.random_bytes(period, seed=5)
    found = runs.find(as_array(head + pattern * (9000 // period) + head), 0)
    assert found is not None
    assert found.periods.tolist() == [period] and found.removed > 8000


def test_bytes_keep_their_places_in_records():
    found = runs.find(as_array(inputs.random_bytes(700) + bytes(9000) + inputs.random_bytes(700)), 52)
    assert found is not None
    assert found.removed % 52 == 0


@pytest.mark.parametrize("data", [inputs.random_bytes(1 << 16), inputs.words(20_000), bytes(1000), b""])
def test_short_runs_stay(data):
    assert runs.find(as_array(data), 0) is None


@pytest.mark.parametrize("level", [1, 3, 4])
def test_a_block_with_runs_costs_little_more_than_one_without(level):
    code = inputs.machine_code(800)
    coded = squeeze.compress(code[:5000] + bytes(1 << 20) + code[5000:], level)
    assert len(coded) < len(squeeze.compress(code, level)) + 200
    assert [block.content for block in blocks_of(coded)] == ["executable and runs"]
    assert squeeze.decompress(coded) == code[:5000] + bytes(1 << 20) + code[5000:]


@pytest.mark.parametrize("raw", [bytes(9000), bytes(1 << 20), b"abc" * 40_000, inputs.random_bytes(5000) + bytes(5000)])
def test_runs_alone_and_next_to_noise_come_back(raw):
    coded = squeeze.compress(raw)
    assert len(coded) < len(raw) - raw.count(0) // 2 if raw.count(0) else len(coded) < 200
    assert squeeze.decompress(coded) == raw


def test_a_file_decodes_as_it_is_specified():
    coded = squeeze.compress(MIXED, 1, block_size=1 << 20)
    (block,) = blocks_of(coded)
    payload = coded[block.coded_offset + block.coded_length - block.payload_length :][: block.payload_length]
    assert block.content.endswith(" and runs")
    assert naive_runs.decode(payload, len(MIXED), level=1) == MIXED


@pytest.mark.parametrize("sizes", [[1 << 14], [1 << 20]])
def test_random_access_salvage_and_explanations_know_runs(sizes):
    coded = squeeze.compress(MIXED, 1, block_size=sizes[0])
    with squeeze.open(io.BytesIO(coded)) as file:
        file.seek(40_000)
        assert file.read(1000) == MIXED[40_000:41_000]
    sink = io.BytesIO()
    assert not squeeze.decompress_stream(io.BytesIO(coded), sink, salvage=True).damage
    assert sink.getvalue() == MIXED
    explained = explain(coded)
    assert explained.data == MIXED
    assert explained.bits < 8 * len(coded) < 2 * explained.bits


def payload_of(rows, rest):
    listed = b"".join(varint(number) for row in rows for number in row)
    return container.RUNS + varint(len(listed)) + listed + rest


@pytest.mark.parametrize(
    "payload",
    [
        payload_of([(0, 1, 9000)], container.RAW),  # nothing is before it
        payload_of([(2, 3, 9000)], container.RAW + b"ab"),  # less than its pattern is
        payload_of([(1, 1, 10_000)], container.RAW + b"a"),  # more than the block
        payload_of([(1, 0, 9000)], container.RAW + bytes(1000)),
        payload_of([(70, 65, 9000)], container.RAW + bytes(1000)),
        payload_of([(1, 1, 2047)], container.RAW + bytes(7953)),  # shorter than a run is
        payload_of([(1, 1, 9000)], container.RAW + bytes(999)),
        payload_of([(1, 1, 9000)], container.RAW + bytes(1001)),
        payload_of([(1, 1, 9000)], payload_of([(1, 1, 900)], b"a")),  # runs of runs
        payload_of([(1, 1, 9000)], b""),
        payload_of([], container.RAW + bytes(10_000)),
        container.RUNS + varint(1 << 40),
        container.RUNS,
        container.RAW + bytes(9999),
    ],
)
def test_refuses_impossible_runs(payload):
    settings = squeeze.codecs.stream.settings.Settings(squeeze.codecs.stream.levels.level(1), 1)
    with pytest.raises(DamagedError):
        decoding.decode_block(Coded(container.BYTEWISE, payload), 10_000, settings)


def test_limits_hold_for_runs():
    """Refuse a few bytes that stand for many before memory is allocated."""
    coded = squeeze.compress(bytes(1 << 24), 1)
    assert len(coded) < 200
    with pytest.raises(LimitError):
        squeeze.decompress(coded, limits=Limits(memory=1 << 20))
    with pytest.raises(LimitError):
        squeeze.decompress_stream(io.BytesIO(coded), io.BytesIO(), limits=Limits(output=1 << 23))


def test_the_example_of_the_format():
    found = runs.find(np.zeros(16384, np.uint8), 0)
    assert found is not None
    payload = container.RUNS + found.to_bytes() + container.RAW + bytes(32)
    assert payload == bytes.fromhex("04 04 20 01 e0 7f 05") + bytes(32)
    assert naive_runs.decode(payload, 16384, level=1) == bytes(16384)


@pytest.mark.parametrize("period", [1, 2, 5, 24, 63, 64])
def test_the_period_of_data_that_is_one_run(period):
    pattern = inputs.random_bytes(period, seed=period)
    data = as_array(pattern * (200_000 // period) + pattern[: period // 2])
    assert runs.period_of(data) == period
    found = runs.find(data, 0)
    assert found is not None and found.removed > data.size - 2 * LEAST
    assert np.array_equal(found.expand(found.rest(data)), data)
    for place in (0, period, 70_000, data.size - 1):
        other = data.copy()
        other[place] ^= 1
        assert runs.period_of(other) == 0


@pytest.mark.parametrize("size", [0, 1, LEAST - 1])
def test_short_data_has_no_period(size):
    assert runs.period_of(np.zeros(size, np.uint8)) == 0


@pytest.mark.parametrize("pattern", [b"\0", b"\xff", b"\x12\x34\x56\x78\x9a"])
@pytest.mark.parametrize("options", [{}, {"block_size": 1 << 16}, {"long": False}], ids=["long", "blocks", "short"])
def test_nothing_is_looked_for_in_a_block_that_is_one_run(pattern, options, monkeypatch):
    def fail(*_):
        raise AssertionError("a block that is one run was searched")

    monkeypatch.setattr(opened, "find", fail)
    monkeypatch.setattr(media, "regions", fail)
    raw = pattern * ((3 << 20) // len(pattern))
    coded = squeeze.compress(raw, **({"block_size": 1 << 20} | options))
    assert squeeze.decompress(coded) == raw
    assert len(coded) < 40 * len(blocks_of(coded)) + 100


@pytest.mark.parametrize("pattern", [b"[],", bytes(range(12)), bytes([0, 0, 0, 1]), b"\x07\xc8\x0d"])
@pytest.mark.parametrize("around", [(b"", b""), (b'{"a": 1}\n[', b"[]]\n")])
def test_a_pattern_that_looks_like_numbers_is_a_run(pattern, around):
    raw = around[0] + pattern * 40_000 + around[1]
    assert [media.of_content(content) for _, _, content in media.regions(as_array(raw))] == [None]
    coded = squeeze.compress(raw, 1)
    assert len(coded) < 120 and squeeze.decompress(coded) == raw
    (block,) = blocks_of(coded)
    assert block.kind == container.BYTEWISE
