"""Quantised checkpoints in other people's readers: compressed-tensors under transformers computes our logits.

Asymmetric weights are loaded with dequantize=True: without it, compressed-tensors 0.20 refuses its own files, as it
expects zero points that are not packed (github.com/vllm-project/llm-compressor/issues/1618 was such a case).
"""

import warnings

import pytest
import torch

from squeeze.quant.formats import Grid, QuantizationSpec
from tests.quantised import dense_model, write
from tests.test_transformers_integration import IDS, tiny_model

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")

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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SPECS)
def test_compressed_tensors_computes_our_logits(tmp_path, name):
    spec = SPECS[name]
    source = tiny_model(tmp_path / "model", spec.dtype, tied=False)
    weights = write(source, tmp_path / "quantised", "compressed-tensors", spec)
    options = {} if spec.symmetric else {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}
    load = transformers.AutoModelForCausalLM.from_pretrained
    theirs = load(tmp_path / "quantised", dtype=spec.dtype, **options).eval()
    assert hasattr(theirs.model.layers[2].mlp.gate_proj, "weight_packed") == spec.symmetric
    ours = dense_model(source, weights, spec.dtype)
    with torch.no_grad():
        expected, found = ours(IDS).logits.float(), theirs(IDS).logits.float()
    assert (found - expected).abs().max() <= 1e-3 * expected.abs().max()
