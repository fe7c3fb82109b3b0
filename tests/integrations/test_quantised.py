"""Packed folders of models that are quantised in forms which transformers itself reads: they load as they are."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.integrations.load_model import load_model
from tests.makers.mixtures import IDS, save

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("squeeze.integrations.transformers")


def rewrite(folder, change, described):
    """Rewrite every tensor by `change`, and add a quantization_config."""
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        tensors |= change(name, tensor)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = described
    (folder / "config.json").write_text(json.dumps(config))


def as_fp8(name, tensor):
    """Return float8_e4m3fn with a scale for each block of 128 x 128, as DeepSeek-V3 is published."""
    if tensor.ndim != 2 or "embed" in name or "lm_head" in name or "gate.weight" in name:
        return {name: tensor}
    blocks = [-(-size // 128) for size in tensor.shape]
    scales = torch.rand(blocks, generator=torch.Generator().manual_seed(len(name))) + 0.5
    return {name: (tensor * 8).to(torch.float8_e4m3fn), f"{name}_scale_inv": scales}


def as_mxfp4(name, tensor):
    """Return blocks of 32 codes of 4 bits, two a byte, with a scale of 8 bits, as gpt-oss is published."""
    if ".experts." not in name or "bias" in name:
        return {name: tensor}
    experts, inputs, outputs = tensor.shape
    random = torch.Generator().manual_seed(len(name))
    codes = torch.randint(0, 8, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=random)
    scales = torch.randint(118, 122, (experts, outputs, inputs // 32), dtype=torch.uint8, generator=random)
    return {f"{name}_blocks": codes * 17, f"{name}_scales": scales}


FORMS = {
    "fp8": (as_fp8, {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}),
    "mxfp4": (as_mxfp4, {"quant_method": "mxfp4"}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind, form", [("deepseek_v3", "fp8"), ("qwen3_moe", "fp8"), ("gpt_oss", "mxfp4")])
def test_what_transformers_dequantises(tmp_path, kind, form):
    change, described = FORMS[form]
    rewrite(save(kind, tmp_path / "model"), change, described)
    totals = squeeze.pack(tmp_path / "model", tmp_path / "packed")
    assert totals.coded < totals.raw
    squeeze.verify(tmp_path / "packed")
    squeeze.unpack(tmp_path / "packed", tmp_path / "back")
    for path in (tmp_path / "model").iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()
    weights = squeeze.load(tmp_path / "packed")
    for name, tensor in load_file(tmp_path / "model" / "model.safetensors").items():
        assert weights[name].dtype == tensor.dtype
        assert torch.equal(weights[name].view(torch.uint8), tensor.view(torch.uint8))
    found = json.loads((tmp_path / "packed" / "config.json").read_text())["quantization_config"]
    assert found == {"quant_method": f"squeeze+{form}", "dtype": "bfloat16", "quantization": described}
    with torch.no_grad():
        auto = transformers.AutoModelForCausalLM
        logits = [auto.from_pretrained(tmp_path / name)(IDS).logits for name in ("model", "packed")]
        ours = [load_model(tmp_path / name)(IDS).logits for name in ("model", "packed")]
    assert torch.equal(*logits) and torch.equal(*ours)
    assert logits[0].isfinite().all() and logits[0].std() > 0
