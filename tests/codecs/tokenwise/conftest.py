"""Fixtures of tokenwise coding: a model of noise, and a file that it wrote."""

import io
from pathlib import Path

import pytest

from squeeze.codecs.stream import coding
from squeeze.codecs.stream.compressor import compress_stream
from tests.makers import tiny_models
from tests.makers.tokenwise import DATA, calm, codecs_of


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
def only_tokenwise(monkeypatch) -> None:
    """Text is never coded by the bytewise models, which are better than a model of noise."""
    right = coding._encode_bytewise

    def other(data, content, *rest):
        return right(data, content, *rest) if content.kind != "text" else None

    monkeypatch.setattr(coding, "_encode_bytewise", other)


@pytest.fixture(scope="module")
def coded(folder) -> bytes:
    """A text of two blocks and a stored one, whose index lies at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "_encode_bytewise", lambda *_: None)
        sink = io.BytesIO()
        compress_stream(io.BytesIO(DATA), sink, level=8, model=folder, lanes=3, window=32, block_size=1_500)
    assert codecs_of(sink.getvalue()) == ["tokenwise", "stored", "tokenwise"]
    return sink.getvalue()
