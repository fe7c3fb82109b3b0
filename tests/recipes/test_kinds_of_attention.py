"""`squeeze generate` and `squeeze kv-eval` of models whose attention differs from Llama's.

They have sinks, softcaps, latent caches, no registry of attention functions, or no attention at all.
"""

import json

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from squeeze.checkpoint.pretrained import load_tokenizer
from tests.makers import kv_models, tiny_models, zoo
from tests.makers.command import call

PROMPT = "def main():\n    return"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(tiny_models.TRAINING_TEXT[:6000])
    return path


def mamba():
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=400, hidden_size=32, num_hidden_layers=2, state_size=8, eos_token_id=None)
    return MambaForCausalLM(config).eval()


@pytest.mark.parametrize("name", [*kv_models.ASKING, "mamba"])
def test_the_text_is_that_of_transformers(tmp_path, name):
    model = mamba() if name == "mamba" else kv_models.ASKING[name](vocab_size=400)
    folder = kv_models.write(model, tmp_path)
    tokenizer = load_tokenizer(folder)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    wrote = model.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=0, eos_token_id=None)
    expected = tokenizer.decode(wrote[0, ids.shape[1] :], skip_special_tokens=True)
    for kv in ((), ("--kv", "full"), ("--kv", "8")):
        if name == "mamba" and kv:
            continue
        found = call("generate", folder, PROMPT, "-n", 40, "-T", 1, "--json", *kv)
        assert found.exit_code == 0, found.output
        assert json.loads(found.output)["text"] == expected


@pytest.mark.parametrize("name", list(kv_models.ASKING))
def test_a_policy_costs_something_in_every_kind_of_attention(tmp_path, text, name):
    """Codes of 2 bits change predictions, so a KL of 0 would mean that the cache was never read."""
    folder = kv_models.write(kv_models.ASKING[name](vocab_size=400), tmp_path)
    policy = "kivi:2,group=8,window=16"
    found = call("kv-eval", folder, "--text", text, "--policy", policy, "--context", 200, "--windows", 1, "--json")
    assert found.exit_code == 0, found.output
    full, coded = map(json.loads, found.output.splitlines())
    assert full["distance"]["kl"] == 0 and coded["distance"]["kl"] > 1e-6
    assert full["way"] == coded["way"] == ("stepped" if name in ("deepseek_v3", "falcon", "diffllama") else "one pass")
    assert coded["cost"]["bytes"] < full["cost"]["bytes"]


@pytest.mark.parametrize("name, least", [("gpt_oss", 78), ("falcon", 98)])
def test_the_shortest_context_measures_something(tmp_path, text, name, least):
    """One token fewer is refused, since a KL of 0 in a row with a policy's bits would mislead."""
    folder = kv_models.write(kv_models.ASKING[name](vocab_size=400), tmp_path)
    words = "kv-eval", folder, "--text", text, "--policy", "kivi:2,window=8", "--windows", 1, "--no-cost", "--json"
    refused = call(*words, "--context", least - 1)
    assert refused.exit_code == 1 and f"use --context {least} or more" in refused.output.splitlines()[-1]
    found = call(*words, "--context", least)
    assert found.exit_code == 0, found.output
    assert json.loads(found.output.splitlines()[-1])["distance"]["kl"] > 1e-6


@pytest.mark.parametrize("policy", ["transform:4", "kivi:4+snapkv:64"])
def test_policies_that_look_at_queries_are_refused_if_none_are_shown(tmp_path, text, policy):
    folder = kv_models.write(kv_models.falcon(vocab_size=400), tmp_path)
    found = call("kv-eval", folder, "--text", text, "--policy", policy, "--calibration", text, "--context", 200)
    assert found.exit_code == 1
    assert "FalconForCausalLM changes what it reads from its cache" in found.output.splitlines()[-1]


def test_a_state_space_model_has_no_keys_to_code(tmp_path, text):
    folder = kv_models.write(mamba(), tmp_path)
    for words in (("kv-eval", folder, "--text", text, "--policy", "kivi:4"), ("generate", folder, "def", "--kv", 4)):
        found = call(*words)
        assert found.exit_code == 1
        assert "MambaForCausalLM keeps no keys and values in a cache" in found.output.splitlines()[-1]


def test_a_model_that_reads_one_token_at_a_time_after_others(tmp_path, text):
    folder = zoo.write(tmp_path / "model", "prophetnet")
    found = call("kv-eval", folder, "--text", text, "--policy", "kivi:4", "--context", 200)
    assert found.exit_code == 1
    assert "takes one token at a time once its cache holds any" in found.output.splitlines()[-1]


def test_a_model_that_takes_only_its_own_cache(tmp_path, text):
    folder = zoo.write(tmp_path / "model", "minimax")
    for words in (("kv-eval", folder, "--text", text, "--policy", "kivi:4"), ("generate", folder, "def", "--kv", 4)):
        found = call(*words)
        assert found.exit_code == 1
        said = found.output.splitlines()[-1]
        assert said == "Error: MiniMaxForCausalLM runs only with a cache class of its own, which no policy codes"
