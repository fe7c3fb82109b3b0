"""Recovery of weights on grids: what is trained, what stays, formats, resuming, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils.parametrize import register_parametrization

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import SqueezeError
from squeeze.integrations.forms import open_stored
from squeeze.integrations.load_model import load_model
from squeeze.recipes.train import by_block, grids, trainer
from squeeze.recipes.train.losses import divergence
from tests.makers.cases import all_slow_but, every

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 200}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, intermediate_size=64, attention_bias=True),
    "gpt2": lambda: transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=200, n_positions=64),
}
TOKENS = torch.randint(0, 200, (8, 24), generator=torch.Generator().manual_seed(1))

ORDER = torch.randperm(len(TOKENS), generator=torch.Generator().manual_seed(0)).tolist()
TRAINED, HELD_OUT = ORDER[:4], ORDER[4:]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that makes the model of a kind once."""
    made = {}

    def model(kind="llama", seed=4):
        if (kind, seed) not in made:
            torch.manual_seed(seed)
            network = transformers.AutoModelForCausalLM.from_config(MODELS[kind]())
            for parameter in network.parameters():
                if parameter.ndim > 1:
                    parameter.data *= 4  # so that logits are far from uniform
            folder = tmp_path_factory.mktemp("models") / f"{kind}{seed}"
            network.save_pretrained(folder)
            made[kind, seed] = folder
        return made[kind, seed]

    return model


def quantised(base, out, **options):
    grid = {} if "scheme" in options else {"bits": 3, "group_size": 32, "format": "squeeze"}
    squeeze.quantize(base, "rtn", out=out, **{**grid, **options})
    return out


def with_larger_scales(folder):
    """Make every scale of a folder a fifth larger, which is a damage that training can mend."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    scales = {name: x for name, x in tensors.items() if name.endswith(("scales", "weight_scale"))}
    larger = {name: (1.2 * x.float()).to(x.dtype) for name, x in scales.items() if not is_outer(name)}
    save_file({**tensors, **larger}, path, {"format": "pt"})
    return folder


def is_outer(name):
    """Return whether a name is of the embedding or the head, which are not trained."""
    return name.startswith(("model.embed_tokens", "lm_head"))


def weights(folder):
    """Return the stored weight of each compressed matrix."""
    checkpoint = Checkpoint.open(folder)
    stored = open_stored(checkpoint)
    return {
        module: stored.weight(module, checkpoint.load([f"{module}.{leaf}" for leaf in leaves], strict=False))
        for module, leaves in stored.modules.items()
    }


def lost(folder, base):
    """Return the divergence on each of the sequences, of which half are trained on and half are held out."""
    student, teacher = load_model(folder, torch.float32), load_model(base, torch.float32)
    with torch.no_grad():
        return [float(divergence(student, teacher, ids)) for ids in torch.split(TOKENS, 1)]


def shapes(folder):
    checkpoint = Checkpoint.open(folder)
    return {name: (checkpoint.info(name).dtype, checkpoint.info(name).shape) for name in checkpoint.files}


FORMATS = {
    "squeeze": {"symmetric": False},
    "compressed-tensors": {"format": "compressed-tensors", "bits": 4},
    "gptq": {"format": "gptq", "bits": 4},
    "nf4": {"grid": "nf4"},
    "nf4-fp8": {"grid": "nf4-fp8"},
    "nvfp4": {"grid": "nvfp4", "group_size": 16, "format": "compressed-tensors"},
    "whole4": {"scheme": "whole4"},
}
NARROW = ("nf4-fp8", "nvfp4", "whole4")  # formats with scales of 8 bits, which move in steps of 6 %


def assert_same_form(source, out):
    assert shapes(out) == shapes(source)
    assert json.loads((out / "config.json").read_text()) == json.loads((source / "config.json").read_text())


@pytest.mark.parametrize("name", every(4, FORMATS))
def test_scales_learn_and_codes_stay(tmp_path, models, monkeypatch, name):
    monkeypatch.setattr(trainer, "in_halves", lambda device: False)
    base = models()
    source, out = with_larger_scales(quantised(base, tmp_path / "source", **FORMATS[name])), tmp_path / "out"
    how = {"steps": 40, "rate": 5e-3} if name in NARROW else {"steps": 20, "rate": 2e-3}
    report = squeeze.recover(source, base=base, out=out, calibration=TOKENS, **how)
    before, after = lost(source, base), lost(out, base)
    assert sum(after[row] for row in TRAINED) < sum(before[row] for row in TRAINED)
    wanted = [sum(losses[row] for row in HELD_OUT) / len(HELD_OUT) for losses in (before, after)]
    assert report.settings["recovery"]["kl"] == pytest.approx(wanted, rel=1e-3)
    assert_same_form(source, out)
    old, new = weights(source), weights(out)
    assert all(torch.equal(old[module].codes, new[module].codes) for module in old)
    assert all((old[module].scales != new[module].scales).any() != is_outer(module) for module in old)


@pytest.mark.parametrize("name", ["squeeze", "compressed-tensors"])
def test_codes_move_to_neighbours(tmp_path, models, monkeypatch, name):
    monkeypatch.setattr(trainer, "in_halves", lambda device: False)
    base, out = models(), tmp_path / "out"
    source = quantised(base, tmp_path / "source", **FORMATS[name] | {"bits": 2, "clip": False})
    squeeze.recover(source, base=base, out=out, calibration=TOKENS, steps=20, rate=5e-3, codes="move")
    before, after = lost(source, base), lost(out, base)
    assert sum(after[row] for row in TRAINED) < sum(before[row] for row in TRAINED)
    assert_same_form(source, out)
    old, new = weights(source), weights(out)
    assert {int((old[one].codes.int() - new[one].codes.int()).abs().max()) for one in old} == {1}


@pytest.mark.parametrize(
    ("kind", "is_sparse"),
    all_slow_but([("llama", False), ("gpt2", True)], [("llama", False), ("gpt2", False), ("gpt2", True)]),
)
def test_with_one_block_in_memory_the_result_is_the_same(tmp_path, models, monkeypatch, kind, is_sparse):
    for module in (trainer, by_block):
        monkeypatch.setattr(module, "in_halves", lambda device: False)
    base, source = models(kind), tmp_path / "source"
    if is_sparse:
        squeeze.prune(base, out=source, pattern="2:4", bits=4, group_size=32, calibration=TOKENS)
    else:
        quantised(base, source)
    how = {"base": base, "calibration": TOKENS, "steps": 3, "codes": "move", "blocks": 0.5}
    how |= {"rate": 1e-3} if is_sparse else {}
    squeeze.recover(source, out=tmp_path / "whole", **how)
    monkeypatch.setattr(by_block, "_room", lambda device: 0.0)
    squeeze.recover(source, out=tmp_path / "blocks", **how)
    whole, blocks = (load_model(tmp_path / name, torch.float32).state_dict() for name in ("whole", "blocks"))
    assert all(torch.equal(whole[name], blocks[name]) for name in whole)


def test_each_stage_has_a_rate_and_a_schedule():
    steps = trainer.Steps(TOKENS, 2.0, 1, 0, torch.device("cpu"))
    shares = (0.0, 0.1, 0.25, 0.5, 0.9)
    plain = [steps._rate_at(share) for share in shares]
    assert plain[0] == pytest.approx(0.2) and plain[2] > plain[3] > plain[4]
    steps.blocks, steps.block_rate = 0.5, 8.0
    assert [steps._rate_at(share / 2) for share in (0.0, 0.1, 0.25, 0.5, 0.9)] == pytest.approx(
        [4 * one for one in plain]
    )
    assert [steps._rate_at(0.5 + share / 2) for share in shares] == pytest.approx(plain)


@pytest.mark.parametrize("size", [0.02, 2.0])
def test_a_norm_moves_in_proportion_to_its_size(size):
    norm = torch.nn.RMSNorm(4)
    norm.weight.data = size * torch.tensor([1.0, 1.0, -1.0, 1.0])
    before = norm.weight.detach().clone()
    register_parametrization(norm, "weight", grids.InSizes(norm.weight))
    assert torch.allclose(norm.weight, before)
    optimiser = trainer.adam(norm.parameters(), 1e-2)
    norm(torch.ones(1, 4)).sum().backward()
    optimiser.step()
    assert torch.allclose(before - norm.weight, torch.full((4,), 1e-2 * size), rtol=1e-3)


def test_sparse_codes_keep_their_mask(tmp_path, models):
    base, source, out = models(), tmp_path / "source", tmp_path / "out"
    squeeze.prune(base, out=source, pattern="2:4", bits=4, group_size=32, calibration=TOKENS)
    with_larger_scales(source)
    squeeze.recover(source, base=base, out=out, calibration=TOKENS, steps=20, rate=2e-3)
    before, after = lost(source, base), lost(out, base)
    assert sum(after[row] for row in TRAINED) < sum(before[row] for row in TRAINED)
    squeeze.recover(source, base=base, out=out, calibration=TOKENS, steps=20, rate=5e-3, codes="move", overwrite=True)
    old, new = weights(source), weights(out)
    assert all(torch.equal(old[module].mask, new[module].mask) for module in old)
    assert any((old[module].values.codes != new[module].values.codes).any() for module in old)


def test_kept_floats_learn_as_well(tmp_path, models):
    base, source, out = models(), tmp_path / "source", tmp_path / "out"
    squeeze.prune(base, out=source, pattern="2:4", calibration=TOKENS)
    squeeze.recover(source, base=base, out=out, calibration=TOKENS, steps=20, rate=1e-3)
    before, after = lost(source, base), lost(out, base)
    assert sum(after[row] for row in TRAINED) < sum(before[row] for row in TRAINED)


def test_a_stopped_run_goes_on_and_a_complete_one_is_kept(tmp_path, models):
    base = models()
    source, out = quantised(base, tmp_path / "source"), tmp_path / "out"
    how = {"base": base, "calibration": TOKENS, "steps": 6, "rate": 1e-3}

    def stop(what, done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        squeeze.recover(source, out=out, progress=stop, **how)
    assert not out.exists()
    squeeze.recover(source, out=out, resume=True, **how)
    squeeze.recover(source, out=tmp_path / "at-once", **how)
    one, other = weights(out), weights(tmp_path / "at-once")
    assert all(torch.equal(one[module].scales, other[module].scales) for module in one)
    assert squeeze.recover(source, out=out, resume=True, **how).settings["recovery"]["steps"] == 6
    with pytest.raises(SqueezeError, match="other settings"):
        squeeze.recover(source, out=out, resume=True, **how | {"rate": 2e-3})
    with pytest.raises(SqueezeError, match="exists"):
        squeeze.recover(source, out=out, **how)


def test_what_cannot_be_honoured_is_refused(tmp_path, models):
    base, other, out = models(), models(seed=5), tmp_path / "out"
    source = quantised(base, tmp_path / "source")
    how = {"out": out, "calibration": TOKENS, "steps": 1}
    rounded = quantised(base, tmp_path / "rounded", scheme="w8a8")
    narrow = quantised(base, tmp_path / "narrow", bits=4, grid="mxfp4")
    nf4 = quantised(base, tmp_path / "nf4", bits=4, grid="nf4")
    whole = quantised(base, tmp_path / "whole", bits=4, grid="nf4", head=4)
    squeeze.pack(source, tmp_path / "packed")
    for folder, original, options, message in (
        (source, other, {}, "do not compute what those of"),
        (source, models("gpt2"), {}, "model_type is gpt2"),
        (source, source, {}, "is compressed itself"),
        (base, base, {}, "weights are dense, without scales to train"),
        (rounded, base, {}, "are rounded"),
        (narrow, base, {}, "scales are powers of two"),
        (tmp_path / "packed", base, {}, "is packed"),
        (nf4, base, {"codes": "move"}, "codes are of a codebook"),
        (whole, base, {"codes": "move"}, "codes are of a codebook"),  # not that the head is outside the blocks
        (source, base, {"rank": 4}, "`rank` is for sparse weights"),
        (source, base, {"calibration": TOKENS[:4]}, "more than 4 sequences"),
    ):
        with pytest.raises(SqueezeError, match=message) as error:
            squeeze.recover(folder, base=original, **how | options)
        assert "\n" not in str(error.value)
        assert not out.exists()
