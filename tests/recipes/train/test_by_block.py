"""Training by block gives what training in memory gives, to the bit, with one block in memory; it can go on."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

import squeeze
from squeeze.errors import SqueezeError
from squeeze.prune.scores import Magnitude
from squeeze.recipes.train import by_block, trainer
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.retrain import heal, recover
from tests.makers import networks
from tests.makers.cases import every

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (5, 24), generator=torch.Generator().manual_seed(1))


def half_by_blocks(*given):
    return heal(*given, blocks=0.5)


TASKS = {
    "svd": ("llama", lambda source, out: squeeze.factorize(source, "svd", keep=0.6, out=out), heal),
    "shared": (
        "qwen2",
        lambda source, out: squeeze.factorize(source, "shared", keep=0.6, calibration=TOKENS, out=out),
        heal,
    ),
    "blocks first": ("llama", lambda source, out: squeeze.factorize(source, "svd", keep=0.6, out=out), half_by_blocks),
    "sparse": ("qwen3", lambda source, out: squeeze.prune(source, Magnitude(), out=out), recover),
    "low rank": (
        "gpt2",
        lambda source, out: squeeze.prune(source, Magnitude(), out=out),
        lambda *given: recover(*given, 4),
    ),
}


def short(monkeypatch):
    monkeypatch.setattr(by_block, "free_memory", lambda: 0)


@pytest.mark.parametrize(
    ("task", "halves"),
    every(
        2,
        [
            ("svd", False),
            ("svd", True),
            ("shared", False),
            ("blocks first", False),
            ("blocks first", True),
            ("sparse", True),
            ("low rank", False),
        ],
    ),
)
def test_what_is_learned_is_the_same_to_the_bit(tmp_path, monkeypatch, task, halves):
    for module in (trainer, by_block):
        monkeypatch.setattr(module, "in_halves", lambda device: halves)
    kind, make, train = TASKS[task]
    source, done = networks.save(kind, tmp_path / "model"), {}
    make(source, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "blocks")
    for name in ("whole", "blocks"):
        if name == "blocks":
            short(monkeypatch)
        done[name] = train(source, tmp_path / name, TOKENS, Training(minutes=5, steps=3, batch=2))
    assert done["whole"].losses == done["blocks"].losses
    wanted, found = (load_file(tmp_path / name / "model.safetensors") for name in done)
    assert wanted.keys() == found.keys() and all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("kind", "task"), every(2, [("mixtral", "svd"), ("qwen2_moe", "blocks first"), ("mixtral", "sparse")])
)
def test_experts_stay_as_they_are_and_others_learn_the_same(tmp_path, monkeypatch, kind, task):
    """Train in float32, where only the order of products differs. In bfloat16 the difference would be 2^-8."""
    for module in (trainer, by_block):
        monkeypatch.setattr(module, "in_halves", lambda device: False)
    _, make, train = TASKS[task]
    source, done = networks.save(kind, tmp_path / "model"), {}
    make(source, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "blocks")
    before = load_file(tmp_path / "whole" / "model.safetensors")
    for name in ("whole", "blocks"):
        if name == "blocks":
            short(monkeypatch)
            monkeypatch.delattr("squeeze.recipes.train.retrain.Retraining._in_memory")
        done[name] = train(source, tmp_path / name, TOKENS, Training(minutes=5, steps=2, batch=2))
    assert done["blocks"].losses == pytest.approx(done["whole"].losses, rel=1e-4)
    wanted, found = (load_file(tmp_path / name / "model.safetensors") for name in done)
    for name in wanted:
        if ".experts." in name:
            assert torch.equal(found[name], before[name]), name
        assert torch.allclose(wanted[name].float(), found[name].float(), atol=1e-3, rtol=1e-2), name
    assert any(not torch.equal(found[name], before[name]) for name in wanted if "self_attn" in name)


def test_one_block_is_in_memory_and_a_stopped_run_goes_on(tmp_path, monkeypatch):
    source = networks.save("llama", tmp_path / "model")
    squeeze.factorize(source, "svd", keep=0.6, out=tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    settings = {"minutes": 5, "steps": 3}
    short(monkeypatch)
    heal(source, tmp_path / "whole", TOKENS, Training(**settings))
    held = []

    def stop(what, done, total):
        run = next(one for one in held if isinstance(one, by_block.ByBlock))
        assert all(value.is_meta for network in (run.student, run.teacher) for value in network.model.parameters())
        if done == 2:
            raise KeyboardInterrupt

    made = by_block.ByBlock.__init__
    monkeypatch.setattr(by_block.ByBlock, "__init__", lambda self, *given: held.append(self) or made(self, *given))
    with pytest.raises(KeyboardInterrupt):
        heal(source, tmp_path / "again", TOKENS, Training(progress=stop, **settings))
    monkeypatch.setattr(by_block, "free_memory", lambda: 1 << 50)  # which changes nothing in the middle of a run
    assert heal(source, tmp_path / "again", TOKENS, Training(**settings)).steps == 3
    assert held[-1].step == 3
    wanted, found = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "again"))
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_refuses_a_folder_with_nothing_to_train(tmp_path, monkeypatch):
    short(monkeypatch)
    source = networks.save("llama", tmp_path / "model")
    with pytest.raises(SqueezeError, match="has no factors in floating point to heal"):
        heal(source, source, TOKENS, Training(minutes=0.01))


def test_a_disk_that_is_too_small_is_told_before_the_work(tmp_path, monkeypatch):
    short(monkeypatch)
    source = networks.save("llama", tmp_path / "model")
    squeeze.factorize(source, "svd", keep=0.6, out=tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(by_block.shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    with pytest.raises(SqueezeError, match=r"numbers takes .* GB are free there: make room"):
        heal(source, tmp_path / "out", TOKENS, Training(minutes=1, steps=1))
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
