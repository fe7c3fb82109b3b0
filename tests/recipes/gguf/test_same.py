"""GGUF files with the codes of a quantised folder: llama.cpp reads the numbers that the folder has."""

import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.cli import main
from squeeze.errors import FormatError, OptionError
from squeeze.integrations.gguf.export import Export
from squeeze.integrations.load_model import load_model
from squeeze.lm.gguffile import GgufFile
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.gguf.same import in_blocks
from tests.makers import gguf_models
from tests.makers.cases import every

pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 390, (8, 24), generator=torch.Generator().manual_seed(1))
FOLDERS = {  # options of quantize, or None for 2:4 with 4 bits, and the type that holds the codes
    "2 bits": ({"bits": 2, "group_size": 64, "symmetric": False, "format": "squeeze"}, "Q4_0"),
    "3 bits": ({"bits": 3, "group_size": 128, "symmetric": False, "format": "squeeze"}, "Q4_0"),
    "4 bits": ({"bits": 4, "group_size": 32, "format": "squeeze", "head": 4, "embeddings": 4}, "Q4_0"),
    "4 bits with zero points": ({"bits": 4, "group_size": 32, "symmetric": False, "format": "squeeze"}, "Q5_0"),
    "8 bits": ({"bits": 8, "group_size": -1, "format": "squeeze"}, "Q8_0"),
    "2:4 and 4 bits": (None, "Q4_0"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "base"
    return gguf_models.save("llama", folder, num_hidden_layers=1, intermediate_size=256)


def compressed(base, out, options):
    if options is None:
        method = SparseGPT(quantizer=GPTQ(bits=4, group_size=64))
        squeeze.prune(base, method, out=out, calibration=torch.randint(0, 390, (16, 40)))  # more tokens than inputs
    else:
        squeeze.quantize(base, "rtn", out=out, **options)
    return out


def values(path, export):
    """Return the numbers of a GGUF file by the checkpoint's names, with rows in the checkpoint's order."""
    model = gguf_models.dequantised(path, export)
    return dict(model.named_parameters())


@pytest.mark.parametrize("name", every(2, FOLDERS))
def test_a_recovered_folder_keeps_its_numbers_in_llama_cpp(tmp_path, base, name):
    options, kind = FOLDERS[name]
    folder, out = compressed(base, tmp_path / "small", options), tmp_path / "out.gguf"
    recovered = tmp_path / "recovered"
    squeeze.recover(folder, base=base, out=recovered, steps=2, rate=0.02, calibration=TOKENS, samples=4)
    report = squeeze.quantize(recovered, out=out, format="gguf", type="same")
    types = {name: found for name, found in gguf_models.types_of(out).items() if name.startswith("blk.")}
    assert {found for name, found in types.items() if "norm" not in name and "bias" not in name} == {kind}
    assert {layer.method for layer in report.layers} == {"same"} and report.stored_bytes < out.stat().st_size
    squeeze.densify(recovered, tmp_path / "dense")
    wanted = dict(load_model(tmp_path / "dense").named_parameters())
    found = values(out, Export.of(Checkpoint.open(tmp_path / "dense")))
    assert not [name for name, value in wanted.items() if not torch.equal(value, found[name])]
    gguf_models.check_network(out, tmp_path / "dense")


def test_embedding_and_head_are_in_blocks_as_well_and_the_command_writes_the_same(tmp_path, base):
    folder = compressed(base, tmp_path / "small", FOLDERS["4 bits"][0])
    squeeze.quantize(folder, out=tmp_path / "one.gguf", format="gguf", type="same")
    given = [str(folder), str(tmp_path / "other.gguf"), "--format", "gguf", "--type", "same", "-q"]
    result = CliRunner().invoke(main, ["quantize", *given])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "other.gguf").read_bytes()
    result = CliRunner().invoke(main, ["quantize", *given, "-f", "--cluster", "local"])
    assert result.exit_code == 2 and "leave out --cluster" in result.output
    types = gguf_models.types_of(tmp_path / "one.gguf")
    assert types["token_embd.weight"] == types["output.weight"] == "Q5_0"  # 4 bits with zero points
    file = GgufFile(tmp_path / "one.gguf")
    assert np.isfinite(file.float_rows("token_embd.weight", 0, 4)).all()


def test_a_rounding_of_activations_is_named_as_left_out(tmp_path, base):
    squeeze.quantize(base, "rtn", out=tmp_path / "activations", scheme="w8a8")
    compressed(base, tmp_path / "weights", FOLDERS["8 bits"][0])
    for name, is_named in (("activations", True), ("weights", False)):
        report = squeeze.quantize(tmp_path / name, out=tmp_path / f"{name}.gguf", format="gguf", type="same")
        assert any("rounds activations" in note for note in report.notes) == is_named


def test_what_would_change_is_refused(tmp_path, base):
    out = tmp_path / "out.gguf"
    with pytest.raises(FormatError, match="its weights are dense"):
        squeeze.quantize(base, out=out, format="gguf", type="same")
    folder = compressed(base, tmp_path / "nf4", {"grid": "nf4", "format": "squeeze"})
    with pytest.raises(FormatError, match=r"not whole numbers times a scale: choose a `type`"):
        squeeze.quantize(folder, out=out, format="gguf", type="same")
    for given in ({"bits": 4}, {"samples": 4}, {"smooth": 0.5}, {"methods": {"x": GPTQ()}}, {"method": "rtn"}):
        with pytest.raises(OptionError, match=f"leave out `{next(iter(given))}`"):
            squeeze.quantize(folder, out=out, format="gguf", type="same", **given)
    with pytest.raises(OptionError, match="`type` needs the format gguf"):
        squeeze.quantize(base, "rtn", out=out, type="same")
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scales": torch.full((1, 2, 1), 1 / 3)}, "finer than half precision"),
        ({"group_size": 16, "scales": torch.ones(1, 2, 4).half()}, "blocks of 32 inputs"),
        ({"outliers": (torch.tensor([3]), torch.ones(2, 1))}, "columns are floats"),
        ({"bits": 8, "zeros": torch.full((2, 1), 255, dtype=torch.uint8)}, "its numbers are from -255 to -25[0-9]"),
    ],
)
def test_a_weight_that_blocks_do_not_hold_is_named(changes, reason):
    codes = torch.arange(128, dtype=torch.uint8).reshape(2, 64) % 4
    given = {"scales": torch.ones(1, 2, 1).half(), "zeros": torch.ones(2, 1, dtype=torch.uint8), "bits": 2}
    weight = QuantizedTensor(**{"codes": codes, "group_size": 64, **given})
    assert torch.equal(in_blocks(weight).dequantize(), weight.dequantize())
    found = in_blocks(QuantizedTensor(**{"codes": codes, "group_size": 64, **given, **changes}))
    assert isinstance(found, str)
    assert re.search(reason, found)
