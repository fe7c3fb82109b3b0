"""The meter: costs add up to the coded bytes, shares to what was saved, and coding stays as it is."""

import numpy as np
import pytest

from squeeze.codecs.bytewise import coder as bytewise, presets
from squeeze.codecs.deep import coder as deep, presets as deep_presets
from squeeze.codecs.deep.initial_state import Start, read
from squeeze.numerics.bitmodels.meter import PARTS, TOP, Recorder
from tests.makers import inputs

FLUSH = 8  # bytes that end a block's coder, at most


def measured(coder, data: np.ndarray, preset, **options) -> tuple[Recorder, int]:
    coded = coder.encode(data, preset, **options)
    assert coded is not None
    recorder = Recorder()
    assert np.array_equal(coder.decode(coded, data.size, preset, recorder=recorder, **options), data)
    return recorder, len(coded)


def check(recorder: Recorder, size: int, coded: int) -> None:
    meter, total = recorder.meter, recorder.meter.bits.sum(dtype=np.float64)
    assert 0 <= 8 * coded - total + 8 <= 8 * FLUSH
    assert abs(meter.saved.sum() - (8 * size - total)) < 1e-3 * size
    assert meter.parts.max() < len(recorder.parts)
    assert (np.abs(meter.shares[:, 0]) >= np.abs(meter.shares[:, PARTS - 1])).all()


@pytest.mark.parametrize("kind", presets.LARGE)
def test_bytewise_costs_are_those_of_the_coder(kind):
    data = np.frombuffer(inputs.records(60) + inputs.machine_code(50) + inputs.words(1_000), np.uint8)
    recorder, coded = measured(bytewise, data, presets.LARGE[kind])
    check(recorder, data.size, coded)


@pytest.mark.slow
@pytest.mark.parametrize("preset", [deep_presets.preset(4, "text"), deep_presets.preset(4, "table")])
def test_deep_costs_are_those_of_the_coder(preset):
    data = np.frombuffer(inputs.words(2_000), np.uint8)
    recorder, coded = measured(deep, data, preset)
    check(recorder, data.size, coded)
    assert (recorder.meter.symbols == -1).all()


@pytest.mark.slow
def test_a_network_says_what_it_expects():
    data = np.frombuffer(inputs.words(1_500), np.uint8)
    recorder, coded = measured(deep, data, deep_presets.preset(5, "other"))
    check(recorder, data.size, coded)
    meter = recorder.meter
    assert meter.symbols.shape == (data.size, TOP)
    assert (np.diff(meter.chances.astype(int), axis=1) <= 0).all()
    assert all(len(set(row)) == TOP for row in meter.symbols.tolist())
    by_network = 2.0 ** -meter.model_bits.astype(np.float64)
    said = meter.symbols[:, 0] == data
    assert np.allclose(by_network[said], meter.chances[said, 0] / 65535, atol=1e-4)


def test_matches_point_to_what_agrees():
    data = np.frombuffer(inputs.PROSE * 2, np.uint8)
    for coder, preset in ((bytewise, presets.LARGE["text"]), (deep, deep_presets.preset(4, "text"))):
        recorder, _ = measured(coder, data, preset)
        meter = recorder.meter
        followed = np.flatnonzero(meter.lengths)
        assert followed.size > data.size // 3
        for unit in followed.tolist():
            source, length = int(meter.sources[unit]), min(int(meter.lengths[unit]), 12)
            assert np.array_equal(data[source - length : source], data[unit - length : unit])


def test_what_a_dictionary_has_lies_before_the_block():
    preset, data = deep_presets.preset(4, "text"), np.frombuffer(inputs.PROSE, np.uint8)
    recorder, coded = measured(deep, data, preset, start=Start(read(data, preset, 0), ()))
    check(recorder, data.size, coded)
    assert (recorder.meter.sources[recorder.meter.lengths > 20] < 0).mean() > 0.9


def test_the_rival_is_the_largest_branch_not_taken():
    data = np.frombuffer(b"ab" * 200 + b"ac", np.uint8)
    meter = measured(bytewise, data, presets.SMALL["text"])[0].meter
    assert meter.rivals[-1] > 0.9
    assert meter.rival_shifts[-1] == 0  # b and c differ in the lowest bit
    assert meter.bits[-1] > 3
    assert meter.bits[-2] < 0.1
