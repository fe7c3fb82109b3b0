"""`squeeze apply` and recipes: what steps become, end to end on a tiny model, and errors in one line."""

import json

import pytest
import torch
from click.testing import CliRunner

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.cli import main
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.prune.stored import Sparse24Linear
from squeeze.recipes.apply import Recipe, apply
from squeeze.recipes.steps import STEPS, Step
from tests.makers import tiny_models
from tests.makers.command import call

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SHARED = {"samples": 4, "sequence_length": 48}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    return tiny_models.write_folder(folder, tiny_models.byte_level(), vocab_size=400)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(tiny_models.TRAINING_TEXT.decode()[:6000])
    return path


def recipe(*steps, **common):
    return Recipe.parse({**SHARED, **common, "steps": list(steps)})


def test_every_step_is_registered():
    def below(kind):
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    assert set(STEPS.values()) == below(Step) - {Step}
    assert all(STEPS[name].name == name for name in STEPS)


def test_steps_join_where_one_pass_can_do_both():
    joined = recipe({"prune": {"pattern": "4:8"}}, {"quantize": {"bits": 3, "group_size": 32}}, "pack")
    prune, pack = joined.steps
    assert (prune.value("bits"), prune.value("group_size"), str(prune.value("pattern"))) == (3, 32, "4:8")
    assert pack.name == "pack"
    assert joined.raw_steps == (
        {"prune": {"pattern": "4:8"}},
        {"quantize": {"bits": 3, "group_size": 32}},
        {"pack": {}},
    )
    assert recipe({"factorize": {"method": "svd"}}, {"quantize": {"bits": 8}}).steps[0].value("bits") == 8
    assert len(recipe("prune", {"recover": {"steps": 1}}, "pack").steps) == 3


def test_a_yaml_recipe_sets_common_options_and_steps(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("samples: 4\nignore: [lm_head]\nsteps:\n  - prune: {pattern: 2:4, rank: 1}\n  - pack\n")
    found = Recipe.read(path)
    assert found.common.samples == 4 and found.common.ignore == ("lm_head",)
    assert str(found.steps[0].value("pattern")) == "2:4"


WRONG = {
    "quantize its result to the format gguf afterwards": {"steps": [{"quantize": {"format": "gguf"}}]},
    "is not a recipe: it needs a list of steps": {"steps": []},
    "'sample' is unknown: choose from steps, calibration": {"sample": 4, "steps": ["prune"]},
    "samples must be an integer, got 'many'": {"samples": "many", "steps": ["prune"]},
    "step 1: 'prun' is unknown: choose from prune, quantize": {"steps": ["prun"]},
    "step 1: is not the name of one step": {"steps": [{"prune": None, "pack": None}]},
    "step 1, prune: 'bit' is unknown": {"steps": [{"prune": {"bit": 4}}]},
    "step 1, prune: permute must be true or false, got 1": {"steps": [{"prune": {"permute": 1}}]},
    "step 1, prune: bits must be an integer, got True": {"steps": [{"prune": {"bits": True}}]},
    "step 2: prune quantises already": {"steps": [{"prune": {"bits": 4}}, "quantize"]},
    "step 1, prune: 4 is not a set of settings": {"steps": [{"prune": 4}]},
    "step 1, prune: method 'x' is unknown": {"steps": [{"prune": {"method": "x"}}]},
    "step 1, quantize: method 'x' is unknown": {"steps": [{"quantize": {"method": "x"}}]},
    "step 1, factorize: method 'x' is unknown": {"steps": [{"factorize": {"method": "x"}}]},
    "step 1, pack: level 'x' is unknown": {"steps": [{"pack": {"level": "x"}}]},
    "step 2: wanda neither quantises": {"steps": [{"prune": {"method": "wanda"}}, "quantize"]},
    "step 2: quantize after prune is one pass with it": {"steps": ["prune", {"quantize": {"rotate": True}}]},
    "step 2: prune cannot follow quantize": {"steps": ["quantize", "prune"]},
    "step 2: prune after pack: pack comes last": {"steps": ["pack", "prune"]},
    "step 1: recover comes after prune": {"steps": ["recover"]},
    "step 2: recover takes no dense folder": {"steps": [{"prune": {"dense": True}}, "recover"]},
    "step 2: `codes` and `blocks` are for quantised weights": {"steps": ["prune", {"recover": {"codes": "move"}}]},
}


@pytest.mark.parametrize("message", WRONG)
def test_errors_name_the_step(tmp_path, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(WRONG[message]))  # which is YAML, too
    with pytest.raises(SqueezeError) as found:
        Recipe.read(path)
    assert message in str(found.value) and "\n" not in str(found.value) and str(path) in str(found.value)


def test_refuses_files_that_are_not_recipes(tmp_path):
    (tmp_path / "x").write_text("steps: [")
    (tmp_path / "y").write_text("prune")
    for name, message in {"x": "is not YAML", "y": "is not a recipe", "z": "No such file"}.items():
        with pytest.raises(SqueezeError, match=message):
            Recipe.read(tmp_path / name)


RECIPES = ("steps: [" + "[" * 5000, "steps: &a [*a]", "x\x1b: 1\nsteps: [pack]", "steps: [{pack: {level: " + "x" * 9999)


@pytest.mark.parametrize("text", RECIPES, ids=range(4))
def test_hostile_recipes_end_in_one_line(tmp_path, model, text):
    (tmp_path / "recipe.yaml").write_text(text + "}}]" * text.endswith("xxx"))
    done = CliRunner().invoke(main, ["apply", str(tmp_path / "recipe.yaml"), str(model), str(tmp_path / "out")])
    assert done.exit_code in (1, 2) and isinstance(done.exception, SystemExit), done.exception
    (line,) = done.output.splitlines()
    assert line.startswith("Error: ") and line.isprintable() and len(line) < 700
    assert not (tmp_path / "out").exists()


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(torch.arange(40)[None]).logits


def modules(folder):
    layers = {name: layer for name, layer in load_model(folder).named_modules() if isinstance(layer, Sparse24Linear)}
    return {name: layer.sparse() for name, layer in layers.items()}


def test_pruning_and_quantising_join_in_one_pass_before_packing(tmp_path, model, text):
    import squeeze

    steps = [{"prune": {"refine": 1}}, {"quantize": {"group_size": 32}}]
    (report,) = apply(recipe(*steps, "pack", calibration=str(text)), model, tmp_path / "packed", text=text, windows=1)
    assert report.packed is not None and report.after is not None and report.source == str(model)
    assert {layer.pattern for layer in report.layers} == {"2:4"}
    squeeze.unpack(tmp_path / "packed", tmp_path / "out")
    found = Checkpoint.open(tmp_path / "out").config
    assert found["squeeze_recipe"] == [*steps, {"pack": {}}]
    method = squeeze.SparseGPT(refine=1, quantizer=squeeze.GPTQ(bits=4, group_size=32))
    squeeze.prune(model, method, calibration=text, out=tmp_path / "wanted", **SHARED)
    assert torch.equal(logits(tmp_path / "out"), logits(tmp_path / "wanted"))


def test_steps_that_cannot_join_read_each_others_folder(tmp_path, model, text):
    steps = [{"factorize": {"method": "svd", "keep": 0.9}}, {"prune": {"method": "magnitude"}}]
    reports = apply(recipe(*steps, calibration=str(text)), model, tmp_path / "out")
    assert [report.method for report in reports] == ["svd", "magnitude"]
    assert {layer.pattern for layer in reports[1].layers} == {"2:4"}
    assert torch.isfinite(logits(tmp_path / "out")).all()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("steps", [["quantize"], [{"prune": {"pattern": "2:4"}}, {"quantize": {"bits": 4}}]])
def test_codes_are_recovered_in_a_step(tmp_path, model, text, steps):
    recover = {"recover": {"steps": 2, "codes": "move"}}
    report = apply(recipe(*steps, recover, calibration=str(text)), model, tmp_path / "out")[-1]
    assert report.settings["recovery"]["steps"] == 2 and report.target == str(tmp_path / "out")


def test_recovery_is_a_step(tmp_path, model, text):
    steps = [{"prune": {"pattern": "4:8"}}, {"recover": {"steps": 2, "rank": 2}}]
    (_, report) = apply(recipe(*steps, calibration=str(text)), model, tmp_path / "out")
    assert report.settings["recovery"] == "2 steps" and report.target == str(tmp_path / "out")
    assert Checkpoint.open(tmp_path / "out").config["squeeze_recipe"] == steps
    asked = recipe(*steps, {"quantize": {"bits": 8, "group_size": 32}}, calibration=str(text))
    *_, report = apply(asked, model, tmp_path / "codes")
    assert {layer.pattern for layer in report.layers} == {"4:8"} and report.settings["keep_zeros"]
    sparse, codes = (modules(tmp_path / name) for name in ("out", "codes"))
    assert sparse.keys() == codes.keys() and len(sparse) > 0
    for name, weight in codes.items():
        assert isinstance(weight.values, QuantizedTensor)
        assert not (weight.mask & ~sparse[name].mask).any()
        wanted = sparse[name].sparse()
        assert (weight.sparse() - wanted).norm() < 0.1 * wanted.norm()


def test_a_run_that_was_stopped_goes_on(tmp_path, model, text, monkeypatch):
    asked = recipe("prune", "pack", calibration=str(text))
    run = STEPS["pack"].run

    def stopped(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(STEPS["pack"], "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        apply(asked, model, tmp_path / "out")
    monkeypatch.setattr(STEPS["pack"], "run", run)
    monkeypatch.setattr(STEPS["prune"], "run", stopped)
    (report,) = apply(asked, model, tmp_path / "out", resume=True)
    assert report.packed is not None and report.layers[0].pattern == "2:4"


@pytest.mark.parametrize("line", ["calibration: {}", "steps: [{{pack: {{base: {}}}}}]"])
@pytest.mark.parametrize("name", ["/etc/passwd", "../a.txt", "http://host/a.txt", "simplecache::s3://b/k"])
def test_a_recipe_names_no_file_elsewhere(tmp_path, line, name):
    path = tmp_path / "recipe.yaml"
    path.write_text(line.format(name) + ("" if "steps" in line else "\nsteps: [pack]"))
    key = "base" if "steps" in line else "calibration"
    with pytest.raises(SqueezeError, match=rf"recipe\.yaml: {key}: expected the path of .*: name it with "):
        Recipe.read(path)


def test_the_command_applies_a_recipe(tmp_path, model, text):
    path = tmp_path / "recipe.yaml"
    path.write_text("samples: 4\nsequence_length: 48\nsteps:\n  - prune: {method: wanda}\n")
    given = ["--calibration", str(text), "-T", "1"]
    done = CliRunner().invoke(main, ["apply", str(path), str(model), str(tmp_path / "out"), *given])
    assert done.exit_code == 0 and "every group checked to hold to 2:4" in done.output, done.output
    done = CliRunner().invoke(main, ["apply", str(path), str(tmp_path / "nowhere"), str(tmp_path / "x")])
    assert done.exit_code == 1 and "no such folder" in done.output
    path.write_text("steps: [cook]\n")
    done = CliRunner().invoke(main, ["apply", str(path), str(model), str(tmp_path / "x")])
    assert done.exit_code == 1 and done.output == (
        f"Error: {path}: step 1: 'cook' is unknown: choose from prune, quantize, factorize, experts, recover, pack\n"
    )


def test_values_of_a_recipe_that_do_not_go_together_exit_with_1(tmp_path, folders):
    """They are in a file, so the command itself is used correctly."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("steps: [quantize: {method: rtn, format: gptq, type: q4_k}]\n")
    done = call("apply", recipe, folders("llama"), tmp_path / "out", "-q")
    assert done.exit_code == 1 and done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
