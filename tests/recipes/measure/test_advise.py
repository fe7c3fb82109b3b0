"""`squeeze advise`: its verdict as text."""

import json

import pytest
from click.testing import CliRunner

import squeeze
from squeeze.cli import main
from squeeze.prune.scores import Magnitude
from squeeze.recipes.measure.advise import advise
from tests.makers import tiny_models

pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.write_folder(tmp_path_factory.mktemp("m") / "model", tiny_models.byte_level(), vocab_size=400)


def test_the_command_says_if_sparsity_is_faster(tmp_path, folder):
    done = CliRunner().invoke(main, ["advise", str(folder)])
    assert done.exit_code == 0, done.output
    assert done.output.endswith("2:4 is not faster than dense weights here; what it saves is size.\n")
    assert done.output.count("mlp.down_proj") == 1 and "model.layers.*.mlp.down_proj" in done.output
    done = CliRunner().invoke(main, ["advise", str(folder), "--device", "h200", "--bits", "4", "--json"])
    found = json.loads(done.stdout)
    assert len(found["layers"]) == 2 * 5  # keys and values have few rows
    assert "not measured" in found["constants"]
    squeeze.prune(folder, Magnitude(), out=tmp_path / "out")
    assert {layer[1] for layer in advise(tmp_path / "out", "h100", 8).layers} == {
        tuple(layer["shape"]) for layer in found["layers"]
    }
    done = CliRunner().invoke(main, ["advise", str(folder), "--device", "abacus"])
    assert (done.exit_code, done.output.startswith("Error: unknown device 'abacus'")) == (1, True)
