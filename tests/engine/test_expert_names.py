"""Names of experts in checkpoints, and in the models that transformers makes of them."""

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from squeeze.engine.expert_names import is_expert, is_merged, published


def test_a_tensor_of_an_expert_is_known_by_its_name():
    assert is_expert("model.layers.0.mlp.experts.3.up_proj") and is_expert("experts.0.down_proj")
    assert not is_expert("model.layers.0.mlp.shared_experts.up_proj")


def test_names_that_checkpoints_give_to_merged_experts():
    prefix = "model.layers.0.mlp.experts"
    assert published("qwen3_moe", prefix) == {
        f"{leaf}.weight": f"{prefix}.*.{leaf}.weight" for leaf in ("gate_proj", "up_proj", "down_proj")
    }
    assert published("mixtral", prefix)["gate_proj.weight"] == "model.layers.0.block_sparse_moe.experts.*.w1.weight"
    assert published("llama", prefix) == published(None, prefix) == {}


def test_a_matrix_that_transformers_merges_is_told():
    assert is_merged("mixtral", "model.layers.0.block_sparse_moe.experts.0.w1")
    assert not is_merged("llama", "model.layers.0.mlp.up_proj")
