"""GGUF files of folders with experts, or with FP8 in blocks, which file and network hold differently."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.errors import OptionError
from squeeze.lm.gguffile import GgufFile
from squeeze.quant.rtn import RTN
from squeeze.recipes.gguf.imatrix import imatrix
from tests.makers import gguf_models

pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 390, (4, 40), generator=torch.Generator().manual_seed(1))
MIXTURES = ("mixtral", pytest.param("qwen3_moe", marks=pytest.mark.slow))
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
SMALL |= {"moe_intermediate_size": 64, "head_dim": 32, "num_local_experts": 8, "num_experts": 8}


def write(folder, out, method="rtn", **options):
    return squeeze.quantize(folder, method, out=out, format="gguf", overwrite=True, calibration=TOKENS, **options)


def values(path):
    """Return every tensor by name."""
    file = GgufFile(path)
    return {name: np.array(file.float_rows(name, 0, shape[0])) for name, shape in file.shapes.items()}


def check_same(one, other):
    """Check that two files have the same contents in any order."""
    ours, theirs = values(one), values(other)
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not np.array_equal(ours[name], theirs[name])]
    assert GgufFile(one).fields == GgufFile(other).fields
    assert gguf_models.types_of(one) == gguf_models.types_of(other)


@pytest.mark.parametrize("kind", MIXTURES)
def test_experts_in_one_tensor_become_the_file_of_experts_one_by_one(tmp_path, kind):
    sizes = {**SMALL, "num_hidden_layers": 1, "num_local_experts": 4, "num_experts": 4}
    for way in ("fused", "split"):
        (tmp_path / way).mkdir()
        folder = gguf_models.save(kind, tmp_path / way / "model", fused=way == "fused", **sizes)
        names = load_file(folder / "model.safetensors")
        assert any(name.endswith("experts.gate_up_proj") for name in names) == (way == "fused")
        write(folder, tmp_path / way / "all.gguf", "gptq", type="q4_0")
        write(folder, tmp_path / way / "none.gguf", type="q4_0", ignore=(".experts.",))
        write(folder, tmp_path / way / "up.gguf", type="q4_0", ignore=("down_proj",))
        least = (tmp_path / way / "all.gguf").stat().st_size + 6_000
        report = write(folder, tmp_path / way / "auto.gguf", type="auto", target_bytes=least)
        assert len(report.settings["types"]) > 1
        imatrix(folder, tmp_path / way / "imatrix.gguf", calibration=TOKENS)
    for name in ("all", "none", "up", "auto", "imatrix"):
        check_same(*(tmp_path / way / f"{name}.gguf" for way in ("fused", "split")))
    shapes = GgufFile(tmp_path / "fused" / "all.gguf").shapes
    assert shapes["blk.0.ffn_up_exps.weight"] == (4, 64, 32) and shapes["blk.0.ffn_down_exps.weight"] == (4, 32, 64)
    for name in ("all", "none", "up"):
        gguf_models.check_network(tmp_path / "fused" / f"{name}.gguf", tmp_path / "split" / "model")


@pytest.mark.parametrize("kind", MIXTURES)
def test_every_expert_is_calibrated_by_its_own_tokens(tmp_path, kind):
    folder = gguf_models.save(kind, tmp_path / "model", fused=True, **SMALL)
    report = write(folder, tmp_path / "gptq.gguf", "gptq", type="q4_0")
    experts = [layer for layer in report.layers if ".experts." in layer.name]
    told = re.compile(
        r"only \d+ calibration tokens reached its (32|64) inputs: calibrated on all 160 tokens of the layer"
    )
    few = {layer.name for layer in experts if any(map(told.fullmatch, layer.notes))}
    assert {layer.name for layer in experts if layer.tokens == 160} == few and 0 < len(few) < len(experts) == 48
    assert all(line.partition(":")[0] in few for line in report.fallbacks)
    fields = GgufFile(tmp_path / "gptq.gguf").fields
    found = {key.partition(".")[2]: value for key, value in fields.items() if ".expert_" in key}
    assert found == {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 64}
    gguf_models.check_network(tmp_path / "gptq.gguf", folder)


def test_experts_of_a_layer_have_one_type(tmp_path):
    folder = gguf_models.save("mixtral", tmp_path / "model", **SMALL)
    first, second = (f"model.layers.0.block_sparse_moe.experts.{number}.w1" for number in (0, 1))
    message = f"{second}.weight would have another type than {first}.weight, but GGUF holds both in one tensor, "
    asked = ({"ignore": ("experts.0.",)}, {"methods": {first: RTN(grid="q8_0")}})
    for options in asked:
        with pytest.raises(OptionError, match=f"^{re.escape(message)}blk\\.0\\.ffn_gate_exps\\.weight$"):
            write(folder, tmp_path / "out.gguf", RTN(grid="q4_0"), **options)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    gates = {first.replace("0.w1", f"{number}.w1"): RTN(grid="q8_0") for number in range(8)}
    write(folder, tmp_path / "out.gguf", RTN(grid="q4_0"), methods=gates)
    types = gguf_models.types_of(tmp_path / "out.gguf")
    assert [types[f"blk.0.ffn_{part}_exps.weight"] for part in ("gate", "up")] == ["Q8_0", "Q4_0"]
    gguf_models.check_network(tmp_path / "out.gguf", folder)


@pytest.mark.parametrize("kind", ["llama", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
def test_fp8_in_blocks_is_exported_as_its_bf16_weights(tmp_path, kind):
    """Compare the file with that of the dequantised folder in bf16."""
    sizes = {**SMALL, "num_experts": 4, "dtype": torch.bfloat16}
    plain = gguf_models.save(kind, tmp_path / "plain" / "model", **sizes)
    stored, meant = {}, {}
    for name, weight in load_file(plain / "model.safetensors").items():
        if ".layers." not in name or weight.ndim < 2 or name.endswith("mlp.gate.weight"):
            stored[name] = meant[name] = weight
            continue
        scales = weight.float().abs().amax() / 448 * (1 + torch.rand([size // 16 for size in weight.shape]))
        wide = scales.repeat_interleave(16, 0).repeat_interleave(16, 1)
        stored[name], stored[f"{name}_scale_inv"] = (weight.float() / wide).to(torch.float8_e4m3fn), scales
        meant[name] = (stored[name].float() * wide).bfloat16()
    narrow = tmp_path / "fp8" / "model"
    narrow.mkdir(parents=True)
    for path in plain.iterdir():
        (narrow / path.name).write_bytes(path.read_bytes())
    described = {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
    config = json.loads((plain / "config.json").read_text())
    (narrow / "config.json").write_text(json.dumps({**config, "quantization_config": described}))
    save_file(stored, narrow / "model.safetensors", {"format": "pt"})
    save_file(meant, plain / "model.safetensors", {"format": "pt"})
    for folder in (narrow, plain):
        report = write(folder, folder.with_suffix(".gguf"), "gptq", type="q4_0", ignore=("o_proj",))
        assert report.parameters == sum(weight.numel() for weight in meant.values())
    assert narrow.with_suffix(".gguf").read_bytes() == plain.with_suffix(".gguf").read_bytes()
    assert gguf_models.types_of(narrow.with_suffix(".gguf"))["blk.0.attn_output.weight"] == "BF16"
    gguf_models.check_network(narrow.with_suffix(".gguf"), plain)
