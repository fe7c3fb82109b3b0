"""Quantised checkpoints in other people's readers, compressed-tensors under transformers and GPTQModel: our logits.

Asymmetric weights are loaded with dequantize=True: without it, compressed-tensors 0.20 refuses its own files, as it
expects zero points that are not packed (github.com/vllm-project/llm-compressor/issues/1618 was such a case).
"""

from dataclasses import replace

import pytest
import torch

from squeeze.quant.formats import Grid, QuantizationSpec
from tests.makers.hf_models import IDS, tiny_model
from tests.makers.quantised import dense_model, write
from tests.makers.tiny_models import byte_level

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SPECS = {
    "4 bits": QuantizationSpec(4, 32, ignored=("lm_head",)),
    "4 bits, asymmetric": QuantizationSpec(4, 32, False, ignored=("lm_head",)),
    "3 bits, asymmetric, per channel": QuantizationSpec(3, -1, False, ignored=("lm_head",)),
    "2 bits, float16": QuantizationSpec(2, 32, False, ignored=("lm_head",), dtype=torch.float16),
    "8 bits, head too": QuantizationSpec(8, 32),
    "mixed": QuantizationSpec(
        4,
        32,
        modules={
            "model.layers.0.self_attn.q_proj": Grid(8, -1),
            "model.layers.1.mlp.down_proj": Grid(3, 32),
            "model.layers.2.mlp.up_proj": Grid(2, 16),
        },
        ignored=("lm_head", "model.layers.0.mlp.up_proj"),
    ),
}
WIDE = {
    "5 bits": QuantizationSpec(5, 32, ignored=("lm_head",)),
    "6 bits, asymmetric, per channel": QuantizationSpec(6, -1, False, ignored=("lm_head",)),
    "7 bits and others": QuantizationSpec(7, 32, modules={"model.layers.1.mlp.up_proj": Grid(6, -1)}),
}


def check(theirs, source, weights, dtype, tolerance=1e-3):
    """Their model's logits are those of the dense model with the weights that were stored."""
    with torch.no_grad():
        expected = dense_model(source, weights, dtype)(IDS).logits.float()
        found = theirs(IDS).logits.float()
    assert (found - expected).norm() <= tolerance * expected.norm()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SPECS | WIDE)
def test_compressed_tensors_computes_our_logits(tmp_path, name):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    spec = (SPECS | WIDE)[name]
    source = tiny_model(tmp_path / "model", spec.dtype, tied=False)
    weights = write(source, tmp_path / "quantised", "compressed-tensors", spec)
    options = {} if spec.symmetric else {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}
    load = transformers.AutoModelForCausalLM.from_pretrained
    theirs = load(tmp_path / "quantised", dtype=spec.dtype, **options).eval()
    assert hasattr(theirs.model.layers[2].mlp.gate_proj, "weight_packed") == spec.symmetric
    check(theirs, source, weights, spec.dtype)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("name", SPECS)
def test_gptqmodel_computes_our_logits(tmp_path, name, version):
    """In bfloat16 GPTQModel rounds weights twice, first to float16, so there its logits are a little off."""
    gptqmodel = pytest.importorskip("gptqmodel", reason="gptqmodel is not installed")
    dtype, tolerance = (torch.bfloat16, 4e-3) if name == "mixed" else (torch.float16, 1e-3)
    spec = replace(SPECS[name], dtype=dtype, symmetric=SPECS[name].symmetric or version == "gptq")
    spec = replace(spec, ignored=spec.ignored or ("lm_head",))  # 997 channels do not fill words
    source = tiny_model(tmp_path / "model", dtype, tied=False)
    weights = write(source, tmp_path / "quantised", version, spec)
    byte_level().save(str(tmp_path / "quantised" / "tokenizer.json"))
    backend = gptqmodel.BACKEND.GPTQ_TORCH
    theirs = gptqmodel.GPTQModel.load(str(tmp_path / "quantised"), device="cpu", backend=backend, dtype=dtype).model
    assert hasattr(theirs.model.layers[2].mlp.gate_proj, "qweight")
    check(theirs, source, weights, dtype, tolerance)
