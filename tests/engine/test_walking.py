"""Blocks that run one by one, each on all sequences, compute what the model's own forward does, whatever they take."""

import pytest
import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.forward import forward
from squeeze.engine.gradients import head_of
from squeeze.engine.network import Network
from squeeze.errors import ModelError
from tests.makers import zoo

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


def test_what_is_no_decoder_is_refused_in_one_line(tmp_path):
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    encoder, vision = transformers.BertConfig(vocab_size=512, **small), transformers.ViTConfig(**small, image_size=32)
    both = transformers.BartConfig(vocab_size=512, d_model=64, encoder_layers=1, decoder_layers=1)
    kinds = {
        transformers.BertForMaskedLM(encoder): "a decoder-only language model, got BertForMaskedLM",
        transformers.ViTForImageClassification(vision): "a causal language model, got ViTForImageClassification",
        transformers.BartForConditionalGeneration(both): "a decoder-only language model, got BartForConditionalGen",
    }
    for number, (model, said) in enumerate(kinds.items()):
        folder = tmp_path / str(number)
        model.save_pretrained(folder)
        with pytest.raises(ModelError, match=f"{folder}: expected {said}") as raised:
            Network(Checkpoint.open(folder))
        assert raised.value.__cause__ is None and "\n" not in str(raised.value)
