"""Blocks that run one by one, each on all sequences, compute what the model's own forward does, whatever they take."""

import pytest
import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.forward import forward
from squeeze.engine.gradients import head_of
from squeeze.engine.network import Network
from squeeze.errors import ModelError
from tests.makers import zoo, zoo_others

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(5, 390, (2, 12), generator=torch.Generator().manual_seed(1))
KINDS = {
    "bloom": "a position bias",
    "gptj": "blocks that return tuples",
    "bert": "an encoder below the embeddings",
    "gemma3n_text": "four hidden states, embeddings of each layer, shared keys and values",
    "zamba2": "the first hidden states in every block",
    "glm_moe_dsa": "tokens that an earlier block has chosen",
    "xlnet": "hidden states with the sequence in front",
    "llama4_text": "rotary angles as complex numbers",
}


@pytest.mark.parametrize("name", KINDS)
def test_a_walk_gives_what_the_model_gives(name, tmp_path):
    folder = zoo.write(tmp_path / "model", name)
    network, outputs, wanted = Network(Checkpoint.open(folder)), [], []
    for _, _, run in forward(network, TOKENS, outputs.append):
        run()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def keep(module, args, out):
        wanted.append((out[0] if isinstance(out, tuple) else out).clone())

    model.get_submodule(network.blocks[-1]).register_forward_hook(keep)
    with torch.no_grad():
        for ids in TOKENS:
            model(input_ids=ids[None], use_cache=False)
    for found, theirs in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(found, theirs.reshape(found.shape), atol=1e-5, rtol=1e-5)
    assert not any(not value.is_meta for value in network.model.parameters())


@pytest.mark.parametrize("name", ("falcon", "gptj", "mamba", "gemma3n_text"))
def test_what_follows_the_blocks_gives_the_logits_of_the_model(name, tmp_path):
    folder = zoo.write(tmp_path / "model", name)
    network, outputs = Network(Checkpoint.open(folder)), []
    for _, _, run in forward(network, TOKENS, outputs.append):
        run()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad(), head_of(network, TOKENS) as head:
        for ids, hidden in zip(TOKENS, outputs, strict=True):
            wanted = model(input_ids=ids[None], use_cache=False).logits[0]
            torch.testing.assert_close(head(hidden), wanted, atol=1e-4, rtol=1e-4)


def test_a_model_that_keeps_what_it_computes_elsewhere_is_refused(tmp_path):
    network = Network(Checkpoint.open(zoo.write(tmp_path / "model", "xlm")))
    with pytest.raises(ModelError, match="cannot be run block by block: its blocks are given a EncoderDecoderCache"):
        network.plan(TOKENS)


def test_a_model_that_computes_between_its_blocks_is_refused(tmp_path, monkeypatch):
    network = Network(Checkpoint.open(zoo.write(tmp_path / "model", "llama")))
    block = type(network.module(network.blocks[0]))
    called = block.__call__
    monkeypatch.setattr(
        block, "__call__", lambda self, hidden, *args, **kwargs: called(self, 2 * hidden, *args, **kwargs)
    )
    with pytest.raises(ModelError, match="cannot be run block by block: it computes between its blocks"):
        network.plan(TOKENS)


STACKS = {
    "BertModel": ["encoder.layer"],
    "WhisperForConditionalGeneration": ["model.encoder.layers", "model.decoder.layers"],
    "LlavaForConditionalGeneration": ["model.vision_tower.encoder.layers", "model.language_model.layers"],
    "CLIPModel": ["vision_model.encoder.layers", "text_model.encoder.layers"],
    "SwinModel": ["encoder.layers"],
}


@pytest.mark.parametrize("name", STACKS)
def test_lists_of_blocks_run_one_after_the_other_as_in_the_forward(name, tmp_path):
    folder = zoo_others.write(tmp_path / "model", name)
    network, inputs, outputs, wanted = Network(Checkpoint.open(folder)), zoo_others.samples(name, 2), [], []
    for _, _, run in forward(network, inputs, outputs.append):
        run()
    assert [stack[0].rpartition(".")[0] for stack in network.stacks] == STACKS[name]
    model = getattr(transformers, name).from_pretrained(folder).eval()

    def keep(module, args, out):
        wanted.append((out[0] if isinstance(out, tuple) else out).clone())

    model.get_submodule(network.blocks[-1]).register_forward_hook(keep)
    with torch.no_grad():
        for sample in inputs:
            model(**sample)
    for found, theirs in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(found, theirs.reshape(found.shape), atol=1e-5, rtol=1e-5)
    assert not any(not value.is_meta for value in network.model.parameters())


def test_a_list_that_runs_several_times_is_one_block(tmp_path):
    network = Network(Checkpoint.open(zoo_others.write(tmp_path / "model", "AlbertModel")))
    network.settle(zoo_others.samples("AlbertModel", 2))
    assert network.stacks == [["encoder"]]
    assert network.remarks == ["encoder runs as one block: it does not run its blocks once each, in their order"]


def test_a_stack_that_the_inputs_do_not_reach_is_left(tmp_path):
    network = Network(Checkpoint.open(zoo_others.write(tmp_path / "model", "LlavaForConditionalGeneration")))
    network.settle(TOKENS)
    assert network.blocks == ["model.language_model.layers.0", "model.language_model.layers.1"]
    assert network.unreached == ["model.vision_tower.encoder.layers.0", "model.vision_tower.encoder.layers.1"]
