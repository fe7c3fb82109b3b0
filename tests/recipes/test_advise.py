"""`squeeze advise`: a roofline, and plain words."""

import json

import pytest
from click.testing import CliRunner

import squeeze
from squeeze.cli import main
from squeeze.errors import SqueezeError
from squeeze.kernels.roofline import KNOWN, Constants, constants_of, fastest, predict
from squeeze.prune.magnitude import Magnitude
from squeeze.recipes.advise import advise
from tests.makers import tiny_models

pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.write_folder(tmp_path_factory.mktemp("m") / "model", tiny_models.byte_level(), vocab_size=400)


def test_the_roofline():
    constants = Constants(1e12, 1e14, 1.5, 0.8, 0.0, "given")
    one = predict(constants, 4096, 4096, 1, 16)
    assert one["dense"] == pytest.approx(2 * 4096**2 / 1e12, rel=1e-2)
    assert one["kernel"] == pytest.approx(one["dense"] * 1.125 / 2 / 0.8, rel=1e-2)
    assert fastest(constants, 4096, 4096, 1, 16) == "structured"  # which reads as little, and at the full bandwidth
    many = predict(constants, 4096, 4096, 4096, 16)
    assert many["dense"] == pytest.approx(1.5 * many["structured"])
    four = predict(constants, 4096, 4096, 1, 4)
    assert "structured" not in four and four["kernel"] < four["dense"]
    no_kernels = Constants(1e12, 1e14, 0.0, 0.0, 0.0, "given")
    assert fastest(no_kernels, 4096, 4096, 1, 16) == "dense"


def test_what_is_known_of_devices():
    assert constants_of("NVIDIA H200") is KNOWN["h200"]
    assert constants_of("cpu").bandwidth > 0
    with pytest.raises(SqueezeError, match="nothing is known of the device 'abacus'"):
        constants_of("abacus")


def test_command(tmp_path, folder):
    done = CliRunner().invoke(main, ["advise", str(folder)])
    assert done.exit_code == 0, done.output
    assert done.output.endswith("2:4 is not faster than dense weights here; what it saves is size.\n")
    assert done.output.count("mlp.down_proj") == 1 and "model.layers.*.mlp.down_proj" in done.output
    done = CliRunner().invoke(main, ["advise", str(folder), "--device", "h200", "--bits", "4", "--json"])
    found = json.loads(done.stdout)
    assert len(found["layers"]) == 2 * 5  # keys and values have few rows
    assert "nothing was measured" in found["constants"]
    squeeze.prune(folder, Magnitude(), out=tmp_path / "out")
    assert {layer[1] for layer in advise(tmp_path / "out", "h100", 8).layers} == {
        tuple(layer["shape"]) for layer in found["layers"]
    }
    done = CliRunner().invoke(main, ["advise", str(folder), "--device", "abacus"])
    assert (done.exit_code, done.output.startswith("Error: nothing is known")) == (1, True)
