"""Adapters: what they learn, that a stopped run gives the same, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from squeeze.errors import ModelError, OptionError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.lm import adapter, models
from squeeze.recipes.train import adapt, trainer
from squeeze.recipes.train.adapt import adapt_to, read_passages
from squeeze.recipes.train.distil import Training
from tests.makers import tiny_models
from tests.makers.cases import every

pytest.importorskip("transformers", reason="transformers is not installed")

TEXT = b"".join(b"The number %d is followed by the number %d, as everybody knows.\n" % (i, i + 1) for i in range(3000))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = tiny_models.byte_level()
    return tiny_models.write_folder(tmp_path / "tiny", tokenizer, vocab_size=tokenizer.get_vocab_size())


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_bytes(TEXT)
    return tmp_path / "text.txt"


def training(steps: int, **settings) -> Training:
    return Training(minutes=0, steps=steps, rate=2e-2, batch=2, **settings)


@pytest.mark.parametrize("halves", every(2, [False, True]))
def test_an_adapter_lowers_the_bits_of_held_out_text(folder, text, tmp_path, monkeypatch, halves):
    monkeypatch.setattr(trainer, "in_halves", lambda device: halves)
    out = tmp_path / "out.safetensors"
    done = adapt_to([text], folder, out, training(30), rank=4)
    assert done.steps == 30 and done.after["held out"] < 0.7 * done.before["held out"]
    assert models.find(folder, out).identity != models.find(folder).identity
    assert not list(tmp_path.glob(".*"))


def test_a_gguf_file_learns(text, tmp_path):
    path, out = tiny_models.write_gguf(tmp_path / "tiny.gguf", tiny_models.byte_level()), tmp_path / "out"
    done = adapt_to([text], path, out, training(20), rank=4)
    assert done.after["held out"] < 0.8 * done.before["held out"]
    assert models.find(path, out).identity != models.find(path).identity
    assert not list(tmp_path.glob(".*")) and not list(tmp_path.glob("*.model"))


def test_an_adapter_goes_on_from_another(folder, text, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    learned_first = adapt_to([text], folder, first, training(30), rank=4)
    model, (learned, held) = load_model(folder, torch.float32), read_passages(models.find(folder), [text])
    done = adapt.adapt(model, learned, {"held out": held}, second, training(0), 4, start=adapter.load(first))
    assert done.steps == 0 and done.after == done.before
    assert done.before["held out"] == pytest.approx(learned_first.after["held out"], rel=0.01)
    for name, change in adapter.load(first).changes.items():
        same = adapter.load(second).changes[name]
        assert np.array_equal(change.a, same.a) and np.array_equal(change.b, same.b)


def test_a_stopped_run_goes_on(folder, text, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "_SAVE_EVERY", 3)
    adapt_to([text], folder, tmp_path / "whole", training(8), rank=2)

    def stop(name: str, done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    out = tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        adapt_to([text], folder, out, training(8, progress=stop), rank=2)
    assert not out.exists()
    steps = []
    adapt_to([text], folder, out, training(8, progress=lambda name, done, total: steps.append(done)), rank=2)
    assert steps == [6, 7, 8]  # the fifth was saved as it ended
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_stopped_run_goes_on_for_longer(folder, text, tmp_path):
    """So does one that was stopped before it saved the first time."""

    def stop(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt_to([text], folder, tmp_path / "out", training(2, progress=stop), rank=2)
    steps = []
    told = training(4, resume=True, progress=lambda name, done, total: steps.append(done))
    assert adapt_to([text], folder, tmp_path / "out", told, rank=2).steps == 4
    assert steps == [2, 3, 4]


@pytest.mark.parametrize("minutes", [float("nan"), float("inf"), 1e300, -1])
def test_a_time_that_does_not_end_is_refused(minutes):
    with pytest.raises(OptionError, match=r"expected minutes from 0 to 525600 \(a year\), got "):
        Training(minutes=minutes)


def test_one_passage_in_twenty_is_held_out(folder, tmp_path):
    """Held-out passages are not trained on."""
    path = tmp_path / "text"
    path.write_bytes(TEXT[:60_000])
    model = models.find(folder)
    learned, held = read_passages(model, [path], length=64)
    assert len(held.tokens) == max(2, (len(held.tokens) + len(learned.tokens)) // 20)
    assert learned.tokens.shape[1] == 65 and (learned.tokens[:, 0] == 1).all()
    assert all(row not in learned.tokens.tolist() for row in held.tokens.tolist())
    few, _ = read_passages(model, [path], length=64, most=40)
    assert len(few.tokens) == 40


def test_refuses_an_existing_file_and_too_little_text(folder, text, tmp_path):
    out = tmp_path / "out"
    out.touch()
    with pytest.raises(SqueezeError, match="already exists; use `overwrite=True` to overwrite"):
        adapt_to([text], folder, out, training(1))
    out.unlink()
    small = tmp_path / "small"
    small.write_bytes(TEXT[:5000])
    with pytest.raises(SqueezeError, match="an adapter needs at least 36 KB of text to learn from: name more files"):
        adapt_to([small], folder, out, training(1))
    with pytest.raises(ModelError, match="no such model"):
        adapt_to([text], tmp_path / "nothing", out, training(1))
    assert not out.exists() and adapt._FEWEST * adapt.LENGTH * 3 == 36 << 10
