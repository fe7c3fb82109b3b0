"""Packed models of diffusers load by its own calls, compute what the originals do, and stay coded in memory."""

import json
from pathlib import Path

import pytest
import torch

import squeeze
from squeeze.errors import FormatError, SqueezeError

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
from squeeze.integrations.diffusers import load_options, memory_of  # noqa: E402
from tests.makers.checkpoints import content  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("in_folder"),
    pytest.mark.filterwarnings("ignore"),  # of diffusers and its imports
]
DTYPES = [torch.bfloat16, torch.float32]


def transformer(dtype: torch.dtype, heads: int = 4):
    torch.manual_seed(1)
    found = diffusers.FluxTransformer2DModel(
        in_channels=8,
        num_layers=2,
        num_single_layers=1,
        attention_head_dim=32,
        num_attention_heads=heads,
        joint_attention_dim=48,
        pooled_projection_dim=24,
        axes_dims_rope=(8, 12, 12),
    )
    return found.to(dtype).eval()


def image_of(model) -> torch.Tensor:
    torch.manual_seed(2)
    dtype = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    with torch.no_grad():
        return model(
            hidden_states=torch.randn(1, 6, 8).to(dtype),
            encoder_hidden_states=torch.randn(1, 5, 48).to(dtype),
            pooled_projections=torch.randn(1, 24).to(dtype),
            timestep=torch.tensor([0.5]).to(dtype),
            img_ids=torch.zeros(6, 3),
            txt_ids=torch.zeros(5, 3),
        ).sample


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shard", ["10GB", "200KB"])
def test_a_transformer_computes_with_the_bits_of_the_original(dtype, shard):
    model = transformer(dtype)
    model.save_pretrained("model", max_shard_size=shard)
    assert (len(list(Path("model").glob("*.safetensors"))) > 1) == (shard == "200KB")
    squeeze.pack("model", "packed")
    found = diffusers.FluxTransformer2DModel.from_pretrained("packed")
    assert found.dtype in (dtype, torch.uint8)
    assert torch.equal(image_of(found), image_of(model))
    memory = memory_of(found)
    assert memory["tensors"] < 0.95 * memory["decoded"]
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            assert torch.equal(found.get_submodule(name).weight, module.weight), name


def test_an_autoencoder_of_another_type_than_was_stored():
    torch.manual_seed(1)
    model = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4).eval()
    model.save_pretrained("model")
    squeeze.pack("model", "packed")
    image = torch.randn(1, 3, 8, 8)
    for dtype in DTYPES:
        found = diffusers.AutoencoderKL.from_pretrained("packed", torch_dtype=dtype)
        expected = diffusers.AutoencoderKL.from_pretrained("model", torch_dtype=dtype)
        with torch.no_grad():
            assert torch.equal(found(image.to(dtype)).sample, expected(image.to(dtype)).sample)


def test_a_packed_pipeline_computes_what_the_original_does():
    unet = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 8),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=4,
    )
    diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler(num_train_timesteps=4)).save_pretrained("model")
    squeeze.pack("model", "packed")
    one, two = map(diffusers.DiffusionPipeline.from_pretrained, ("model", "packed"))
    for name, values in one.unet.named_parameters():
        module, _, leaf = name.rpartition(".")
        assert torch.equal(getattr(two.unet.get_submodule(module), leaf), values), name
    images = [
        pipe(generator=torch.manual_seed(3), num_inference_steps=2, output_type="np").images for pipe in (one, two)
    ]
    assert abs(images[0] - images[1]).max() < 1e-5  # torch's convolutions round by where weights lie in memory
    config = json.loads(Path("packed/unet/config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "squeeze", "dtype": "float32"}
    squeeze.unpack("packed", "back")
    assert content("back") == content("model")


def test_what_is_for_storage_is_decoded_once():
    """Check also that a difference in a pipeline's folder finds its base next to the pipeline."""
    model = transformer(torch.float32, heads=1)
    model.save_pretrained("one/transformer")
    squeeze.pack("one", "archive", level="archive")
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(1 + 1e-6 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    model.save_pretrained("two/transformer")
    squeeze.pack("two", "difference", base="archive")
    for name, original in (("archive", "one"), ("difference", "two")):
        found, expected = (
            diffusers.FluxTransformer2DModel.from_pretrained(folder, subfolder="transformer").state_dict()
            for folder in (name, original)
        )
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], value) for key, value in expected.items())
    Path("away").mkdir()
    Path("archive").rename("away/base")
    with pytest.raises(SqueezeError, match=r"difference is stored as a difference, and its base is not in"):
        diffusers.FluxTransformer2DModel.from_pretrained("difference", subfolder="transformer")
    with load_options(base="away/base"):
        found = diffusers.FluxTransformer2DModel.from_pretrained("difference", subfolder="transformer").state_dict()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.parametrize("packed", [True, False])
def test_an_index_that_names_a_file_outside_is_refused(packed):
    transformer(torch.float32).save_pretrained("model", max_shard_size="200KB")
    if packed:
        squeeze.pack("model", "packed")
    folder = Path("packed" if packed else "model")
    (index,) = folder.glob("*.index.json")
    described = json.loads(index.read_text())
    described["weight_map"] |= {next(iter(described["weight_map"])): "a/../../outside.safetensors"}
    index.write_text(json.dumps(described))
    with pytest.raises(FormatError, match=r"the shard 'a/\.\./\.\./outside\.safetensors' is not in the folder"):
        diffusers.FluxTransformer2DModel.from_pretrained(folder)
