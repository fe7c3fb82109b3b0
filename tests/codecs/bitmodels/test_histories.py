"""The models' parts, one by one: logistic tables, bit histories, slots, mixer, APM, presets, compiled code."""

import math

import numpy as np
import pytest

from squeeze.codecs.bitmodels import histories, layout, mixer
from squeeze.codecs.bytewise import arrays as bytearrays, coder as bytewise
from squeeze.codecs.deep import arrays as deeparrays, coder as deep
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.stream import levels
from squeeze.numerics import jit, logistic
from tests.makers import inputs


def test_stretch_is_the_logit():
    p = (np.arange(4096) + 0.5) / 4096
    assert np.abs(logistic.STRETCH - 4096 * np.log(p / (1 - p))).max() <= 0.51


def test_squash_is_the_logistic_function():
    for x in [-65535, -40000, -4097, -1, 0, 1, 31, 32, 33, 5000, 65535]:
        assert logistic.squash(x) / 2**32 == pytest.approx(1 / (1 + math.exp(-x / 4096)), rel=2e-5, abs=2**-32)


def test_squash_rises_and_stays_inside():
    values = [logistic.squash(x) for x in range(-logistic.LOGIT_MAX, logistic.LOGIT_MAX + 1, 13)]
    assert values == sorted(values)
    assert values[0] >= 1
    assert values[-1] < 2**32


def test_histories_fit_a_byte_and_stay_in_it():
    reached, todo = {0}, [0]
    for state in todo:
        for bit in (0, 1):
            after = int(histories.NEXT[bit * 256 + state])
            if after not in reached:
                reached.add(after)
                todo.append(after)
    assert 200 < len(reached) <= 256
    assert 0 not in {int(histories.NEXT[bit * 256 + s]) for s in reached for bit in (0, 1)}


def test_a_history_of_ones_predicts_a_one_ever_more():
    state, before = 0, 0.5
    for _ in range(40):
        state = int(histories.NEXT[256 + state])
        now = (int(histories.START[state]) >> 10) / 2**22
        assert now > before
        before = now


def test_slots_are_found_again_and_the_weakest_makes_room():
    slots = np.zeros(layout.LINE, np.uint8)
    mask = np.uint64(0)
    hashes = [np.uint64(k << 8) for k in range(1, 5)]
    found = []
    for h, evidence in zip(hashes, (3, 9, 9, 9), strict=True):
        found.append(int(histories.find_slot(slots, h, mask)))
        slots[found[-1] + 1] = evidence
    assert sorted(found) == [0, 16, 32, 48]
    assert [int(histories.find_slot(slots, h, mask)) for h in hashes] == found
    assert int(histories.find_slot(slots, np.uint64(99 << 8), mask)) == found[0]


def test_an_adaptive_map_learns_a_frequency():
    entries = np.full(1, 1 << 31, np.uint32)
    bits = np.random.default_rng(4).random(20_000) < 0.9
    for bit in bits:
        histories.learn(entries, 0, int(bit), 1023)
    assert (int(entries[0]) >> 10) / 2**22 == pytest.approx(0.9, abs=0.03)


def test_the_mixer_learns_which_input_to_trust():
    weights, values = np.full(4, 10_000, np.int32), np.zeros(4, np.int32)
    generator = np.random.default_rng(6)
    for _ in range(3_000):
        bit = int(generator.integers(0, 2))
        values[:] = [(2 * bit - 1) * 4096, *generator.integers(-8192, 8192, 2), 0]
        error = ((bit << 32) - bit - logistic.squash(mixer.dot(weights, values))) >> 16
        mixer.train(weights, values, error, 5)
    assert weights[0] > 4 * abs(weights[1:]).max()


def test_a_fresh_apm_changes_nothing():
    apm = mixer.fresh_apm(2)
    for logit in (-65535, -30000, 0, 4096, 65535):
        assert mixer.refine(apm, 1, logit) / 2**32 == pytest.approx(logistic.squash(logit) / 2**32, abs=0.02)


def test_presets_name_registers_that_exist_and_fit_the_tables():
    for level in levels.LEVELS:
        for kind in ("text", "executable", "table", "other"):
            preset = levels.LEVELS[level].models(kind)
            build = deeparrays.build_model if isinstance(preset, DeepPreset) else bytearrays.build_model
            model = build(np.zeros(100, np.uint8), preset, 10)
            assert all(context[0] < model.registers.size for context in preset.contexts)
            assert len(set(preset.contexts)) == len(preset.contexts)


def memory_of(value):
    """{address: bytes} of all arrays in nested tuples; what two arrays see counts once."""
    if not isinstance(value, tuple):
        return {np.asarray(value).__array_interface__["data"][0]: value.nbytes}
    sizes = {}
    for part in value:
        for address, size in memory_of(part).items():
            sizes[address] = max(size, sizes.get(address, 0))
    return sizes


def test_models_of_ten_mebibytes_fit_the_memory_promise():
    for build, level in ((bytearrays.build_model, 3), (deeparrays.build_model, 6)):
        model = build(np.zeros(10 << 20, np.uint8), levels.LEVELS[level].models("text"))
        assert sum(memory_of(model).values()) < 1 << 30


def test_compiled_code_is_cached_under_a_name_made_from_the_sources():
    folder = jit.cache_folder()
    assert folder.is_dir()
    assert len(folder.name) == 16


def test_more_context_is_worth_it():
    data = np.frombuffer(inputs.python_text(60_000), np.uint8)
    sizes = [len(bytewise.encode(data, levels.LEVELS[level].models("text")) or data) for level in range(1, 4)]
    sizes.append(len(deep.encode(data, levels.LEVELS[4].models("text")) or data))
    assert sizes == sorted(sizes, reverse=True)
