"""A tiny model in a folder, and a cache of converted models that no other test sees."""

from pathlib import Path

import pytest

from tests.makers import tiny_models


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_models.byte_level()


@pytest.fixture
def folder(tmp_path: Path, tokenizer) -> Path:
    return tiny_models.write_folder(tmp_path / "tiny", tokenizer)
