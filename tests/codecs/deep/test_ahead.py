"""The byte network ahead of the mixers, in a thread of its own or not: the same bytes, whichever is faster."""

import itertools

import numpy as np
import pytest

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.deep import ahead, coder, presets
from squeeze.codecs.stream import dictionary, levels
from squeeze.codecs.stream.encoding import encode_block
from squeeze.codecs.stream.settings import Settings
from squeeze.errors import DamagedError
from tests.makers import inputs
from tests.makers.cases import every

TEXT = inputs.python_text(2_700)
PRESET = presets.preset(5, "text")


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize(
    ("level", "data"),
    every(
        3,
        itertools.product(
            [5, 4, 6], [TEXT[: 4 * ahead.CHUNK], TEXT, inputs.machine_code(300), TEXT[: 2 * ahead.CHUNK + 1]]
        ),
    ),
    ids=lambda value: value if isinstance(value, int) else len(value),
)
def test_two_threads_write_what_one_writes(level, data):
    coded = squeeze.compress(data, level, threads=2)
    assert coded == squeeze.compress(data, level, threads=1, verify=False)
    assert squeeze.decompress(coded) == data


def test_a_dictionary_goes_ahead(tmp_path):
    records = [inputs.words(400 + i)[-900:] for i in range(30)]
    dictionary = squeeze.train(records, level=5, text_size=2_000, learn_size=5_000)
    data = TEXT + b"".join(records[:3])
    coded = squeeze.compress(data, threads=2, dictionary=dictionary)
    assert coded == squeeze.compress(data, threads=1, dictionary=dictionary)
    assert squeeze.decompress(coded, dictionary=dictionary) == data


def test_a_wrong_guess_changes_nothing():
    data, start = array(TEXT), dictionary.built_in_start(PRESET)
    coded = coder.encode(data, PRESET, 0, None, start)
    for place in (0, 700, data.size - 1):
        guessed = data.copy()
        guessed[place] ^= 4
        told: list[int] = []
        restored = coder.decode(coded, data.size, PRESET, 0, told.append, start, None, guessed, 2)
        assert np.array_equal(restored, data)
        assert sum(told) <= data.size


def test_damage_raises_the_same_error_as_with_one_thread():
    data, start = array(TEXT), dictionary.built_in_start(PRESET)
    coded = coder.encode(data, PRESET, 0, None, start)
    with pytest.raises(DamagedError):
        coder.decode(coded[:9], data.size, PRESET, 0, None, start, None, data, 2)


def test_what_cannot_be_coded_shorter_is_not():
    noise = array(inputs.random_bytes(5_000))
    assert coder.encode(noise, PRESET, 0, None, None, 2) is None


def test_one_of_several_blocks_gets_one_thread():
    both = Settings(levels.LEVELS[5], 2)
    assert both.per_block == 1
    alone = Settings(levels.LEVELS[5], 2, alone=True)
    assert alone.per_block == 2
    told: list[int] = []
    encode_block(array(TEXT), Content("text"), alone, True, told.append)
    assert sum(told) == 2 * len(TEXT)
