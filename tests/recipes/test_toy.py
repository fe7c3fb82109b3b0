"""A new method or format needs a class and an entry in one dict; commands, recipes and functions then know it."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from click.testing import CliRunner

import squeeze
from squeeze.checkpoint.sparse import mask_of
from squeeze.cli import main
from squeeze.commands.reference import operation_table
from squeeze.engine.method import Result
from squeeze.options import option
from squeeze.prune.method import PruningMethod
from squeeze.prune.methods import METHODS as PRUNING
from squeeze.prune.scores import Magnitude
from squeeze.quant.formats import FORMATS, read
from squeeze.quant.formats.squeeze import SqueezeFormat
from squeeze.quant.method import GridMethod
from squeeze.quant.methods import METHODS as QUANTISING
from squeeze.quant.rtn import RTN
from squeeze.recipes.apply import Recipe, apply
from squeeze.recipes.options import PRUNE, QUANTIZE

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


def toy_pruning():
    @dataclass(frozen=True, kw_only=True)
    class Smallest(PruningMethod):
        """A method that keeps the smallest weights, multiplied."""

        name: ClassVar[str] = "toy"
        needs_hessian: ClassVar[bool] = False

        times: float = option(2.0, "Factor of the weights", above=0)

        def compress(self, weight, hessian=None):
            mask = mask_of(self.pattern, -weight.float().abs())
            return Result(self.sparse(self.times * weight, mask, weight.dtype))

        def fallback(self):
            return Magnitude(pattern=self.pattern)

    return Smallest


def toy_quantising():
    @dataclass(frozen=True, kw_only=True)
    class Shrunk(RTN):
        """A method that rounds weights after making them smaller."""

        name: ClassVar[str] = "toy"

        times: float = option(0.5, "Factor of the weights", above=0, most=1)

        def compress(self, weight, hessian=None):
            return Result(self.apply(self.times * weight))

    return Shrunk


@dataclass(frozen=True)
class ToyFormat(SqueezeFormat):
    """A copy of squeeze's own format under another name."""

    name: str = "toy"

    def describes(self, config):
        return config.get("quant_method") == "toy"

    def config(self, spec):
        return {**super().config(spec), "quant_method": "toy"}


def weights(folder):
    checkpoint = squeeze.checkpoint.checkpoint.Checkpoint.open(folder)
    return checkpoint.load([name for name in checkpoint.files if name.endswith("proj.weight")])


def same(first, second):
    assert first.keys() == second.keys() and first
    return all(torch.equal(first[name], second[name]) for name in first)


def run(*arguments):
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_pruning_method_is_known_to_functions_commands_and_recipes(tmp_path, folders, monkeypatch):
    monkeypatch.setitem(PRUNING, "toy", toy_pruning())
    source, shared = folders("llama"), {"method": "toy", "times": 4.0, "pattern": "1:4", "dense": True}
    squeeze.prune(source, out=tmp_path / "python", **shared)
    options = ("--method", "toy", "--times", "4", "--pattern", "1:4", "--dense", "-q")
    run("prune", source, tmp_path / "command", *options)
    apply(Recipe.parse({"steps": [{"prune": shared}]}), source, tmp_path / "recipe")
    assert same(weights(tmp_path / "python"), weights(tmp_path / "command"))
    assert same(weights(tmp_path / "python"), weights(tmp_path / "recipe"))
    assert not same(weights(tmp_path / "python"), weights(source))
    assert "Method toy: --times X Factor of the weights; default: 2" in " ".join(run("prune", "--help").split())
    assert "| `times` | `--times` | number | 2 | above 0 | toy: Factor of the weights" in operation_table(PRUNE)


def test_a_quantisation_method_is_known_to_functions_commands_and_recipes(tmp_path, folders, monkeypatch):
    monkeypatch.setitem(QUANTISING, "toy", toy_quantising())
    source, shared = folders("llama"), {"method": "toy", "times": 0.25, "group_size": 16, "format": "dense"}
    squeeze.quantize(source, out=tmp_path / "python", **shared)
    options = ("--method", "toy", "--times", "0.25", "--group-size", "16", "--format", "dense", "-q")
    run("quantize", source, tmp_path / "command", *options)
    apply(Recipe.parse({"steps": [{"quantize": shared}]}), source, tmp_path / "recipe")
    assert same(weights(tmp_path / "python"), weights(tmp_path / "command"))
    assert same(weights(tmp_path / "python"), weights(tmp_path / "recipe"))
    assert "Method toy: --times X Factor of the weights; default: 0.5" in " ".join(run("quantize", "--help").split())
    assert "| `times` | `--times` | number | 0.5 | above 0" in operation_table(QUANTIZE)
    wrong = "times must be above 0 and at most 1, got 2"
    with pytest.raises(squeeze.OptionError, match=wrong):
        squeeze.quantize(source, "toy", times=2, out=tmp_path / "no")
    with pytest.raises(squeeze.SqueezeError, match=f"step 1, quantize: {wrong}"):
        Recipe.parse({"steps": [{"quantize": {"method": "toy", "times": 2}}]})
    said = CliRunner().invoke(main, ["quantize", str(source), str(tmp_path / "no"), "--method", "toy", "--times", "2"])
    assert (said.exit_code, said.output) == (2, f"Error: --{wrong}\n")


def test_a_format_is_known_to_functions_commands_and_recipes(tmp_path, folders, monkeypatch):
    monkeypatch.setitem(FORMATS, "toy", ToyFormat())
    source, shared = folders("gpt2"), {"method": "rtn", "group_size": 16, "format": "toy"}
    squeeze.quantize(source, out=tmp_path / "python", **shared)
    run("quantize", source, tmp_path / "command", "--method", "rtn", "--group-size", "16", "--format", "toy", "-q")
    apply(Recipe.parse({"steps": [{"quantize": shared}]}), source, tmp_path / "recipe")
    for name in ("python", "command", "recipe"):
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["quantization_config"]["quant_method"] == "toy"
        found = dict(read(tmp_path / name).weights())
        assert len(found) == 8 and all(weight.bits == 4 for weight in found.values())
    squeeze.densify(tmp_path / "python", tmp_path / "dense")
    assert not (json.loads((tmp_path / "dense" / "config.json").read_text())).get("quantization_config")


def test_toys_are_gone_again():
    """Each test above leaves the dicts unchanged."""
    assert "toy" not in {*PRUNING, *QUANTISING, *FORMATS}
    assert "--times" not in run("prune", "--help") + run("quantize", "--help")
    assert GridMethod.__subclasses__()
