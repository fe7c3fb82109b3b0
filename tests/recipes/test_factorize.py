"""`squeeze factorize`, `densify` and squeeze.factorize: tiny models of several architectures, end to end."""

import itertools
import json
import math
from types import SimpleNamespace

import click
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.cli import main
from squeeze.engine.quality import evaluate
from squeeze.engine.report import NAME
from squeeze.errors import FormatError, SqueezeError
from squeeze.factor.curvature import Curvature
from squeeze.factor.lowrank import WhitenedSVD
from squeeze.factor.methods import METHODS
from squeeze.factor.stored import FactorLinear
from squeeze.integrations.load_model import load_model
from squeeze.recipes.options import WHOLE
from squeeze.recipes.plan.plan import fill
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.retrain import heal
from tests.makers.cases import all_slow_but

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (6, 48), generator=torch.Generator().manual_seed(1))


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(TOKENS).logits


def distance(found, wanted):
    return ((wanted - found).norm(dim=-1) / wanted.norm(dim=-1)).median()


@pytest.mark.parametrize("kind", ("llama", "gpt2", "mixtral"))
def test_every_architecture_loads_and_densifies(tmp_path, folders, kind):
    report = squeeze.factorize(
        folders(kind), "whitened", keep=0.99, calibration=TOKENS, samples=6, out=tmp_path / "out"
    )
    assert {layer.method for layer in report.layers} <= {"whitened", "svd"}
    assert report.bits_per_weight < 16
    wanted, found = logits(folders(kind)), logits(tmp_path / "out")
    assert not torch.equal(wanted, found)
    assert distance(found, wanted) < 0.4
    size = squeeze.densify(tmp_path / "out", tmp_path / "dense")
    assert size == sum(
        tensor.nbytes for path in folders(kind).glob("*.safetensors") for tensor in load_file(path).values()
    )
    assert "quantization_config" not in json.loads((tmp_path / "dense" / "config.json").read_text())
    assert sorted(load_model(tmp_path / "dense").state_dict()) == sorted(load_model(folders(kind)).state_dict())
    assert distance(logits(tmp_path / "dense"), found) < 0.02  # bf16 products of bf16 factors


@pytest.mark.parametrize("method", [*METHODS])
def test_every_method_is_stored_and_read_again(tmp_path, folders, method):
    report = squeeze.factorize(folders("llama"), method, keep=0.7, calibration=TOKENS, samples=6, out=tmp_path / "out")
    unused = ["not used, since svd is not calibrated: calibration, samples"] if method == "svd" else []
    assert len(report.layers) == 14 and report.fallbacks == unused
    owners = ["self_attn.q_proj", "mlp.gate_proj"] if method == "shared" else []  # which store the basis of all
    others = [layer.bits for layer in report.layers if not layer.name.endswith(tuple(owners))]
    assert max(others) <= 16 * 0.7 + 0.5 and report.bits_per_weight <= 16 * 0.7 + 0.5
    model = load_model(tmp_path / "out")
    layers = [module for module in model.modules() if isinstance(module, FactorLinear)]
    assert len(layers) == 14
    x = torch.randn(3, layers[0].in_features)
    assert torch.allclose(layers[0](x), x @ layers[0].weight.T, rtol=1e-4, atol=1e-4)
    assert model(TOKENS).logits.isfinite().all()


def test_a_plan_spends_its_budget_and_is_better_than_one_method_for_all(tmp_path, folders):
    one = squeeze.factorize(
        folders("llama"), WhitenedSVD.textbook(0.8), calibration=TOKENS, samples=6, out=tmp_path / "one", correction=0.0
    )
    plan = squeeze.factorize(folders("llama"), keep=0.8, calibration=TOKENS, samples=6, out=tmp_path / "plan")
    assert plan.bits_per_weight <= 16 * 0.8
    wanted = logits(folders("llama"))
    assert distance(logits(tmp_path / "plan"), wanted) < distance(logits(tmp_path / "one"), wanted)
    assert 0 < plan.predicted["plan"] < plan.predicted["low-rank"]
    assert (
        "predicted rise of the loss" in plan.table()
        and plan.predicted == json.loads((tmp_path / "plan" / NAME).read_text())["predicted"]
    )
    stored = json.loads((tmp_path / "plan" / "config.json").read_text())["quantization_config"]["plan"]
    assert sum(row["bits"] for row in stored.values()) / 8 <= 0.8 * sum(
        2 * a * b for a, b in (layer.shape for layer in one.layers)
    )


def test_a_plan_for_transposed_weights(tmp_path, folders):
    report = squeeze.factorize(folders("gpt2"), keep=0.8, calibration=TOKENS, samples=6, out=tmp_path / "out")
    assert report.bits_per_weight <= 16 * 0.8 and not report.fallbacks
    assert {layer.name.rpartition(".")[2] for layer in report.layers} == {"c_attn", "c_proj", "c_fc"}
    assert logits(tmp_path / "out").isfinite().all()


def test_a_plan_gives_each_expert_a_form_within_the_budget(tmp_path, folders):
    tokens = torch.randint(0, 300, (10, 144), generator=torch.Generator().manual_seed(2))
    options = {"keep": 0.8, "calibration": tokens}
    one = squeeze.factorize(folders("mixtral"), "whitened", out=tmp_path / "one", **options)
    plan = squeeze.factorize(folders("mixtral"), out=tmp_path / "plan", **options)
    assert plan.bits_per_weight <= 16 * 0.8 and not plan.fallbacks
    assert sum(".experts." in layer.name for layer in plan.layers) == 2 * 4 * 3 == len(one.layers) - 8
    wanted = logits(folders("mixtral"))
    assert distance(logits(tmp_path / "plan"), wanted) < distance(logits(tmp_path / "one"), wanted)
    squeeze.densify(tmp_path / "plan", tmp_path / "dense")
    assert distance(logits(tmp_path / "dense"), logits(tmp_path / "plan")) < 0.02


def test_experts_that_too_few_tokens_reach_are_noted(tmp_path, folders):
    few = squeeze.factorize(folders("mixtral"), keep=0.8, calibration=TOKENS[:2], out=tmp_path / "out")
    assert few.bits_per_weight <= 16 * 0.8
    assert any("tokens of the plan's reached its 64 inputs: priced as the mean expert" in x for x in few.fallbacks)
    assert all(".experts." in line for line in few.fallbacks if "priced" in line)
    assert logits(tmp_path / "out").isfinite().all()


@pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_experts_are_stored_in_one_form_with_bits_and_outliers(tmp_path, folders, count):
    """This holds whatever was planned for them, and however few tokens reach one."""
    options = {"keep": 0.8, "calibration": TOKENS[:count], "correction": 0.0}
    plain = squeeze.factorize(folders("mixtral"), out=tmp_path / "plain", **options)
    found = squeeze.factorize(folders("mixtral"), bits=8, outliers=3, group_size=32, out=tmp_path / "out", **options)
    assert found.bits_per_weight < 0.75 * plain.bits_per_weight
    wanted = logits(tmp_path / "plain")
    assert distance(logits(tmp_path / "out"), wanted) < 0.5 * distance(logits(folders("mixtral")), wanted)
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    assert distance(logits(tmp_path / "dense"), logits(tmp_path / "out")) < 0.02
    squeeze.pack(tmp_path / "out", tmp_path / "packed")
    squeeze.unpack(tmp_path / "packed", tmp_path / "back")
    stored = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "back")]
    assert stored[0] == stored[1]


@pytest.mark.parametrize("method", ["tt", "monarch"])
def test_experts_without_tokens_are_in_the_form_of_the_others(tmp_path, folders, method):
    options = {"keep": 0.9, "calibration": TOKENS[:1, :9].repeat(2, 1)}
    report = squeeze.factorize(folders("mixtral"), method, out=tmp_path / "out", **options)
    assert any("calibration tokens reached" in line for line in report.fallbacks)
    assert logits(tmp_path / "out").isfinite().all()


@pytest.mark.parametrize(
    ("method", "kind"),
    all_slow_but(
        [("svd", "llama"), ("monarch", "gpt2"), ("plan", "llama")],
        itertools.product(["svd", "monarch", "plan"], ["llama", "gpt2"]),
    ),
)
def test_entries_are_kept_and_healed(tmp_path, folders, kind, method):
    """This holds in every form, and for transposed weights."""
    options = {"calibration": TOKENS, "samples": 6, "keep": 0.6, "outliers": 5}
    if (kind, method) == ("gpt2", "monarch"):
        options["heal"] = 0.01
    squeeze.factorize(folders(kind), method, out=tmp_path / "out", **options)
    entries = [name for name in load_file(tmp_path / "out" / "model.safetensors") if name.endswith(".entries")]
    assert len(entries) >= (8 if method != "plan" else 1)
    if kind == "llama":
        before = load_model(tmp_path / "out")
        done = heal(folders(kind), tmp_path / "out", TOKENS, Training(minutes=1, steps=8, rate=1e-3))
        assert done.losses[-1] < done.losses[0]
        after = load_model(tmp_path / "out").state_dict()
        moved = [
            not torch.equal(value, after[name]) for name, value in before.state_dict().items() if "entries" in name
        ]
        assert any(moved)


@pytest.mark.parametrize("group_size", [32, pytest.param(-1, marks=pytest.mark.slow)])
def test_a_size_to_reach_counts_bits_and_entries(tmp_path, folders, group_size):
    size = sum(path.stat().st_size for path in folders("llama").glob("*.safetensors"))
    plan = squeeze.factorize(
        *(folders("llama"),), target_bytes=int(0.55 * size), bits=8, outliers=4, calibration=TOKENS, samples=6,
        group_size=group_size, out=tmp_path / "out",
    )  # fmt: skip
    assert 0.45 * size < plan.stored_bytes <= 0.56 * size


def test_alike_experts_price_those_without_tokens():
    names = [f"b.0.experts.{i}.up_proj" for i in range(3)] + ["b.0.q_proj"]
    found = {
        names[0]: Curvature(2 * torch.eye(4), 3 * torch.eye(5), 9),
        names[1]: Curvature(9 * torch.eye(4), 5 * torch.eye(5), 2),  # of its 4 inputs
        names[3]: Curvature(torch.eye(4), torch.eye(5), 1),
    }
    notes = fill(found, dict.fromkeys(names, (5, 4)))
    assert set(notes) == {names[1], names[2]}
    assert torch.equal(found[names[2]].inputs, 5.5 * torch.eye(4))
    assert torch.equal(found[names[2]].outputs, 4 * torch.eye(5)) and found[names[2]].tokens == 0
    assert found[names[3]].tokens == 1


def test_a_target_size_is_met(tmp_path, folders):
    original = sum(path.stat().st_size for path in folders("llama").glob("*.safetensors"))
    target = int(0.93 * original)
    report = squeeze.factorize(
        folders("llama"), target_bytes=target, calibration=TOKENS, samples=6, out=tmp_path / "out"
    )
    assert report.stored_bytes <= target
    with pytest.raises(SqueezeError, match="the matrices need at least"):
        squeeze.factorize(folders("llama"), target_bytes=100, calibration=TOKENS, samples=6, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_outliers_stay_exact_also_with_quantised_factors(tmp_path, folders):
    squeeze.factorize(folders("llama"), "svd", keep=0.5, outliers=5, out=tmp_path / "exact")
    model, original = load_model(tmp_path / "exact"), load_model(folders("llama"))
    name = "model.layers.0.self_attn.q_proj"
    same = model.get_submodule(name).weight == original.get_submodule(name).weight
    assert int(same.sum()) >= 5
    for bits in (8, 4):
        report = squeeze.factorize(
            folders("llama"),
            "whitened",
            keep=0.9,
            bits=bits,
            group_size=32,
            out=tmp_path / f"{bits}",
            calibration=TOKENS,
            samples=6,
        )
        assert report.bits_per_weight < 0.9 * bits + 1.2
    assert distance(logits(tmp_path / "8"), logits(folders("llama"))) < 0.6
    squeeze.densify(tmp_path / "8", tmp_path / "dense")
    assert distance(logits(tmp_path / "dense"), logits(tmp_path / "8")) < 0.02


def test_healing_lowers_the_divergence_and_can_go_on(tmp_path, folders, monkeypatch):
    squeeze.factorize(folders("llama"), "whitened", keep=0.5, out=tmp_path / "out", calibration=TOKENS, samples=6)

    def divergence():
        models = (load_model(folder) for folder in (tmp_path / "out", folders("llama")))
        return evaluate(next(models), TOKENS.flatten(), window=48, original=next(models)).kl_mean

    before = divergence()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors")}
    from squeeze.recipes.train import trainer

    calls, train = [], trainer.Trainer.train
    monkeypatch.setattr(trainer, "_SAVE_EVERY", 5)

    def stopping(run, share, rate):
        calls.append(run.loss_at(share).__name__)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return train(run, share, rate)

    monkeypatch.setattr(trainer.Trainer, "train", stopping)
    with pytest.raises(KeyboardInterrupt):
        heal(folders("llama"), tmp_path / "out", TOKENS, Training(minutes=1, steps=30, rate=3e-3, batch=2), 0.2)
    assert divergence() == before
    found = heal(folders("llama"), tmp_path / "out", TOKENS, Training(minutes=1, steps=30, rate=3e-3, batch=2), 0.2)
    assert found.steps == len(found.losses) == 30 and len(calls) == 8 + 23  # seven were done
    assert set(calls[:6]) == {"_by_block"} and set(calls[9:]) == {"_divergence"}
    assert divergence() < before
    assert {path.name: path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors")} == sizes


def test_healing_by_the_command_can_go_on(tmp_path, folders, monkeypatch):
    from squeeze.recipes.train import trainer

    options = {"calibration": TOKENS, "samples": 6, "out": tmp_path / "out", "heal": 0.05}
    calls, train = [], trainer.Trainer.train
    clock = itertools.count(step=0.2)  # seconds, whatever the machine is at
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: next(clock)))

    def stopping(run, share, rate):
        calls.append(run.step)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(run, share, rate)

    monkeypatch.setattr(trainer, "_SAVE_EVERY", 1)
    monkeypatch.setattr(trainer.Trainer, "train", stopping)
    with pytest.raises(KeyboardInterrupt):
        squeeze.factorize(folders("llama"), "svd", keep=0.5, **options)
    made = (tmp_path / "out" / "model.safetensors").read_bytes()
    with pytest.raises(
        SqueezeError, match="is written already: go on with `resume=True`, or start over with `overwrite=True`"
    ):
        squeeze.factorize(folders("llama"), "svd", keep=0.5, **options)
    with pytest.raises(
        SqueezeError, match="had other settings: repeat its settings to resume, or start over with `overwrite=True`"
    ):
        squeeze.factorize(folders("llama"), "svd", keep=0.6, resume=True, **options)
    seen = []
    report = squeeze.factorize(
        folders("llama"), "svd", keep=0.5, resume=True, progress=lambda *step: seen.append(step), **options
    )
    assert calls[3] == 2 and seen and {what.partition(",")[0] for what, _, _ in seen} == {"healing"}
    assert report.settings["healing"] == f"{calls[-1] + 1} steps" and len(report.layers) == 14
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != made
    with pytest.raises(SqueezeError, match="already exists; use `overwrite=True`"):
        squeeze.factorize(folders("llama"), "svd", keep=0.5, resume=True, **options)


def test_refuses_options_that_exclude_each_other(tmp_path, folders):
    with pytest.raises(SqueezeError, match="keep must be above 0"):
        squeeze.factorize(folders("llama"), "svd", keep=1.5, out=tmp_path / "no")
    with pytest.raises(SqueezeError, match="quantised factors cannot be healed: leave out `bits` or `heal`"):
        squeeze.factorize(folders("llama"), "svd", bits=4, heal=1, out=tmp_path / "no")
    with pytest.raises(SqueezeError, match="matrices on one basis have neither `bits` nor `outliers`"):
        squeeze.factorize(folders("llama"), "shared", bits=4, calibration=TOKENS, out=tmp_path / "no")
    with pytest.raises(SqueezeError, match="leave out `outliers`"):
        squeeze.factorize(folders("llama"), "modegpt", outliers=4, calibration=TOKENS, out=tmp_path / "no")
    with pytest.raises(SqueezeError, match="expected a group size of at least 1"):
        squeeze.factorize(folders("llama"), bits=4, group_size=0, calibration=TOKENS, out=tmp_path / "no")
    with pytest.raises(SqueezeError, match="method 'plan' is unknown: choose from svd, whitened"):
        squeeze.factorize(folders("llama"), families=["plan"], calibration=TOKENS, out=tmp_path / "no")
    with pytest.raises(SqueezeError, match="`target_bytes` needs the method plan"):
        squeeze.factorize(folders("llama"), "svd", target_bytes=10**9, out=tmp_path / "no")
    with pytest.raises(SqueezeError, match="method 'cp' is unknown: choose from plan, modegpt, svd"):
        squeeze.factorize(folders("llama"), "cp", out=tmp_path / "no")
    with pytest.raises(FormatError, match="its weights are dense"):
        squeeze.densify(folders("llama"), tmp_path / "no")
    with pytest.raises(SqueezeError, match="has no factors in floating point to heal"):
        heal(folders("llama"), folders("llama"), TOKENS, Training(minutes=0.01))
    assert not (tmp_path / "no").exists()


def test_refuses_damaged_pivots_and_shapes(tmp_path, folders):
    squeeze.factorize(folders("llama"), "svd", keep=0.5, out=tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    tensors = load_file(path)
    broken = dict(tensors)
    name = "model.layers.0.self_attn.q_proj"
    broken[f"{name}.pivots"] = torch.zeros_like(broken[f"{name}.pivots"])
    save_file(broken, path, {"format": "pt"})
    with pytest.raises(FormatError, match=f"{name}: the tensors of a pivoted matrix do not fit together"):
        squeeze.densify(tmp_path / "out", tmp_path / "no")
    del broken[f"{name}.pivots"]
    save_file(broken, path, {"format": "pt"})
    with pytest.raises(FormatError, match=f"{name}: the tensors base, coefficients are not a known"):
        squeeze.densify(tmp_path / "out", tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_the_command_knows_every_method():
    (chosen,) = (one for one in main.commands["factorize"].get_params(click.Context(main)) if one.name == "method")
    assert set(chosen.type.choices) == {*WHOLE, *METHODS}


def test_the_command_writes_a_folder_that_eval_and_densify_read(tmp_path, folders):
    run = CliRunner()
    target = tmp_path / "out"
    found = run.invoke(
        main, ["factorize", str(folders("llama")), str(target), "--method", "svd", "--keep", "0.8", "--json", "-q"]
    )
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert report["method"] == "svd" and math.isclose(report["bits_per_weight"], 12.8, rel_tol=0.05)
    again = run.invoke(main, ["factorize", str(folders("llama")), str(target), "--method", "svd"])
    assert again.exit_code == 1 and again.stderr.startswith("Error: ") and "exists" in again.stderr
    dense = run.invoke(main, ["densify", str(target), str(tmp_path / "dense")])
    assert dense.exit_code == 0 and dense.stderr.endswith("bytes of weights\n")
    wrong = run.invoke(main, ["densify", str(tmp_path / "dense"), str(tmp_path / "more")])
    assert wrong.exit_code == 1
    assert wrong.stderr == f"Error: {tmp_path / 'dense'}: its weights are dense or in an unknown form\n"
