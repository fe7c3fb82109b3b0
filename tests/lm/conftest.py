"""A tiny model in a folder, and a cache of converted models that no other test sees, or one that all do."""

import os
from pathlib import Path

import pytest

from tests.makers import tiny_models

SHARED_CACHE = os.environ["SQUEEZE_CACHE"]  # which all other tests see, too


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def shared_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEEZE_CACHE", SHARED_CACHE)


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_models.byte_level()


@pytest.fixture
def folder(tmp_path: Path, tokenizer) -> Path:
    return tiny_models.write_folder(tmp_path / "tiny", tokenizer)
