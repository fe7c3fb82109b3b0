"""Schemes of compressed-tensors: described as the package describes its presets, and run by it as by our own code."""

import json
from functools import partial

import pytest
import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import SqueezeError
from squeeze.integrations import quantised
from squeeze.integrations.load_model import load_model
from squeeze.options import options_of
from squeeze.quant.formats import FORMATS, read
from squeeze.quant.methods import SCHEMES
from squeeze.recipes.options import Quantizing
from tests.makers import gguf_models
from tests.makers.cases import every
from tests.makers.quantised import SERVED

pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(3, 390, (11, 48), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return gguf_models.save("llama", tmp_path_factory.mktemp("schemes") / "model", dtype=torch.bfloat16)


def made(original, out, scheme, method="gptq", **options):
    return squeeze.quantize(original, method, out=out, scheme=scheme, calibration=TOKENS, **options)


@pytest.fixture(scope="module")
def written(original, tmp_path_factory):
    """The folder and the report of a scheme by a method, made once."""
    known = {}

    def make(scheme, method="gptq"):
        if (scheme, method) not in known:
            out = tmp_path_factory.mktemp(f"{scheme}-{method}") / "out"
            known[scheme, method] = out, made(original, out, scheme, method)
        return known[scheme, method]

    return make


def described(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def test_the_command_names_all_schemes():
    option = next(one for one in squeeze.options.options_of(Quantizing) if one.name == "scheme")
    assert set(option.choices) == set(SCHEMES)


def inputs_of_layers(model, names):
    """Return what each of them is given for TOKENS."""
    seen, hooks = {}, []
    for name in names:
        take = partial(lambda name, module, values: seen.update({name: values[0].clone()}), name)
        hooks.append(model.get_submodule(name).register_forward_pre_hook(take))
    with torch.no_grad():
        model(TOKENS)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", every(4, SERVED))
def test_the_package_runs_what_was_written_as_we_do(written, scheme):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    folder, report = written(scheme)
    assert report.settings["scheme"] == scheme and not report.fallbacks
    theirs, ours = run_by_the_package(folder, scheme), quantised.load(folder, torch.float32)
    rounded = not SCHEMES[scheme].symmetric
    inputs = inputs_of_layers(theirs, [name for name, _ in read(folder).weights()])
    with torch.no_grad():
        expected, found = theirs(TOKENS).logits, ours(TOKENS).logits
        for name, values in inputs.items():
            one, two = theirs.get_submodule(name)(values), ours.get_submodule(name)(values)
            assert float((two - one).norm()) <= (2e-3 if rounded else 1e-6) * float(one.norm()), name
    # A sum in another order may round an input of a later layer to the next value of the few that there are.
    loose = rounded or SCHEMES[scheme].activations is not None
    assert float((found - expected).norm() / expected.norm()) < (1e-2 if loose else 2e-3)
    for name, weight in read(folder).weights():
        values = weight.dequantize(torch.bfloat16 if rounded else torch.float32)
        assert torch.equal(theirs.get_submodule(name).weight, values.float()), name


def run_by_the_package(folder, scheme):
    """A model in float32. The package expands fp4 and, on the way to dense weights, integers to the folder's bf16."""
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    whole = SCHEMES[scheme].symmetric
    options = {} if whole else {"quantization_config": CompressedTensorsConfig(dequantize=True)}
    dtype = torch.float32 if whole and "fp4" not in scheme else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options).eval()
    with torch.no_grad():
        model(TOKENS[:1])  # weights are expanded then
    return torch.nn.Module.float(model)  # transformers' own forbids it


@pytest.mark.parametrize("scheme", ["nvfp4", "mxfp4", "w8a8"])
def test_a_folder_loads_in_float32_and_in_silence(written, scheme, capfd):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    folder = written(scheme)[0]
    model = load_model(folder)
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    with torch.no_grad():
        found, expected = model(TOKENS).logits, quantised.load(folder, torch.float32)(TOKENS).logits
    assert float((found - expected).norm() / expected.norm()) < 1e-2
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("scheme", every(2, SERVED))
def test_it_is_described_as_the_package_describes_its_preset(written, scheme):
    package = pytest.importorskip("compressed_tensors.quantization", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors.format import infer_module_format

    config = package.QuantizationConfig.model_validate(described(written(scheme)[0]))
    found = config.config_groups["group_0"]
    preset = package.preset_name_to_scheme(scheme, ["Linear"])
    for part in ("weights", "input_activations"):
        wanted = _told(getattr(preset, part))
        if part == "weights" and wanted["strategy"] == "group":
            wanted["actorder"] = "static"  # of GPTQ, which presets do not tell
        assert _told(getattr(found, part)) == wanted, part
    assert found.format == infer_module_format(torch.nn.Linear, preset) == config.format


def _told(args):
    if args is None:
        return None
    values = {**args.model_dump(), "observer": None, "zp_dtype": None}
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize("scheme", every(2, ["w8a8", "fp8_dynamic", "fp8_block", "nvfp4", "mxfp4", "w4a8"]))
def test_gptq_loses_less_than_rounding(original, written, scheme):
    lost = {}
    with torch.no_grad():
        wanted = load_model(original)(TOKENS).logits
        for method in ("rtn", "gptq"):
            found = quantised.load(written(scheme, method)[0], torch.float32)(TOKENS).logits
            lost[method] = float((found - wanted).norm())
    assert lost["gptq"] < lost["rtn"]


def test_gptqs_w8a8_is_smoothed_where_nothing_else_was_asked_for(original, written, tmp_path):
    assert written("w8a8")[1].settings["smooth"] == 0.5
    unsmoothed = made(original, tmp_path / "plain", "w8a8", smooth=0.0)
    rotated = made(original, tmp_path / "rotated", "w8a8", rotate=True)
    others = (unsmoothed, rotated, written("w8a8", "rtn")[1], written("w4a8")[1])
    assert not any("smooth" in report.settings for report in others)
    folders = (original, tmp_path / "plain", written("w8a8")[0])
    name = "model.layers.0.input_layernorm.weight"
    first, plain, smoothed = (Checkpoint.open(folder).load([name])[name] for folder in folders)
    assert torch.equal(first, plain) and not torch.equal(first, smoothed)


def test_w8a8_of_a_network_that_cannot_be_smoothed_is_plain(tmp_path):
    folder = gguf_models.save("mixtral", tmp_path / "model", dtype=torch.bfloat16, num_hidden_layers=1)
    assert "smooth" not in made(folder, tmp_path / "out", "w8a8").settings


@pytest.mark.parametrize("scheme", ["w8a8", "fp8", "fp8_block", "nvfp4", "mxfp4a16"])
def test_files_hold_what_the_format_names(written, scheme):
    folder, report = written(scheme)
    stored = read(folder).tensors
    weight = stored.get("model.layers.0.mlp.up_proj.weight")
    name = "model.layers.0.mlp.up_proj"
    if SCHEMES[scheme].bits == 8:
        assert weight.dtype == (torch.int8 if scheme == "w8a8" else torch.float8_e4m3fn) and weight.shape == (512, 256)
        shape = {"w8a8": (512, 1), "fp8": (1,), "fp8_block": (4, 2)}[scheme]
        assert stored[f"{name}.weight_scale"].shape == shape
        assert 8 <= report.bits_per_weight < 8.2
    else:
        assert weight is None and stored[f"{name}.weight_packed"].shape == (512, 128)
        kind = torch.float8_e4m3fn if scheme == "nvfp4" else torch.uint8
        assert stored[f"{name}.weight_scale"].dtype == kind
    assert (f"{name}.input_global_scale" in stored) == (scheme == "nvfp4")
    assert (f"{name}.input_scale" in stored) == (scheme == "fp8")


def test_matrices_that_servers_join_have_one_factor(written):
    stored = read(written("nvfp4")[0]).tensors
    block = "model.layers.0.self_attn"
    for leaf in ("weight_global_scale", "input_global_scale"):
        assert len({float(stored[f"{block}.{part}_proj.{leaf}"]) for part in "qkv"}) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "gptq"}, "`scheme` nvfp4 needs the format compressed-tensors, got gptq"),
        ({"bits": 8}, "bits cannot be set with the scheme nvfp4, which decides it"),
        ({"group_size": 32}, "group_size cannot be set with the scheme nvfp4, which decides it"),
        ({"target_bits": 4.5}, "the bits of a scheme cannot be chosen by size"),
        ({"outliers": 2}, "a scheme has neither dynamic scales nor outlier columns"),
    ],
)
def test_what_does_not_go_with_a_scheme(tmp_path, original, options, message):
    with pytest.raises(SqueezeError, match=message):
        made(original, tmp_path / "out", "nvfp4", **options)
    assert not (tmp_path / "out").exists()


def test_a_scheme_goes_with_a_name_and_activations_with_one_format(tmp_path, original):
    with pytest.raises(SqueezeError, match="a scheme needs a method that is named"):
        made(original, tmp_path / "out", "nvfp4", squeeze.RTN())
    rounding = squeeze.RTN(grid="nvfp4", activations="nvfp4")
    for format in ("squeeze", "dense"):
        with pytest.raises(SqueezeError, match=f"the format {format} cannot describe quantised activations"):
            squeeze.quantize(original, rounding, out=tmp_path / "out", format=format, calibration=TOKENS)


def test_the_help_names_every_format_and_the_scheme_with_another_default():
    options = {option.name: option for option in options_of(Quantizing)}
    assert all(name in options["format"].help.replace(",", "").split() for name in (*FORMATS, "dense", "gguf"))
    defaults = {scheme for scheme, one in SCHEMES.items() if one.format != options["format"].default}
    assert defaults == {"whole4"} and "squeeze (for whole4)" in options["format"].help
