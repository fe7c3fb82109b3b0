"""Texts, weights of a tiny model and presets for tests of tokenwise coding."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from squeeze.codecs.bytewise.presets import TokenPreset
from squeeze.codecs.stream import compressor, container, encoding, levels
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.stream.settings import Settings, settings_for_level
from tests.makers import inputs, tiny_models

TEXT = inputs.python_text(4_000)
DATA = TEXT[:1_500] + inputs.random_bytes(1_500) + TEXT[2_000:3_000]  # two blocks of text and a stored one


def calm(tokenizer) -> dict[str, np.ndarray]:
    """Return weights whose predictions are never confident, so that text becomes shorter."""
    return {name: values * np.float32(0.2) for name, values in tiny_models.tensors(tokenizer.get_vocab_size()).items()}


def settings_of(folder: Path, threads: int) -> Settings:
    return settings_for_level(levels.LEVELS[8], threads, None, LanguageOptions(folder))


def preset(size: int, count: int | None = None, window: int | None = None) -> TokenPreset:
    return levels.LEVELS[8].text.preset(size, 512, count, window)


def codecs_of(coded: bytes) -> list[str]:
    return [block.codec for stream in read_index(io.BytesIO(coded)) for block in stream.blocks]


@contextmanager
def language_alone() -> Iterator[None]:
    """Make texts use only the language model, although a random one is worse than models without language."""
    of_blocks, of_inputs = encoding.candidates, compressor.candidates

    def by_language(*block) -> list[encoding.Plan]:
        ways = list(of_blocks(*block))
        return [way for way in ways if way.kind in container.BY_LANGUAGE] or ways

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "candidates", by_language)
        patch.setattr(compressor, "candidates", lambda *given: of_inputs(*given)[:1])
        yield


def text_around_noise(folder: Path, data: bytes, block_size: int) -> bytes:
    """Return a compressed file of two text blocks and a stored one, with an index at its end. Only the language model
    codes text.

    Args:
        folder: folder for the file
        data: text
        block_size: raw bytes of a block
    """
    with language_alone():
        sink = io.BytesIO()
        compress_stream(io.BytesIO(data), sink, level=8, model=folder, lanes=3, window=32, block_size=block_size)
    assert codecs_of(sink.getvalue()) == ["tokenwise", "stored", "tokenwise"]
    return sink.getvalue()
