"""The built-in calibration set: what it holds, and that it calibrates."""

from pathlib import Path

import pytest
import torch

import squeeze
from squeeze.checkpoint.pretrained import TOKENIZERS
from squeeze.recipes.tokens import built_in, calibration_name, calibration_tokens, default_calibration
from tests.makers import zoo, zoo_others
from tests.makers.cases import all_slow_but

TEXT = Path(__file__).parents[2] / "training" / "calibration" / "text.txt"


def test_the_installed_set_is_the_text_of_the_repository():
    text = built_in()
    assert text.encode() == TEXT.read_bytes()  # else: python -m training.calibration.make
    assert 250_000 < len(text.encode()) < 350_000
    for part in ("User: ", "Assistant: ", "def ", "marché", "村子", "| item | count | price |"):
        assert part in text


def test_it_is_chosen_by_name(tmp_path):
    folder = zoo.write(tmp_path / "model", "llama")
    tokens = calibration_tokens(folder, "built-in", 8, 64, 0)
    assert tokens.shape == (8, 64) and torch.equal(tokens, calibration_tokens(folder, "built-in", 8, 64, 0))
    assert calibration_name("built-in", folder) == "built-in"
    report = squeeze.quantize(
        folder, group_size=32, calibration="built-in", samples=4, sequence_length=64, out=tmp_path / "out"
    )
    assert report.settings["calibration"] == "built-in"


@pytest.mark.parametrize("kind", all_slow_but(["bert"], ["llama", "bert"]))
def test_it_is_the_default_of_models_that_read_text(tmp_path, kind):
    folder = zoo.write(tmp_path / "model", "llama") if kind == "llama" else bert(tmp_path / "model")
    shared = {"group_size": 32, "samples": 4, "sequence_length": 32}
    reports = [squeeze.quantize(folder, out=tmp_path / name, **shared, **given) for name, given in NAMED.items()]
    assert [report.settings["calibration"] for report in reports] == ["built-in", "built-in"]
    errors = [[layer.error for layer in report.layers] for report in reports]
    assert errors[0] == errors[1] and None not in errors[0]


NAMED = {"plain": {}, "named": {"calibration": "built-in"}}


def bert(folder):
    zoo_others.write(folder, "BertModel")
    zoo.tokenizer().save_pretrained(folder)
    return folder


def test_a_model_without_a_tokenizer_writes_its_own(tmp_path):
    folder = zoo.write(tmp_path / "model", "llama")
    assert default_calibration(folder) == "built-in"
    for name in TOKENIZERS:
        (folder / name).unlink(missing_ok=True)
    assert default_calibration(folder) == "self"
    assert calibration_tokens(folder, None, 2, 16, 0).shape == (2, 16)
