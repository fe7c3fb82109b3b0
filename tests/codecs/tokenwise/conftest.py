"""Fixtures of tokenwise coding: a model of noise, and a file that it wrote."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.makers import tiny_models
from tests.makers.tokenwise import DATA, calm, language_alone, text_around_noise


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SQUEEZE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    tokenizer = tiny_models.byte_level()
    return tiny_models.write_folder(tmp_path_factory.mktemp("one") / "tiny", tokenizer, calm(tokenizer))


@pytest.fixture
def only_tokenwise() -> Iterator[None]:
    """Never code text by the bytewise models, which are better than a model of noise."""
    with language_alone():
        yield


@pytest.fixture(scope="module")
def coded(folder) -> bytes:
    return text_around_noise(folder, DATA, 1_500)
