"""Mask-preserving retraining: what may change and what may not, resuming, and the model it gives."""

import pytest
import torch

import squeeze
from squeeze.checkpoint.pattern import Pattern
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.prune.scores import Magnitude
from squeeze.prune.slim import SLiM
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.prune.stored import Sparse24Linear
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.prune import recovered
from squeeze.recipes.train import distil, losses, trainer
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.masked import MaskedLinear, MaskLoRA
from squeeze.recipes.train.retrain import recover
from tests.makers.layers import problem

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 200,
    "intermediate_size": 64,
}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "gpt2": lambda: transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=200, n_positions=64),
}
TOKENS = torch.randint(0, 200, (4, 24), generator=torch.Generator().manual_seed(1))


def model(folder, kind="llama"):
    torch.manual_seed(4)
    made = transformers.AutoModelForCausalLM.from_config(MODELS[kind]())
    for parameter in made.parameters():
        if parameter.ndim > 1:
            parameter.data *= 4  # so that logits are far from uniform
    made.save_pretrained(folder)
    return folder


def sparse(folder):
    return {
        name: layer.sparse() for name, layer in load_model(folder).named_modules() if isinstance(layer, Sparse24Linear)
    }


@pytest.mark.parametrize(
    ("kind", "rank", "halves"),
    [("llama", None, False), ("llama", 4, True), ("gpt2", None, True), ("gpt2", 4, False)],
)
def test_a_pruned_model_recovers_and_keeps_its_zeros(tmp_path, monkeypatch, kind, rank, halves):
    monkeypatch.setattr(trainer, "in_halves", lambda device: halves)
    source, out = model(tmp_path / "model", kind), tmp_path / "out"
    squeeze.prune(source, Magnitude(), out=out)
    before = sparse(out)
    done = recover(source, out, TOKENS, Training(minutes=5, steps=24, rate=1e-2, batch=4), rank)
    assert done.steps == 24 and done.losses[-1] < 0.7 * done.losses[0]
    after = sparse(out)
    assert before.keys() == after.keys() and len(before) > 0
    for name, weight in after.items():
        assert torch.equal(weight.mask, before[name].mask)
        assert not torch.equal(weight.sparse(), before[name].sparse())
        assert (weight.sparse()[~weight.mask] == 0).all()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("method", [SparseGPT(), SLiM(rank=0.1)], ids=lambda method: method.name)
def test_the_layers_start_as_the_weight_they_stand_for(method):
    weight, hessian = problem(16, 32)
    pruned = method.compress(weight, hessian).tensor
    lora = MaskLoRA(pruned, torch.ones(16), 4, torch.Generator().manual_seed(0))
    x = torch.randn(3, 32)
    for layer in (lora, MaskedLinear(pruned, torch.ones(16))):
        torch.testing.assert_close(layer(x), x @ pruned.dequantize().T + 1)
        assert torch.equal(layer.merged().sparse(), pruned.sparse())
        assert layer.merged().adapters is pruned.adapters


def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    source = model(tmp_path / "model")
    settings = {"minutes": 5, "steps": 4, "batch": 2}
    for name in ("whole", "again"):
        squeeze.prune(source, Magnitude(), out=tmp_path / name)
    recover(source, tmp_path / "whole", TOKENS, Training(**settings), 4)
    monkeypatch.setattr(trainer, "_SAVE_EVERY", 1)

    def stop(what, done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recover(source, tmp_path / "again", TOKENS, Training(progress=stop, **settings), 4)
    done = recover(source, tmp_path / "again", TOKENS, Training(**settings), 4)
    assert done.steps == 4
    wanted, found = sparse(tmp_path / "whole"), sparse(tmp_path / "again")
    assert all(torch.equal(wanted[name].sparse(), found[name].sparse()) for name in wanted)


def test_the_report_names_the_steps_and_quantised_weights_are_refused(tmp_path):
    source = model(tmp_path / "model")
    shared = {"calibration": TOKENS, "out": tmp_path / "out"}
    report = squeeze.prune(source, SparseGPT(refine=0), recover=0.001, **shared)
    assert report.settings["recovery"].endswith(" steps") and report.layers[0].pattern == "2:4"
    report = recovered(source, tmp_path / "out", minutes=1, steps=1, calibration=TOKENS)
    assert report.settings["recovery"] == "1 steps" and report.stored_bytes > 0
    grid = SparseGPT(refine=0, reconstruct=0, quantizer=GPTQ(bits=4, group_size=32))
    for method, dense in ((grid, False), (Magnitude(), True)):
        with pytest.raises(SqueezeError, match="recovery takes neither quantised weights nor a dense folder"):
            squeeze.prune(source, method, recover=1, dense=dense, calibration=TOKENS, out=tmp_path / "x")
    with pytest.raises(SqueezeError, match="has no sparse weights in floating point to retrain"):
        recover(source, source, TOKENS, Training(minutes=1))
    with pytest.raises(SqueezeError, match=r"has no compression_report\.json"):
        recovered(source, source, minutes=1, calibration=TOKENS)


def test_the_rate_suits_the_damage(tmp_path):
    source, folders = model(tmp_path / "model"), [tmp_path / "6-8", tmp_path / "1-4"]
    for folder in folders:
        squeeze.prune(source, Magnitude(pattern=Pattern.parse(folder.name.replace("-", ":"))), out=folder)
    teacher, *students = (load_model(folder) for folder in (source, *folders))
    little, much = (distil.rate_for(student, teacher, TOKENS, 1e-3) for student in students)
    lost = sum(float(losses.divergence(students[0], teacher, ids[None])) for ids in TOKENS) / len(TOKENS)
    assert 0 < little < much <= 1e-3
    assert little == pytest.approx(1e-3 * lost, rel=1e-4)
    assert distil.rate_for(teacher, teacher, TOKENS, 1e-3) == pytest.approx(0, abs=1e-8)
    assert distil.rate_of([2e-9, -4e-9], 1e-3) == 0  # Adam takes no rate below
