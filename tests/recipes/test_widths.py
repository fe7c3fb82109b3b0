"""5, 6 and 7 bits in our own format: from the command to logits, and what other formats say of them."""

import json
import shutil

import pytest
import torch
from click.testing import CliRunner

import squeeze
from squeeze.cli import main
from squeeze.integrations.load_model import load_model
from squeeze.quant.formats import read
from squeeze.quant.linear import QuantLinear
from tests.makers import mixtures, tiny_models
from tests.makers.cases import all_slow_but, every

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    return tiny_models.write_folder(path, tiny_models.byte_level(), vocab_size=400)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(tiny_models.TRAINING_TEXT.decode()[:4000])
    return path


def done(*words, code=0):
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == code, found.output
    return found


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits.float()


METHODS = {
    "gptq": (5, "--group-size", "16", "--no-act-order"),
    "gptq, asymmetric, dynamic": (6, "--asymmetric", "--group-size", "13", "--dynamic"),
    "gptq, outliers": (7, "--outliers", "2", "--group-size", "-1"),
    "rtn, one scale a matrix": (6, "--grid", "whole"),
    "awq, asymmetric": (5, "--asymmetric", "--group-size", "16"),
    "awq": (7, "--group-size", "32", "--sweep"),
}


@pytest.mark.parametrize("name", every(2, METHODS))
def test_a_folder_loads_in_transformers_as_its_weights(tmp_path, folder, text, name):
    bits, *options = METHODS[name]
    command = ["quantize", folder, tmp_path / "out", "--method", name.partition(",")[0], "--bits", bits, *options]
    calibration = [] if name.startswith("rtn") else ["--calibration", text, "--samples", "4", "--sequence-length", "48"]
    report = json.loads(done(*command, *calibration, "--format", "squeeze", "-q", "--json").stdout)
    found = read(tmp_path / "out")
    assert {weight.bits for _, weight in found.weights()} == {bits} == {report["settings"]["bits"]}
    inspected = json.loads(done("inspect", tmp_path / "out", "--json").stdout)["quantised"]
    assert bits < inspected["bits_per_weight"] < bits + 6  # groups are short, and the matrices small
    import squeeze.integrations.transformers  # noqa: F401  registers what loads folders of our own

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert sum(isinstance(module, QuantLinear) for module in model.modules()) == 10
    dense = load_model(folder)
    dense.load_state_dict(dict(found.dense(torch.float32)), strict=True)
    wanted = logits(dense)
    assert (logits(model) - wanted).norm() < 2e-4 * wanted.norm()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, folder):
    out = tmp_path_factory.mktemp("mixed") / "out"
    bits = "attention=7,layers.0.mlp=6,5"
    done("quantize", folder, out, "--method", "rtn", "--bits", bits, "--format", "squeeze", "-q")
    return out


def test_bits_by_name(mixed):
    for name, weight in read(mixed).weights():
        assert weight.bits == (7 if "attn" in name else 6 if "layers.0." in name else 5), name


def test_a_folder_is_packed_verified_and_made_dense(tmp_path, mixed):
    done("pack", mixed, tmp_path / "packed", "-q")
    done("verify", tmp_path / "packed")
    done("unpack", tmp_path / "packed", tmp_path / "back", "-q")
    for path in mixed.iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()
    done("densify", mixed, tmp_path / "dense", "-q")
    wanted = logits(load_model(mixed))
    assert (logits(load_model(tmp_path / "packed")) - wanted).norm() < 1e-3 * wanted.norm()
    assert (logits(load_model(tmp_path / "dense")) - wanted).norm() < 3e-2 * wanted.norm()  # in 16 bits


def test_a_folder_is_measured_writes_and_is_a_source(tmp_path, folder, mixed, text):
    found = json.loads(done("eval", mixed, "--original", folder, "--text", text, "--windows", 1, "--json").stdout)
    assert 0 < found["kl_mean"] < 1
    assert done("generate", mixed, "def", "-n", 4, "-q").stdout
    done("quantize", mixed, tmp_path / "again", "--method", "rtn", "--bits", 8, "--format", "squeeze", "-q")
    wanted = logits(load_model(mixed))
    assert (logits(load_model(tmp_path / "again")) - wanted).norm() < 0.1 * wanted.norm()


@pytest.mark.parametrize("kind", ["qwen3_moe"])
def test_experts_of_five_bits(tmp_path, kind):
    mixture = mixtures.save(kind, tmp_path / "model")
    bits = "experts=5,attention=6"
    for format in ("squeeze", "compressed-tensors"):
        squeeze.quantize(mixture, "rtn", bits=bits, group_size=32, out=tmp_path / format, format=format)
        for name, weight in read(tmp_path / format).weights():
            assert weight.bits == (5 if ".experts." in name else 6), name
    with torch.no_grad():
        ids = TOKENS % 60
        ours, others = (load_model(tmp_path / format)(ids).logits for format in ("squeeze", "compressed-tensors"))
    assert (ours - others).norm() < 0.02 * others.norm()


@pytest.mark.parametrize(
    "options, message",
    [
        (("--format", "gptq"), "the format gptq stores 2, 3, 4 or 8 bits, got 6: use the format squeeze"),
        (("--format", "gptq_v2", "--asymmetric"), "the format gptq_v2 stores 2, 3, 4 or 8 bits, got 6"),
        (("--format", "awq", "--asymmetric", "--method", "awq"), "the format awq needs 4 bits"),
        (("--format", "bitsandbytes"), "bitsandbytes needs the grid nf4-nested without outliers"),
    ],
)
def test_other_formats_refuse_them_before_anything_is_done(tmp_path, folder, options, message):
    found = done("quantize", folder, tmp_path / "out", "--bits", 6, *options, "-q", code=1)
    assert found.output.startswith(f"Error: {message}") and found.output.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bits", all_slow_but([6], [5, 6, 7]))
def test_sparse_weights_factors_and_differences_hold_them(tmp_path, folder, text, bits):
    given = ("--calibration", text, "--samples", "4", "--sequence-length", "48", "--bits", bits, "-q")
    base = shutil.copytree(folder, tmp_path / "model")  # which a difference looks for beside itself
    done("prune", folder, tmp_path / "sparse", "--pattern", "2:4", *given)
    done("prune", folder, tmp_path / "zeros", "--pattern", "2:4", *given, "--dense")
    done("factorize", folder, tmp_path / "factors", "--keep", "0.9", "--method", "whitened", *given)
    done("delta", base, tmp_path / "zeros", tmp_path / "difference", *given)
    sparse, zeros = logits(load_model(tmp_path / "sparse")), logits(load_model(tmp_path / "zeros"))
    assert (sparse - zeros).norm() < 1e-2 * zeros.norm()
    for name in ("factors", "difference"):
        done("densify", tmp_path / name, tmp_path / f"{name}-dense", "-q")
        found, wanted = (logits(load_model(tmp_path / one)) for one in (f"{name}-dense", name))
        assert (found - wanted).norm() < 2e-2 * wanted.norm(), name
