"""Architectures with modules and tensors of their own: compressed without them, and loaded again."""

import pytest
import torch
from safetensors.torch import load_file

import squeeze
from squeeze.errors import ModelError
from squeeze.integrations.load_model import load_model
from tests.makers import zoo

pytest.importorskip("transformers", reason="transformers is not installed")

IDS = torch.randint(5, 390, (1, 24), generator=torch.Generator().manual_seed(1))


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(IDS).logits


def test_matrices_of_groups_and_tables_of_integers_stay(tmp_path):
    """DeepSeek V4 has a subclass of Linear that multiplies group by group, and a table that chooses experts."""
    source = zoo.write(tmp_path / "model", "deepseek_v4", torch.float32)
    report = squeeze.prune(source, "magnitude", pattern="2:4", out=tmp_path / "out")
    stored = {name: why for name, why in report.left.items() if "DeepseekV4GroupedLinear" in why}
    assert len(stored) == 2
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    same = {f"{name}.weight" for name in stored} | {name for name in before if not before[name].is_floating_point()}
    assert len(same) > 2 and all(torch.equal(before[name], after[name]) for name in same)
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    torch.testing.assert_close(logits(tmp_path / "out"), logits(tmp_path / "dense"), rtol=0.03, atol=0.03)


def test_matrices_that_blocks_have_in_common_stay(tmp_path):
    source = zoo.write(tmp_path / "model", "zamba", torch.float32)
    report = squeeze.prune(source, "magnitude", pattern="2:4", out=tmp_path / "out")
    common = [name for name, why in report.left.items() if why == "has its weight in common with another"]
    assert {name.split(".")[2] for name in common} == {"1", "3"}
    assert {layer.name.split(".")[2] for layer in report.layers} >= {"0", "2"}
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    torch.testing.assert_close(logits(tmp_path / "out"), logits(tmp_path / "dense"), rtol=0.03, atol=0.03)


def test_blocks_that_let_no_gradient_through(tmp_path):
    source = zoo.write(tmp_path / "model", "reformer", torch.float32)
    tokens = torch.randint(5, 390, (4, 64), generator=torch.Generator().manual_seed(2))
    with pytest.raises(ModelError, match=r"ReformerModelWithLMHead lets no gradient through.*such as whitened"):
        squeeze.factorize(source, keep=0.8, calibration=tokens, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
