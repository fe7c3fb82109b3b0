"""Models of diffusers, quantised, pruned and factorised, load in diffusers with the outputs of their dense forms."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import squeeze
from squeeze.errors import FormatError, ModelError, SqueezeError

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
from squeeze.engine.inputs import Samples, arguments, flat  # noqa: E402
from squeeze.engine.outputs import compare_outputs  # noqa: E402
from squeeze.integrations.diffusers import recorded  # noqa: E402
from squeeze.integrations.load_model import load_model  # noqa: E402
from squeeze.recipes.measure.outputs import output_qualities  # noqa: E402
from tests.makers import zoo_diffusion  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("in_folder"),
    pytest.mark.filterwarnings("ignore"),  # of diffusers and its imports
]
DIT, UNET = "DiTTransformer2DModel", "UNet2DConditionModel"
OPERATIONS = {
    "quantize": ((), {"group_size": 32}),
    "prune": ((), {}),
    "factorize": (("whitened",), {"keep": 0.9}),
}
QUICK = [(DIT, "quantize"), (DIT, "prune"), (UNET, "factorize")]
ALL = [(name, operation) for name in zoo_diffusion.KINDS for operation in OPERATIONS]


def error(model, other, inputs) -> float:
    return max(one.error for one in compare_outputs(model, other, inputs))


@pytest.mark.parametrize(
    ("name", "operation"),
    [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in ALL if one not in QUICK)],
)
def test_a_model_loads_with_the_outputs_of_its_dense_form(name, operation):
    source, inputs = zoo_diffusion.write(Path("model"), name), zoo_diffusion.samples(name, 2, seed=7)
    positional, settings = OPERATIONS[operation]
    calibration = zoo_diffusion.samples(name, 4)
    report = getattr(squeeze, operation)(source, *positional, out="out", calibration=calibration, **settings)
    assert len(report.layers) >= 4
    assert Path("out/diffusion_pytorch_model.safetensors").is_file()
    found = getattr(diffusers, name.partition(",")[0]).from_pretrained("out")
    squeeze.densify("out", "dense")
    dense, original = load_model("dense"), load_model(source)
    lost = error(found, original, inputs)
    assert error(found, dense, inputs) < max(2e-3, 0.05 * lost)
    assert 0 < lost < 0.7


def test_the_default_format_is_ours_and_dense_needs_no_import():
    zoo_diffusion.write(Path("model"), DIT, torch.bfloat16)
    report = squeeze.quantize("model", "rtn", out="out", group_size=32)
    described = json.loads(Path("out/config.json").read_text())["quantization_config"]
    assert (report.format, described["quant_method"]) == ("squeeze", "squeeze-quantized")
    squeeze.quantize("model", "rtn", out="dense", group_size=32, format="dense")
    assert "quantization_config" not in json.loads(Path("dense/config.json").read_text())
    inputs = zoo_diffusion.samples(DIT, 2)
    assert error(load_model("out", torch.float32), load_model("dense", torch.float32), inputs) < 3e-3


@pytest.mark.parametrize(
    "settings", [{"format": "compressed-tensors"}, {"format": "gptq"}, {"scheme": "fp8_dynamic"}, {"format": "gguf"}]
)
def test_formats_that_diffusers_does_not_load_are_refused(settings):
    zoo_diffusion.write(Path("model"), DIT)
    with pytest.raises(FormatError, match=r"diffusers loads no models in .*: use the format squeeze or dense"):
        squeeze.quantize("model", "rtn", out="out", **settings)
    assert not Path("out").exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_packed_quantised_model_has_the_same_bits(dtype):
    zoo_diffusion.write(Path("model"), DIT, torch.bfloat16)
    squeeze.quantize("model", "rtn", out="out", group_size=32)
    squeeze.pack("out", "packed")
    kind = diffusers.DiTTransformer2DModel
    plain, packed = (kind.from_pretrained(folder, torch_dtype=dtype) for folder in ("out", "packed"))
    (inputs,) = zoo_diffusion.samples(DIT, 1).samples
    one, two = (
        model(**{key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()}).sample
        for model in (plain, packed)
    )
    assert one.dtype == dtype
    assert torch.equal(one, two)
    for name, value in plain.state_dict().items():
        if name.endswith(("codes", "scales")):
            assert packed.state_dict()[name].dtype == value.dtype


def test_a_pipeline_records_its_calibration_and_takes_the_result():
    unet = diffusers.UNet2DModel(**zoo_diffusion.KINDS["UNet2DModel"][1])
    pipeline = diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler(num_train_timesteps=4))
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained("pipeline")
    samples = recorded(pipeline.unet, lambda: pipeline(num_inference_steps=4), most=2)
    assert [set(sample) for sample in samples] == [{"sample", "timestep"}] * 2
    with pytest.raises(FormatError, match=r"it is a pipeline of diffusers: name the folder of one of its models"):
        squeeze.quantize("pipeline", out="out", calibration=samples)
    squeeze.quantize("pipeline/unet", out="out", calibration=samples, group_size=32)
    shutil.rmtree("pipeline/unet")
    Path("out").rename("pipeline/unet")
    found = diffusers.DiffusionPipeline.from_pretrained("pipeline")
    found.set_progress_bar_config(disable=True)
    images = [
        one(generator=torch.manual_seed(3), num_inference_steps=2, output_type="np").images for one in (pipeline, found)
    ]
    assert 0 < np.abs(images[0] - images[1]).max() < 0.3


def test_recorded_inputs_stay_when_a_model_changes_them():
    class Model(torch.nn.Module):
        def forward(self, sample):
            return sample.mul_(0)

    found = recorded(model := Model(), lambda: model(torch.ones(1, 2)))
    assert found.samples[0]["sample"].tolist() == [[1.0, 1.0]]


@pytest.mark.slow
def test_a_pruned_model_is_quantised_after_densify():
    zoo_diffusion.write(Path("model"), DIT)
    squeeze.prune("model", "magnitude", out="pruned")
    with pytest.raises(ModelError, match=r"'squeeze-sparse': `squeeze densify` .* makes floats of it"):
        squeeze.quantize("pruned", "rtn", out="out", group_size=32)
    squeeze.densify("pruned", "dense")
    squeeze.prune("dense", out="out", calibration=zoo_diffusion.samples(DIT, 2), keep_zeros=True, bits=4, group_size=32)
    squeeze.densify("out", "again")
    kept, found = (load_model(folder, torch.float32).state_dict() for folder in ("dense", "again"))
    name = next(name for name, value in kept.items() if value.ndim == 2 and float((value == 0).float().mean()) == 0.5)
    assert ((found[name] == 0) >= (kept[name] == 0)).all()


def test_texts_are_left_out_of_samples_and_the_report_names_them():
    class Model(torch.nn.Module):
        def forward(self, sample, kind, more):
            return sample

    more = {"kind": "b"}
    found = recorded(model := Model(), lambda: model(torch.ones(1, 2), "a", more))
    assert (set(found.samples[0]), found[:1].left_out) == ({"sample"}, ("kind", "more.kind"))
    zoo_diffusion.write(Path("model"), DIT)
    given = Samples.of({**sample, "mode": "fast"} for sample in zoo_diffusion.samples(DIT, 2))
    report = squeeze.quantize("model", out="out", calibration=given, group_size=32)
    assert "calibrated without these arguments, which are texts: mode" in report.notes


def test_samples_of_two_images():
    """Check samples as a pipeline with guidance gives them: one with a prompt and one without, together."""
    zoo_diffusion.write(Path("model"), DIT)
    pairs = zip(zoo_diffusion.samples(DIT, 3), zoo_diffusion.samples(DIT, 3, seed=2), strict=True)
    samples = Samples.of({name: torch.cat([one[name], two[name]]) for name in one} for one, two in pairs)
    squeeze.quantize("model", out="out", calibration=samples, group_size=32)
    assert 0 < error(load_model("out"), load_model("model"), samples) < 0.1


def test_inputs_in_tables_and_tuples_keep_their_places():
    given = {"a": torch.ones(1, 2), "b": {"c": torch.zeros(1), "d": None}, "e": [[(1, 2)]], "f": 3, "g": True}
    named = dict(flat({**given, "h": "text", "return_dict": False}))
    assert {name: value.tolist() for name, value in named.items()} == {
        "a": [[1.0, 1.0]], "b.c": [0.0], "e.0.0.0": 1, "e.0.0.1": 2, "f": 3, "g": True,
    }  # fmt: skip
    taken = arguments(torch.nn.Linear(1, 1), named, "cpu")
    assert taken["e"] == [[(1, 2)]]
    assert taken["f"] == 3
    assert taken["b"].keys() == {"c"}
    assert taken["g"] is True


def test_arrays_are_inputs_of_eval_too():
    zoo_diffusion.write(Path("model"), DIT)
    samples = list(zoo_diffusion.samples(DIT, 3))
    np.savez("inputs.npz", **{name: torch.cat([one[name] for one in samples]).numpy() for name in samples[0]})
    squeeze.quantize("model", out="out", calibration="inputs.npz", group_size=32)
    (quality,) = output_qualities(Path("out"), Path("model"), Path("inputs.npz"))
    assert quality.name == "sample"
    assert 20 < quality.psnr < 60
    with pytest.raises(SqueezeError, match=r"DiTTransformer2DModel takes no 'pixels'"):
        squeeze.quantize("model", out="other", calibration=Samples.of([{"pixels": torch.ones(1, 1)}]))
    with pytest.raises(SqueezeError, match=r"does not write text to calibrate with: give `calibration`"):
        squeeze.quantize("model", out="other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_class_name": "NoSuchModel"}, "has no model 'NoSuchModel'"),
        ({"_class_name": "DDPMScheduler"}, "has no model 'DDPMScheduler'"),
        ({"_class_name": "ModelMixin"}, "has no model 'ModelMixin'"),
        ({"_class_name": "../model"}, r"has no model '\.\./model'"),
        ({"_class_name": "__class__"}, "has no model '__class__'"),
        ({"quantization_config": "squeeze"}, "quantization_config: 'squeeze' is not a table"),
        ({"num_layers": 5000}, "describes 5000 layers"),
        ({"sample_size": 1025}, "sample_size must be at most 1024, got 1025"),
        ({"sample_size": [64, 1 << 20]}, "sample_size must be at most 1024, got 1048576"),
        ({"sample_width": 1 << 20}, "sample_width must be at most 1024, got 1048576"),
        ({"num_layers": 3}, "describes a model of"),
    ],
)
def test_descriptions_that_fit_no_model_are_refused(change, message):
    zoo_diffusion.write(Path("model"), DIT)
    path = Path("model/config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises((FormatError, ModelError), match=message):
        squeeze.quantize("model", "rtn", out="out")
