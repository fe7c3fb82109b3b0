"""The table of levels: models fit their tables and the memory, and higher levels are smaller."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.bytewise import coder as bytewise, presets, state as bytearrays
from squeeze.codecs.deep import arrays as deeparrays, coder as deep
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.stream import levels
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.levels import Level, TextModel
from tests.makers import inputs, tiny_models
from tests.references.naive_levels import FORMAT


@pytest.fixture
def add(monkeypatch):
    return lambda row: monkeypatch.setitem(levels.LEVELS, row.number, row)


def test_each_row_is_a_level(add):
    with pytest.raises(squeeze.LevelError, match="level 10 does not exist: use a level from 1 to 9"):
        squeeze.compress(b"data", 10)
    add(Level(10, "context mixing, text contexts for all", 500_000, lambda kind: presets.SMALL["text"]))
    data = inputs.records(300)
    coded = squeeze.compress(data, 10)
    (stream,) = read_index(io.BytesIO(coded))
    assert stream.header["level"] == 10 and coded != squeeze.compress(data, 1)
    assert squeeze.decompress(coded) == data
    assert levels.estimate_seconds(10, 1_000_000, verify=False) == 2


def test_a_row_with_a_language_model_is_a_level(add, tmp_path, monkeypatch):
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "cache"))
    folder = tiny_models.write_folder(tmp_path / "tiny", tiny_models.byte_level())
    add(Level(10, "language model, one lane", 500, presets.SMALL.__getitem__, text=TextModel(32, 1, 1, 1)))
    data = inputs.words(600)
    coded = squeeze.compress(data, 10, model=folder, verify=False)
    assert squeeze.decompress(coded, model=folder) == data
    with pytest.raises(squeeze.LevelError, match="belong to levels 7 to 10"):
        squeeze.compress(data, 3, lanes=2)


def test_a_file_of_a_level_that_is_no_row_is_refused(add, monkeypatch):
    add(Level(10, "of tomorrow", 1, presets.SMALL.__getitem__))
    coded = squeeze.compress(inputs.words(300), 10)
    monkeypatch.delitem(levels.LEVELS, 10)
    with pytest.raises(squeeze.FormatError, match="a level or parameter that this version lacks"):
        squeeze.decompress(coded)


def test_rows_are_in_order_and_every_one_has_a_speed_and_models_of_all_kinds_of_content():
    assert list(levels.LEVELS) == list(range(1, 10))
    speeds = [row.bytes_a_second for row in levels.LEVELS.values()]
    assert speeds == sorted(speeds, reverse=True)
    for row in levels.LEVELS.values():
        assert all(row.models(kind).contexts for kind in ("text", "executable", "table", "other"))
    assert len({row.name for row in levels.LEVELS.values()}) == 9


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


def test_higher_levels_are_smaller():
    data = np.frombuffer(FORMAT.read_bytes()[:120_000], np.uint8)
    sizes = [len(bytewise.encode(data, levels.LEVELS[level].models("text")) or data) for level in range(1, 4)]
    sizes.append(len(deep.encode(data, levels.LEVELS[4].models("text")) or data))
    assert sizes == sorted(sizes, reverse=True)
