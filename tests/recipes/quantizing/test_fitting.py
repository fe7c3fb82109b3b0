"""Matrices that do not fit a format or grid are found before any work, and their replacement loads elsewhere."""

import json
import re

import pytest
import torch

import squeeze
from squeeze.errors import FormatError
from squeeze.quant.formats import FORMATS, read
from squeeze.quant.methods import SCHEMES
from squeeze.quant.rtn import RTN
from squeeze.recipes.quantizing.fitting import fitting
from squeeze.recipes.quantizing.writing import DENSE
from tests.makers import gguf_models, networks
from tests.makers.quantised import SERVED

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(3, 390, (2, 16), generator=torch.Generator().manual_seed(2))
ODD = {"narrow": (32, 96), "ragged": (192, 200), "odd": (48, 72)}  # hidden_size, intermediate_size


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Make folders of models with odd sizes."""
    known = {}

    def make(kind):
        hidden, intermediate = ODD[kind]
        sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": 1}
        sizes |= {"num_attention_heads": hidden // 16, "num_key_value_heads": hidden // 16}
        if kind not in known:
            known[kind] = gguf_models.save("llama", tmp_path_factory.mktemp(kind) / "m", dtype=torch.bfloat16, **sizes)
        return known[kind]

    return make


def loaded(folder, symmetric=True):
    """Load a folder by transformers and compressed-tensors alone."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    options = {} if symmetric else {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options).eval()
    with torch.no_grad():
        assert model(TOKENS).logits.isfinite().all()  # weights are expanded then
    return model


def check(folder, symmetric=True):
    """Check that the package loads the stored weights."""
    model = loaded(folder, symmetric)
    stored = read(folder)
    for name, weight in stored.weights():
        assert torch.equal(model.get_submodule(name).weight, weight.dequantize(torch.bfloat16)), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "scheme"), [*(("ragged", scheme) for scheme in SERVED), ("narrow", "w4a8"), ("narrow", "w4a16_asym")]
)
def test_every_scheme_of_odd_shapes_loads_or_is_refused(tmp_path, odd, kind, scheme):
    out, needed = tmp_path / "out", {"nvfp4": 16, "mxfp4": 32, "fp8-block": 128}.get(SCHEMES[scheme].grid, 1)
    given = {"out": out, "scheme": scheme, "calibration": TOKENS}
    if all(size % needed for size in ODD[kind]):
        with pytest.raises(FormatError, match="no matrix can be stored: fp8-block needs a multiple of 128"):
            squeeze.quantize(odd(kind), "rtn", **given)
        assert not out.exists()
        return
    report = squeeze.quantize(odd(kind), "rtn", **given)
    ragged = [name for name, why in report.left.items() if f"needs a multiple of {needed} inputs" in why]
    assert ragged == ["model.layers.0.mlp.down_proj"] * (ODD[kind][1] % needed > 0)
    check(out, SCHEMES[scheme].symmetric)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ODD)
def test_groups_that_do_not_divide_rows_are_smaller(tmp_path, odd, kind, symmetric):
    out = tmp_path / "out"
    report = squeeze.quantize(odd(kind), RTN(group_size=64, symmetric=symmetric), out=out)
    notes = {layer.name.rpartition(".")[2]: layer.notes for layer in report.layers}
    if kind == "narrow":
        wanted = "groups of 32, as 96 inputs are not whole groups of 64, which compressed-tensors needs"
        assert notes["down_proj"] == (wanted,)
    if kind == "ragged":
        assert bool(notes["q_proj"]) != symmetric and notes["down_proj"][0].startswith("one scale a row, as ")
    assert report.fallbacks
    check(out, symmetric)


@pytest.mark.parametrize("format", [*sorted(FORMATS.keys() - {"bitsandbytes"}), DENSE])
@pytest.mark.parametrize("grid", ["integer", "nf4", "mxfp4", "fp8", "fp8-block"])
def test_every_format_holds_what_fits_it(format, grid):
    """Check for any shape that a matrix which fits is stored and read back, and that one which does not is refused."""
    method = RTN(grid=grid, group_size=64, bits=4, symmetric=format != "awq")
    for outputs, inputs in ((64, 32), (40, 96), (33, 128), (32, 7), (5, 200)):
        serving, wrong = fitting(method, format, outputs, inputs)
        assert (serving == method) == (wrong is None)
        if serving is None:
            assert re.search(r"needs a multiple of|do not fill the words of", wrong)
            continue
        tensor = serving.compress(torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(1))).tensor
        if format == DENSE or grid != "integer":
            assert tensor.shape == (outputs, inputs)
            continue
        stored = FORMATS[format].tensors("m", tensor, torch.float16)
        spec = squeeze.quant.formats.QuantizationSpec(4, serving.group_size, method.symmetric)
        assert torch.equal(FORMATS[format].weight("m", stored, spec).codes, tensor.codes)


def test_gptq_falls_back_in_its_own_words(tmp_path, odd):
    squeeze.quantize(odd("ragged"), RTN(group_size=128), out=tmp_path / "out", format="gptq")
    described = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert described["group_size"] == 64
    assert described["dynamic"] == {r"+:^model\.layers\.0\.mlp\.down_proj$": {"bits": 4, "group_size": -1, "sym": True}}


def test_refuses_a_group_size_that_is_asked_for_and_fits_no_matrix(tmp_path, odd):
    fault = (
        "`group_size` 100 fits no matrix: 32 inputs are not whole groups of 100, which compressed-tensors needs: use 32"
    )
    with pytest.raises(FormatError, match=fault):
        squeeze.quantize(odd("narrow"), "rtn", out=tmp_path / "out", group_size=100)
    assert not (tmp_path / "out").exists()


def test_bits_by_size_know_of_it(tmp_path, odd):
    report = squeeze.quantize(
        odd("ragged"), RTN(group_size=128), out=tmp_path / "out", target_bits=4.5, calibration=TOKENS
    )
    assert {layer.shape[1] for layer in report.layers if layer.notes} == {192, 200}
    assert report.bits_per_weight < 4.6


def test_a_transposed_matrix_is_refused_before_anything_is_done(tmp_path):
    with pytest.raises(FormatError, match="is stored transposed, which only the formats dense and squeeze hold"):
        squeeze.quantize(networks.save("gpt2", tmp_path / "m"), RTN(), out=tmp_path / "out", format="gptq")
