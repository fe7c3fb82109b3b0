"""bitsandbytes' NF4: scales in two levels, stored as the package stores and reads them, and read as a source."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import FormatError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.quant.formats import FORMATS, QuantizationSpec, read
from squeeze.quant.gptq import GPTQ
from squeeze.quant.rtn import RTN
from squeeze.quant.scales import LEVELS, Nested
from squeeze.quant.sources import floats
from tests.makers import networks

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

FORMAT = FORMATS["bitsandbytes"]
SPEC = QuantizationSpec(4, 64, True, "nf4-nested")
METHOD = RTN(grid="nf4-nested")
TOKENS = torch.randint(0, 300, (8, 32), generator=torch.Generator().manual_seed(1))
GIVEN = {"grid": "nf4-nested", "format": "bitsandbytes", "calibration": TOKENS}


def matrix(outputs=40, inputs=192):
    generator = torch.Generator().manual_seed(3)
    values = torch.randn((outputs, inputs), generator=generator) * torch.rand((outputs, 1), generator=generator) ** 3
    return values.bfloat16()


def test_scales_in_two_levels_are_near_and_positive():
    scales = matrix(300, 5).abs().float() + 1e-6
    scales[7, 2] = 1e-30
    nested = Nested.of(scales)
    assert len(LEVELS) == 256 and LEVELS.unique().numel() == 256 and LEVELS[-1] == 1
    assert nested.codes.dtype == torch.uint8 and nested.factors.shape == (6,)
    found = nested.scales()
    assert (found > 0).all()
    assert ((found - scales).abs() <= 0.01 * (scales - scales.mean()).abs().amax()).all()
    assert nested.stored_bits == 8 * 1500 + 32 * 7


@pytest.mark.parametrize("method", [METHOD, GPTQ(grid="nf4-nested")], ids=["rtn", "gptq"])
def test_weights_come_back(method):
    x = torch.randn(500, 192, generator=torch.Generator().manual_seed(1))
    tensor = method.compress(matrix(), x.T @ x / 500).tensor
    assert tensor.stored_bits / matrix().numel() == pytest.approx(4.129, abs=0.01)
    stored = FORMAT.tensors("m", tensor, torch.bfloat16)
    again = FORMAT.weight("m", stored, SPEC)
    assert torch.equal(again.dequantize(), tensor.dequantize())
    assert torch.equal(again.codes, tensor.codes) and torch.equal(again.nested.codes, tensor.nested.codes)
    assert (tensor.dequantize() - matrix().float()).norm() < 0.11 * matrix().float().norm()


@pytest.mark.filterwarnings("ignore")
def test_the_package_has_our_weights_and_we_have_the_package_s():
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    stored = {name.removeprefix("m.weight."): tensor for name, tensor in
              FORMAT.tensors("m", METHOD.apply(matrix()), torch.bfloat16).items()}  # fmt: skip
    packed = stored.pop("m.weight")
    state = functional.QuantState.from_dict(dict(stored), torch.device("cpu"))
    expected = METHOD.apply(matrix()).dequantize(torch.bfloat16)
    assert torch.equal(functional.dequantize_4bit(packed, state), expected)
    theirs, state = functional.quantize_4bit(matrix(), quant_type="nf4", compress_statistics=True)
    named = {f"m.weight.{leaf}": value for leaf, value in state.as_dict(packed=True).items()}
    assert named.keys() | {"m.weight"} == FORMAT.tensors("m", METHOD.apply(matrix()), torch.bfloat16).keys()
    found = FORMAT.weight("m", {"m.weight": theirs, **named}, SPEC).dequantize(torch.bfloat16)
    assert torch.equal(found, functional.dequantize_4bit(theirs, state))
    rounded = (found.float() - matrix().float()).square().sum()
    assert (expected.float() - matrix().float()).square().sum() < rounded  # ranges are searched, not taken whole
    theirs, state = functional.quantize_4bit(matrix(), quant_type="nf4", compress_statistics=False)
    named = {f"m.weight.{leaf}": value for leaf, value in state.as_dict(packed=True).items()}
    found = FORMAT.weight("m", {"m.weight": theirs, **named}, SPEC).dequantize(torch.bfloat16)
    assert torch.equal(found, functional.dequantize_4bit(theirs, state))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bnb")
    report = squeeze.quantize(networks.save("llama", folder / "model"), "gptq", out=folder / "out", **GIVEN)
    return folder / "out", report


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits.float()


def test_a_folder_is_read_back_and_a_source(tmp_path, written):
    folder, report = written
    stored = read(folder)
    assert len(stored.modules) == 12 and stored.spec.codebook == "nf4-nested"
    left = {f"model.layers.{n}.mlp.down_proj" for n in (0, 1)}
    assert left < set(report.left) and left < set(stored.spec.ignored)
    assert "nf4-nested needs a multiple of 64 inputs, got 96" in report.left.values()
    squeeze.densify(folder, tmp_path / "dense")
    dense = logits(load_model(tmp_path / "dense"))
    assert (logits(load_model(folder)) - dense).norm() < 0.02 * dense.norm()
    source = floats(Checkpoint.open(folder))
    name = stored.modules[0]
    found = source.load([f"{name}.weight"])[f"{name}.weight"]
    assert torch.equal(found, stored.weight(name).dequantize(torch.bfloat16))
    assert not [name for name in source.files if "absmax" in name]


@pytest.mark.filterwarnings("ignore")
def test_transformers_runs_it(tmp_path, written):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(written[0], dtype=torch.bfloat16).eval()
    assert type(theirs.model.layers[0].self_attn.q_proj).__name__ == "Linear4bit"
    squeeze.densify(written[0], tmp_path / "dense")
    wanted = logits(load_model(tmp_path / "dense", torch.bfloat16))
    assert (logits(theirs) - wanted).norm() < 0.02 * wanted.norm()


def changed(tensors, state=None, **others):
    leaf = "m.weight.quant_state.bitsandbytes__nf4"
    said = json.loads(bytes(tensors[leaf].tolist())) | (state or {})
    replaced = {f"m.weight.{name}": tensor for name, tensor in others.items()}
    return tensors | {leaf: torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)} | replaced


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": {"shape": [40]}}, r"m: expected the shape of a matrix, got \[40\]"),
        ({"state": {"shape": [40, 128]}}, r"tensor m.weight: expected shape \[2560\], got \[3840\]"),
        ({"state": {"blocksize": 128}}, "m: expected blocks of 64 in whole rows, got 128"),
        ({"state": {"nested_blocksize": 64}}, "m: its quant_state does not say how scales are stored"),
        ({"absmax": torch.zeros(3, dtype=torch.uint8)}, r"tensor m.weight.absmax: expected shape \[120\], got \[3\]"),
        ({"nested_quant_map": torch.zeros(256)}, "m: weight.nested_quant_map is not the map of bitsandbytes"),
        (
            {"quant_state.bitsandbytes__nf4": torch.zeros(3, dtype=torch.uint8)},
            "does not say how its weights are stored: is not JSON",
        ),
    ],
)
def test_contradictions_are_named(change, message):
    tensors = FORMAT.tensors("m", METHOD.apply(matrix()), torch.bfloat16)
    with pytest.raises(FormatError, match=message):
        FORMAT.weight("m", changed(tensors, **change), SPEC)


def test_the_own_format_refuses_nested_scales(tmp_path):
    with pytest.raises(FormatError, match="stores scales of nf4-nested in 32 bits"):
        squeeze.quantize(networks.save("llama", tmp_path / "model"), METHOD, out=tmp_path / "a", format="squeeze")


def test_other_grids_and_outliers_are_refused(tmp_path):
    source = networks.save("llama", tmp_path / "model")
    for method in (RTN(), RTN(grid="nf4"), GPTQ(grid="nf4-nested", outliers=2)):
        with pytest.raises(FormatError, match="bitsandbytes needs the grid nf4-nested without outliers: add"):
            squeeze.quantize(source, method, out=tmp_path / "out", format="bitsandbytes", calibration=TOKENS)
    with pytest.raises(SqueezeError, match="the grid nf4-nested finds its scales together"):
        GPTQ(grid="nf4-nested", dynamic=True)
    for said in ({"load_in_8bit": True}, {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}):
        with pytest.raises(FormatError, match="bitsandbytes is read in 4 bits of nf4"):
            FORMAT.spec({"quant_method": "bitsandbytes", **said})


def test_a_source_without_its_state_is_refused(tmp_path, written):
    tensors = {
        name: tensor
        for path in written[0].glob("*.safetensors")
        for name, tensor in load_file(path).items()
        if "absmax" not in name
    }
    (tmp_path / "bad").mkdir()
    save_file(tensors, tmp_path / "bad" / "model.safetensors", {"format": "pt"})
    (tmp_path / "bad" / "config.json").write_text((written[0] / "config.json").read_text())
    with pytest.raises(SqueezeError, match=r"weight\.absmax is missing"):
        squeeze.quantize(tmp_path / "bad", RTN(), out=tmp_path / "out")
