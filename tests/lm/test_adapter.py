"""Adapters: added to weights of every format with the same result; damaged and foreign ones are refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from squeeze.errors import ModelError
from squeeze.lm import adapter, models
from squeeze.lm.loading import load
from tests.makers import tiny_models
from tests.makers.tiny_models import FEED_FORWARD, HEAD_SIZE, HEADS, WIDTH

pytestmark = pytest.mark.usefixtures("own_cache")


def factors(outputs: int, inputs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors of a change of rank 3."""
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((3, inputs)), random.standard_normal((outputs, 3))
    return a.astype(np.float32), b.astype(np.float32)


def changes() -> dict[str, adapter.LowRank]:
    return {
        "0.query": adapter.round_factors(*factors(HEADS * HEAD_SIZE, WIDTH, 1)),
        "1.down": adapter.round_factors(*factors(WIDTH, FEED_FORWARD, 2)),
    }


NORMS = {"final_norm": np.linspace(0.5, 2, WIDTH).astype(np.float32)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    adapter.save(tmp_path / "a.safetensors", changes(), NORMS)
    return tmp_path / "a.safetensors"


def test_factors_are_rounded_to_8_bits():
    a, b = factors(40, 30, 3)
    exact = b @ a
    rounded = adapter.round_factors(a, b).rows(0, 40)
    assert np.abs(rounded - exact).max() < 0.02 * np.abs(exact).max()
    none = adapter.round_factors(np.zeros((2, 30), np.float32), np.zeros((40, 2), np.float32))
    assert not none.rows(0, 40).any()


def test_what_is_saved_is_loaded(saved):
    loaded = adapter.load(saved)
    assert loaded.changes.keys() == changes().keys() and loaded.norms.keys() == NORMS.keys()
    for name, change in changes().items():
        assert np.array_equal(loaded.changes[name].rows(3, 9), change.rows(0, len(change.b))[3:9])
    assert np.array_equal(loaded.norms["final_norm"], NORMS["final_norm"])


def test_an_adapter_equals_weights_changed_before(folder, saved, tokenizer, tmp_path):
    values = tiny_models.tensors(tokenizer.get_vocab_size())
    values["model.layers.0.self_attn.q_proj.weight"] += changes()["0.query"].rows(0, HEADS * HEAD_SIZE)
    values["model.layers.1.mlp.down_proj.weight"] += changes()["1.down"].rows(0, WIDTH)
    values["model.norm.weight"] = NORMS["final_norm"]
    whole = tiny_models.write_folder(tmp_path / "whole", tokenizer, values)
    assert load(folder, saved).identity == load(whole).identity


def test_an_adapter_gives_the_same_weights_from_every_format(folder, saved, tokenizer, tmp_path):
    """GGUF has rotary pairs side by side."""
    path = tiny_models.write_gguf(tmp_path / "tiny.gguf", tokenizer)
    plain, adapted = load(path), load(path, saved)
    assert plain.identity == load(folder).identity != adapted.identity == load(folder, saved).identity


def test_finds_the_adapter_that_a_file_needs(folder, saved):
    changed = models.find(folder, saved)
    assert changed.identity != models.find(folder).identity == models.find(folder, models.NO_ADAPTER).identity
    assert models.for_identity("tiny", changed.identity, folder, saved).identity == changed.identity
    with pytest.raises(ModelError) as error:
        models.for_identity("tiny", models.find(folder).identity, folder, saved)
    assert str(error.value).endswith(f"and {folder} with {saved} is 'tiny' ({changed.identity[:12]})")


def test_refuses_damaged_and_foreign_adapters(folder, saved, tmp_path):
    missing = tmp_path / "none.safetensors"
    with pytest.raises(ModelError, match="the adapter cannot be read: No such file or directory"):
        load(folder, missing)
    other = tmp_path / "other.safetensors"
    save_file({"x": np.zeros(3, np.float32)}, other)
    for path in (other, folder / "config.json"):
        with pytest.raises(ModelError, match="not an adapter that `squeeze train --adapter` wrote"):
            load(folder, path)
    adapter.save(other, {"0.query": adapter.round_factors(*factors(8, WIDTH, 1))}, {})
    with pytest.raises(ModelError, match=r"the adapter is for another model: 0\.query is \[8, 32\] in it, \[32, 32\]"):
        load(folder, other)
    adapter.save(other, {}, {"9.attention_norm": np.ones(WIDTH, np.float32)})
    with pytest.raises(ModelError, match=r"for another model: 9\.attention_norm is \[32\] in it, none here"):
        load(folder, other)
    change = changes()["0.query"]
    for wrong in (replace(change, a=change.a[:2]), replace(change, scale=change.scale.astype(np.int32))):
        adapter.save(other, {"0.query": wrong}, {})
        with pytest.raises(ModelError, match="not an adapter that"):
            load(folder, other)
    adapter.save(other, {}, {"final_norm": np.ones(WIDTH, np.int32)})
    with pytest.raises(ModelError, match="not an adapter that"):
        load(folder, other)
    for number in (np.nan, np.inf, -3e38):
        adapter.save(other, {"0.query": replace(change, scale=np.full_like(change.scale, number))}, {})
        with pytest.raises(ModelError, match="it holds a number that is not finite or too large"):
            adapter.load(other)
        adapter.save(other, {}, {"final_norm": np.full(WIDTH, number, np.float32)})
        with pytest.raises(ModelError, match="it holds a number that is not finite or too large"):
            adapter.load(other)
    data = bytearray(saved.read_bytes())
    data[-3] ^= 1
    saved.write_bytes(data)
    with pytest.raises(ModelError, match="the adapter is damaged: its checksum differs"):
        load(folder, saved)
    saved.write_bytes(data[:-100])
    with pytest.raises(ModelError, match="adapter"):
        load(folder, saved)
