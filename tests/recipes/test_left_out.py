"""Modules that a recipe leaves out, by itself or because of `--ignore`."""

import pytest
import torch

import squeeze
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.quant.rtn import RTN

pytest.importorskip("transformers", reason="transformers is not installed")


def test_what_is_not_compressed_is_untouched_and_reported(tmp_path, folders):
    report = squeeze.quantize(
        folders("qwen2_moe"), RTN(bits=4), out=tmp_path / "out", format="dense", ignore=["layers.1.self_attn.o_proj"]
    )
    assert report.left["model.layers.1.self_attn.o_proj"] == "as asked for"
    assert report.left["model.layers.0.mlp.shared_expert_gate"] == "decides which experts run"
    assert report.left["model.layers.0.mlp.shared_expert.up_proj"] == "sees every token"
    before, after = load_model(folders("qwen2_moe")).state_dict(), load_model(tmp_path / "out").state_dict()
    for name in before:
        left = "layers.1.self_attn.o_proj" in name or ".shared_expert." in name
        linear = "proj" in name and not left and not name.endswith("bias")
        assert torch.equal(before[name], after[name]) != linear, name


@pytest.mark.parametrize(
    "change, options",
    [
        (squeeze.quantize, {"method": "rtn"}),
        (squeeze.quantize, {"method": "rtn", "format": "gguf"}),
        (squeeze.prune, {"method": "magnitude", "pattern": "2:4"}),
        (squeeze.factorize, {"method": "svd", "rank": 8}),
    ],
)
def test_leaving_what_is_not_there_is_an_error(tmp_path, folders, change, options):
    with pytest.raises(SqueezeError, match=r"llama: no module has 'nosuch' in its name, as in `ignore`$"):
        change(folders("llama"), out=tmp_path / "out", ignore=("lm_head", "nosuch"), **options)
    assert not list(tmp_path.iterdir())


def test_what_is_left_may_have_the_name_that_the_checkpoint_has(tmp_path, folders):
    report = squeeze.quantize(
        folders("mixtral"), "rtn", out=tmp_path / "out", format="dense", ignore=("block_sparse_moe",)
    )
    left = [name for name, why in report.left.items() if why == "as asked for"]
    assert left and all(".block_sparse_moe." in name for name in left)
    assert not any("experts" in layer.name for layer in report.layers)
