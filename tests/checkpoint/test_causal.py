"""Models that are no causal language models, whose logits are not numbers, or that have too few positions: one line."""

import json

import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
)

from squeeze.checkpoint.causal import check_causal, check_finite, position_limit
from squeeze.errors import ModelError
from tests.makers import kv_models, tiny_models
from tests.makers.command import call
from tests.makers.kv_models import tokens


def neox():
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=61, **shape)).eval()


DECODERS = kv_models.MODELS | kv_models.ASKING | {"neox": neox}


def bert(**options):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertLMHeadModel(BertConfig(vocab_size=400, **shape, **options)).eval()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(tiny_models.TRAINING_TEXT[:6000])
    return path


def commands(folder, text):
    yield "eval", folder, "--text", text, "--window", 64, "--windows", 1
    yield "generate", folder, "def", "-n", 3
    yield "kv-eval", folder, "--text", text, "--policy", "kivi:4", "--context", 64
    prompts = folder / "prompts.txt"
    prompts.write_text("def\n")
    yield "compare", folder, folder, "--prompts", prompts


def test_a_model_that_is_no_decoder_is_refused(tmp_path, text):
    folder = kv_models.write(bert(), tmp_path)
    for words in commands(folder, text):
        found = call(*words)
        assert found.exit_code == 1, words
        said = found.output.splitlines()[-1]
        expected = "expected a causal language model, got BertLMHeadModel, whose outputs are compared"
        assert said == f"Error: {folder}: {expected} by `squeeze eval --inputs`"


def test_a_model_whose_tokens_see_later_ones_is_refused():
    class Seeing(LlamaForCausalLM):
        def forward(self, *inputs, **options):
            found = super().forward(*inputs, **options)
            found.logits = found.logits + 0.01 * found.logits.mean(1, keepdim=True)
            return found

    with pytest.raises(ModelError, match="got Seeing, whose tokens see later ones"):
        check_causal(Seeing(kv_models.llama().config).eval())
    check_causal(bert(is_decoder=True))


@pytest.mark.parametrize("name", list(DECODERS))
def test_decoders_are_causal_language_models(name):
    """GPT-NeoX says of itself that it is no decoder."""
    check_causal(DECODERS[name]())


def test_weights_that_are_not_numbers_are_named(tmp_path, text):
    model = kv_models.llama(vocab_size=400)
    model.model.layers[1].mlp.up_proj.weight.data[3, 4] = torch.nan
    folder = kv_models.write(model, tmp_path)
    for words in commands(folder, text):
        found = call(*words)
        assert found.exit_code == 1
        said = found.output.splitlines()[-1]
        assert "logits that are not numbers: the tensor model.layers.1.mlp.up_proj.weight holds NaN" in said


def test_a_layer_that_overflows_is_named():
    model, ids = kv_models.llama(), tokens()
    model.model.layers[1].mlp.down_proj.weight.data.fill_(1e38)
    model.model.layers[1].mlp.up_proj.weight.data.mul_(1e5)
    with pytest.raises(ModelError, match=r"first in the output of model\.layers\.1\.mlp\.down_proj; no weight"):
        check_finite(model, torch.tensor([torch.nan]), ids)


def test_a_token_that_is_ruled_out_is_no_fault():
    check_finite(kv_models.llama(), torch.tensor([0.5, -torch.inf]), tokens())


def absolute(kind):
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48, "vocab_size": 400, "eos_token_id": None}
    torch.manual_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(**shape)).eval()
    return GPTJForCausalLM(GPTJConfig(**shape, rotary_dim=8)).eval()


def test_only_tables_of_positions_limit_a_text():
    assert position_limit(kv_models.gpt2()) == 512
    assert [position_limit(kv_models.MODELS[name]()) for name in ("llama", "mistral", "qwen2")] == [None] * 3
    assert position_limit(absolute("gptj")) == 48


@pytest.mark.parametrize("kind", ["gpt2", "gptj"])
def test_windows_end_where_positions_do(tmp_path, text, kind):
    folder = kv_models.write(absolute(kind), tmp_path)
    found = call("eval", folder, "--text", text, "--windows", 2)
    assert found.exit_code == 0 and "windows of 48 tokens: the model has no more positions" in found.output
    assert json.loads(call("eval", folder, "--text", text, "--windows", 2, "--json", "-q").output)["window"] == 48
    asked = call("eval", folder, "--text", text, "--window", 64)
    assert asked.exit_code == 1
    assert asked.output.splitlines()[-1].endswith("has positions for 48 tokens, got windows of 64: use --window 48")
    found = call("kv-eval", folder, "--text", text, "--policy", "kivi:8,group=8,window=8", "--windows", 1, "--json")
    assert [json.loads(line)["context"] for line in found.output.splitlines()] == [48, 48], found.output
    asked = call("kv-eval", folder, "--text", text, "--policy", "kivi:4", "--context", 64)
    assert asked.exit_code == 1 and "got windows of 64: use --context 48" in asked.output.splitlines()[-1]
