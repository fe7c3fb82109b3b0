"""The language model of a stream: the memory of its lanes is estimated before it is allocated."""

from dataclasses import replace

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream import container, decoding, levels
from squeeze.codecs.stream.language import Language, memory_to_restore
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.stream.settings import Settings
from squeeze.codecs.tokenwise.layout import LaneLayout
from squeeze.errors import LimitError
from squeeze.numerics.team import Team
from squeeze.system.binary import varint
from squeeze.system.limits import Limits
from tests.makers import tiny_models

TEXT = levels.LEVELS[8].text


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SQUEEZE_CACHE", str(tmp_path_factory.mktemp("cache")))
        tokenizer = tiny_models.byte_level()
        weights = tiny_models.tensors(tokenizer.get_vocab_size())
        folder = tiny_models.write_folder(tmp_path_factory.mktemp("one") / "tiny", tokenizer, weights)
        yield Language(TEXT, 1, LanguageOptions(folder))


def test_lanes_that_look_far_back_are_refused_before_anything_is_decoded(language, monkeypatch):
    monkeypatch.delattr("squeeze.codecs.tokenwise.lanes.decode")
    limited = Settings(levels.LEVELS[8], 1, replace(language, limits=Limits(memory=300 << 20)))
    payload = b"\x01" + b"".join(map(varint, (1 << 20, 2 * 1024, 64, *[1] * 1023))) + bytes(50)
    with pytest.raises(LimitError, match=r"^a text in 1024 lanes that look back 1024 tokens needs [\d,]+ bytes"):
        decoding.decode_block(container.Coded(container.TOKENWISE, payload), 1 << 20, limited)


@pytest.mark.parametrize(("lanes", "window"), [(1, 16), (3, 512), (40, 64)])
def test_the_cache_of_lanes_is_within_what_is_told(language, lanes, window):
    layout = LaneLayout(lanes * window * 2, lanes, window, (2 * window,) * lanes)
    session = language.model.session(lanes, layout.used_window, lanes, Team(1))
    cached = sum(part.nbytes for part in session._cache)
    frequencies = session.leaves * lanes * (np.dtype(np.uint64).itemsize + np.dtype(np.float32).itemsize)
    preset = TEXT.preset(sum(layout.lengths), layout.window, lanes, window)
    assert language.model.size + cached + frequencies < memory_to_restore(language.model, layout, preset)
    more = memory_to_restore(language.model, replace(layout, lanes=4 * lanes, entries=4 * layout.entries), preset)
    assert more - memory_to_restore(language.model, layout, preset) > 2 * cached


def test_paths_may_be_words(language, tmp_path, monkeypatch):
    """Paths of a model and of an adapter may be strings."""
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path))
    folder = language.options.model
    data = b"A word is a word, and a path may be one.\n" * 3
    coded = squeeze.compress(data, 8, model=str(folder), adapter="none")
    assert coded == squeeze.compress(data, 8, model=folder)
    assert squeeze.decompress(coded, model=str(folder), adapter="none") == data
