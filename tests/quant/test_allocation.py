"""The choice of bits against trying every mix, and the Fisher information against gradients one by one."""

import itertools
import random

import pytest
import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.network import Network, weight_of
from squeeze.engine.selection import plan
from squeeze.errors import SqueezeError
from squeeze.quant.allocation import allocate, choose, fisher
from squeeze.quant.formats import read
from squeeze.quant.formats.spec import BITS
from squeeze.quant.gptq import GPTQ
from tests.makers import mixtures, tiny_models
from tests.makers.hf_models import tiny_model
from tests.makers.whole import whole

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_all_mixes_is_chosen(seed):
    draw = random.Random(seed)
    names = [f"layer{i}" for i in range(5)]
    costs = {n: {b: draw.random() * 4.0**-b for b in BITS} for n in names}
    weights = {n: draw.choice([100, 300, 800]) for n in names}
    sizes = {n: {b: b * weights[n] for b in BITS} for n in names}
    budget = int(draw.uniform(2, 8) * sum(weights.values()))
    found = choose(costs, sizes, budget)
    assert sum(sizes[n][b] for n, b in found.items()) <= budget
    mixes = itertools.product(BITS, repeat=5)
    fits = [m for m in mixes if sum(sizes[n][b] for n, b in zip(names, m, strict=True)) <= 0.999 * budget]
    best = min((sum(costs[n][b] for n, b in zip(names, m, strict=True)) for m in fits), default=None)
    if best is not None:
        assert sum(costs[n][b] for n, b in found.items()) <= best + 1e-12


def test_a_budget_that_is_too_small():
    with pytest.raises(SqueezeError, match="at least 20 bytes, got a budget of 19"):
        choose({"a": {2: 1.0}}, {"a": {2: 20}}, 19)
    assert choose({"a": {2: 1.0}}, {"a": {2: 20}}, 20) == {"a": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    return tiny_models.write_folder(path, tiny_models.byte_level(), vocab_size=400)


def gradients_one_by_one(model, tokens, name):
    """The mean over tokens of the squared gradients of a linear module's weight, each of one token's row."""
    total = torch.zeros(())
    for ids in tokens:
        outs, inputs = [], []

        def keep(module, args, out, outs=outs, inputs=inputs):
            outs.append(out)
            inputs.append(args[0])

        hook = model.get_submodule(name).register_forward_hook(keep)
        embedded = model.get_input_embeddings()(ids[None]).detach().requires_grad_()
        logits = model(inputs_embeds=embedded).logits[0, :-1]
        hook.remove()
        if not outs:  # of an expert that this sequence does not reach
            continue
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum"), outs)
        rows = gradient.flatten(0, -2), inputs[0].flatten(0, -2)
        for g, x in zip(*rows, strict=True):
            total = total + (g[:, None] * x[None]).detach() ** 2
    return total / tokens.numel()


def gemma(folder):
    """With weights whose logits are capped after the head."""
    config = transformers.Gemma2Config(
        vocab_size=199, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, final_logit_softcapping=0.5,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


MODELS = {
    "llama": lambda folder: tiny_model(folder, torch.float32, tied=False),
    "tied": lambda folder: tiny_model(folder, torch.float32),
    "gpt2": lambda folder: tiny_model(folder, torch.float32, kind="gpt2"),
    "gemma2": gemma,
    "mixtral": lambda folder: mixtures.save("mixtral", folder, dtype=torch.float32),
}


def names_of(network):
    return [f"{block}.{leaf}" for block in network.blocks for leaf in plan(network, block)[0]]


@pytest.mark.parametrize("kind", MODELS)
def test_fisher_information_is_that_of_single_gradients(tmp_path, kind):
    network = Network(Checkpoint.open(MODELS[kind](tmp_path / "m")))
    model, names = whole(network), names_of(network)
    tokens = torch.randint(0, 199, (2, 9), generator=torch.Generator().manual_seed(1))
    found = {}
    for block, part in zip(reversed(network.blocks), fisher(network, tokens, names), strict=True):
        assert all(name.startswith(f"{block}.") for name in part)
        assert not any(weight_of(network.module(name)).is_meta for name in part)
        found |= part
    assert all(parameter.is_meta for parameter in network.model.parameters())  # nothing stays in memory
    assert found.keys() == set(names)
    for name in names[:: len(names) // 4]:
        wanted = gradients_one_by_one(model, tokens, name)
        torch.testing.assert_close(found[name], wanted.expand_as(found[name]), rtol=1e-3, atol=1e-7)


def test_experts_that_no_token_reaches_are_priced_like_others(tmp_path):
    network = Network(Checkpoint.open(mixtures.save("mixtral", tmp_path / "m")))
    names = names_of(network)
    tokens = torch.randint(0, 60, (1, 2), generator=torch.Generator().manual_seed(1))
    known = {name: bool(value.any()) for part in fisher(network, tokens, names) for name, value in part.items()}
    unseen = [name for name, seen in known.items() if ".experts." in name and not seen]
    assert unseen

    def rounded(weight, bits):
        return weight * (1 - 2.0**-bits), weight.numel() * bits // 8

    told = allocate(network, tokens, {name: name for name in names}, rounded, lambda weights: weights / 2)[1]
    assert all(told["costs"][name][2] > 0 for name in unseen)


@pytest.mark.parametrize("format", ["squeeze", "dense"])
def test_target_bits_are_met(tmp_path, folder, format):
    tokens = torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(1))
    options = {"calibration": tokens, "format": format, "out": tmp_path / "out"}
    report = squeeze.quantize(folder, GPTQ(group_size=16), target_bits=5.5, **options)
    assert len({layer.bits for layer in report.layers}) > 1
    assert 5.0 < report.bits_per_weight <= 5.5
    if format == "dense":
        return
    size = report.stored_bytes - 1000
    report = squeeze.quantize(folder, GPTQ(group_size=16), target_bytes=size, overwrite=True, **options)
    assert 0.9 * size < report.stored_bytes <= size
    with pytest.raises(SqueezeError, match="the matrices need at least"):
        squeeze.quantize(folder, GPTQ(group_size=16), target_bits=1.0, overwrite=True, **options)


@pytest.mark.parametrize(("format", "widths"), [("squeeze", BITS), ("gptq", (2, 3, 4, 8))])
def test_bits_are_chosen_among_those_of_the_format(tmp_path, folder, format, widths):
    tokens = torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(1))
    options = {"calibration": tokens, "format": format, "out": tmp_path / "out", "target_bits": 7.0}
    squeeze.quantize(folder, GPTQ(group_size=32), **options)
    found = {weight.bits for _, weight in read(tmp_path / "out").weights()}
    assert found <= set(widths) and bool(found & {5, 6, 7}) == (5 in widths), found
