"""`squeeze eval --activations`: inputs of matrices are rounded to the requested grid, and misfits are refused."""

import json

import pytest
import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import OptionError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.quant.activations import TOPS, ActivationGrid
from squeeze.quant.codebooks import CODEBOOKS
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.measure.activations import ActivationSpec, round_activations
from tests.makers import zoo
from tests.makers.command import call, usage_error

IDS = torch.randint(0, 200, (1, 24), generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(0, 200, (2, 32), generator=torch.Generator().manual_seed(2))


def logits(folder, words=None):
    model = load_model(folder)
    if words is not None:
        assert round_activations(model, Checkpoint.open(folder), ActivationSpec.parse(words)) == 14
    with torch.no_grad():
        return model(IDS).logits


def test_errors_follow_the_bits(folders):
    exact = logits(folders("llama"))
    order = ("int8", "fp8", "fp6-e2m3", "int4,group=32,outliers=8", "int4,group=32", "int4")
    lost = [float((logits(folders("llama"), words) - exact).norm() / exact.norm()) for words in order]
    assert 0 < lost[0] < 0.05 and lost == sorted(lost)
    assert logits(folders("llama"), "mxfp4").isfinite().all() and logits(folders("llama"), "nvfp4").isfinite().all()


@pytest.mark.parametrize(("kind", "codebook"), [("fp6-e3m2", "fp6-e3m2"), ("fp6-e2m3", "fp6-e2m3"), ("fp4", "mxfp4")])
def test_small_floats_are_the_levels_of_weights(kind, codebook):
    levels = torch.tensor(CODEBOOKS[codebook].planes[0])
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(3))
    scale = x.abs().amax(-1, keepdim=True) / TOPS[kind]
    found = ActivationGrid(kind, -1)(x) / scale
    nearest = levels[((x / scale)[..., None] - levels).abs().argmin(-1)]
    assert (found - nearest).abs().max() < 1e-4


def test_int4_has_16_levels_and_outliers_stay(folders):
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(4))
    x[:, 5] *= 50
    module = torch.nn.Linear(64, 8)
    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList([torch.nn.ModuleDict({"proj": module}) for _ in range(1)])
    seen = []
    round_activations(model, None, ActivationSpec.parse("int4,outliers=1"))
    module.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    module(x)
    (rounded,) = seen
    assert torch.equal(rounded[:, 5], x[:, 5])
    others = torch.cat([rounded[:, :5], rounded[:, 6:]], 1)
    assert all(len(row.unique()) <= 16 for row in others)
    assert (others - torch.cat([x[:, :5], x[:, 6:]], 1)).abs().max() < 0.5


def test_columns_that_a_weight_keeps_exact_are_not_rounded(tmp_path, folders):
    squeeze.quantize(
        folders("llama"),
        GPTQ(bits=4, group_size=32, outliers=2),
        out=tmp_path / "out",
        format="squeeze",
        calibration=TOKENS,
    )
    model = load_model(tmp_path / "out")
    name = "model.layers.0.self_attn.q_proj"
    layer, seen = model.get_submodule(name), []
    round_activations(model, Checkpoint.open(tmp_path / "out"), ActivationSpec.parse("int4"))
    before = []
    layer.register_forward_pre_hook(lambda module, args: before.append(args[0]), prepend=True)
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        model(IDS)
    kept = layer.outlier_inputs.long()
    changed = (seen[0] != before[0]).flatten(0, 1).any(0)
    assert len(kept) == 2 and not changed[kept].any() and changed.sum() > 40


@pytest.mark.parametrize(
    "words", ["int3", "int4,groups=2", "int4,group=0", "int4,outliers=x", "mxfp4,group=32", "int4,group"]
)
def test_invalid_grids_are_refused(words):
    with pytest.raises(OptionError, match="activations"):
        ActivationSpec.parse(words)


def test_combinations_that_cannot_be_computed_are_refused(tmp_path, folders):
    folder = folders("llama")
    with pytest.raises(SqueezeError, match="which groups of 40 do not divide"):
        round_activations(load_model(folder), Checkpoint.open(folder), ActivationSpec.parse("int8,group=40"))
    squeeze.quantize(folder, "rtn", scheme="fp8_dynamic", out=tmp_path / "fp8")
    with pytest.raises(SqueezeError, match="rounded already"):
        round_activations(load_model(tmp_path / "fp8"), Checkpoint.open(tmp_path / "fp8"), ActivationSpec.parse("int8"))
    moe = folders("qwen2_moe")
    with pytest.raises(SqueezeError, match="experts in one tensor"):
        round_activations(load_model(moe), Checkpoint.open(moe), ActivationSpec.parse("int8"))


def test_the_command_names_the_grid(tmp_path):
    folder, text = zoo.write(tmp_path / "model", "llama"), tmp_path / "text"
    text.write_text(zoo.TEXT)
    options = ("--text", text, "--window", 32, "--windows", 1, "--original", folder)
    told = json.loads(call("eval", folder, *options, "--activations", "int8,outliers=2", "--json").stdout)
    assert told["activations"] == "int8,outliers=2" and 0 < told["kl_mean"] < 0.1
    assert "'int5': choose from int8, int4" in usage_error("eval", folder, *options, "--activations", "int5")
    assert "--activations needs --text" in usage_error(
        "eval", folder, *options[-2:], "--activations", "int8", "--inputs", text
    )
