"""The built-in calibration set: what it holds, and that it calibrates."""

from pathlib import Path

import torch

import squeeze
from squeeze.recipes.tokens import built_in, calibration_name, calibration_tokens
from tests.makers import zoo

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
    assert calibration_name("built-in") == "built-in"
    report = squeeze.quantize(
        folder, group_size=32, calibration="built-in", samples=4, sequence_length=64, out=tmp_path / "out"
    )
    assert report.settings["calibration"] == "built-in"
