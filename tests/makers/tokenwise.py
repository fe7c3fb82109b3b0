"""Texts, a tiny model's weights and presets of the tests of tokenwise coding."""

import io
from pathlib import Path

import numpy as np

from squeeze.codecs.stream import levels
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.stream.settings import Settings, choose
from squeeze.codecs.tokenwise.presets import TokenPreset
from tests.makers import inputs, tiny_models

TEXT = inputs.python_text(4_000)
DATA = TEXT[:1_500] + inputs.random_bytes(1_500) + TEXT[2_000:3_000]  # two blocks of text and a stored one


def calm(tokenizer) -> dict[str, np.ndarray]:
    """Weights that are sure of little, so that text becomes shorter."""
    return {name: values * np.float32(0.2) for name, values in tiny_models.tensors(tokenizer.get_vocab_size()).items()}


def settings_of(folder: Path, threads: int) -> Settings:
    return choose(levels.LEVELS[8], threads, None, LanguageOptions(folder))


def preset(size: int, count: int | None = None, window: int | None = None) -> TokenPreset:
    return levels.LEVELS[8].text.preset(size, 512, count, window)


def codecs_of(coded: bytes) -> list[str]:
    return [block.codec for stream in read_index(io.BytesIO(coded)) for block in stream.blocks]
