"""SliceGPT's stream: smaller dense shapes, and the function kept where nothing goes."""

import json

import pytest
import torch

from squeeze.recipes.plan.slicegpt import Stream
from tests.makers.factorised import TOKENS, distance, factorised, logits

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("kind", ("llama", "qwen2", "qwen3", "mixtral", "qwen2_moe"))
def test_a_stream_of_all_directions_keeps_the_function(tmp_path, folders, kind):
    factorised(folders, kind, "slicegpt", tmp_path / "out", keep=1.0)
    assert distance(logits(tmp_path / "out"), logits(folders(kind))) < 0.02  # bf16


def test_a_narrower_stream_is_a_plain_model(tmp_path, folders):
    report = factorised(folders, "llama", "slicegpt", tmp_path / "out", keep=0.9)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["hidden_size"] == 56 and config["head_dim"] == 16 and "quantization_config" not in config
    assert config["rms_norm_eps"] == pytest.approx(1e-6 * 64 / 56)
    assert len(report.layers) == 14 and report.bits_per_weight == pytest.approx(16 * 56 / 64)
    assert all(0 < layer.error < 0.5 and layer.tokens == TOKENS.numel() for layer in report.layers)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.lm_head.weight.shape == (300, 56)
    errors = [distance(logits(tmp_path / "out"), logits(folders("llama")))]
    factorised(folders, "llama", "slicegpt", tmp_path / "less", keep=0.6)
    errors.append(distance(logits(tmp_path / "less"), logits(folders("llama"))))
    assert errors[0] < 0.7 < errors[1]


def test_a_stream_in_a_subspace_is_read_without_loss(tmp_path):
    generator = torch.Generator().manual_seed(4)
    basis = torch.linalg.qr(torch.randn((12, 12), generator=generator).double()).Q[:, :5]
    x = torch.randn((100, 5), generator=generator).double() @ basis.T
    u = x / x.square().mean(1, keepdim=True).sqrt()
    stream = Stream(tmp_path, 100)
    stream.add("norm", u.T @ u / 100, torch.rand(12, generator=generator).double())
    assert torch.equal(stream.moments("norm"), u.T @ u / 100)
    kept = stream.directions(5)
    narrow = x @ kept
    narrow = narrow / narrow.square().mean(1, keepdim=True).sqrt()  # RMSNorm of the narrow stream
    weight = torch.randn((7, 12), generator=generator).double()
    wanted = u * stream.factors["norm"] @ weight.T
    assert torch.allclose(narrow @ (weight @ stream.reader("norm", kept)).T, wanted, atol=1e-4)
