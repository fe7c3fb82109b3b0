"""The choice of bits against trying every mix, and the Fisher information against gradients one by one."""

import itertools
import random

import pytest
import torch

import squeeze
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.quant.allocation import choose, fisher
from squeeze.quant.gptq import GPTQ
from tests.makers import tiny_models

pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_all_mixes_is_chosen(seed):
    draw = random.Random(seed)
    names = [f"layer{i}" for i in range(5)]
    costs = {n: {b: draw.random() * 4.0**-b for b in (2, 3, 4, 8)} for n in names}
    weights = {n: draw.choice([100, 300, 800]) for n in names}
    sizes = {n: {b: b * weights[n] for b in (2, 3, 4, 8)} for n in names}
    budget = int(draw.uniform(2, 8) * sum(weights.values()))
    found = choose(costs, sizes, budget)
    assert sum(sizes[n][b] for n, b in found.items()) <= budget
    mixes = itertools.product((2, 3, 4, 8), repeat=5)
    fits = [m for m in mixes if sum(sizes[n][b] for n, b in zip(names, m, strict=True)) <= 0.999 * budget]
    best = min((sum(costs[n][b] for n, b in zip(names, m, strict=True)) for m in fits), default=None)
    if best is not None:
        assert sum(costs[n][b] for n, b in found.items()) <= best + 1e-12


def test_a_budget_that_is_too_small():
    with pytest.raises(SqueezeError, match="at least 20 bytes, and 19 are left"):
        choose({"a": {2: 1.0}}, {"a": {2: 20}}, 19)
    assert choose({"a": {2: 1.0}}, {"a": {2: 20}}, 20) == {"a": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    return tiny_models.write_folder(path, tiny_models.byte_level(), vocab_size=400)


def test_fisher_information_is_that_of_single_gradients(folder):
    model = load_model(folder)
    tokens = torch.randint(0, 300, (2, 9), generator=torch.Generator().manual_seed(1))
    name = "model.layers.0.mlp.up_proj"
    found = fisher(model, tokens, [name])[name]
    wanted = torch.zeros_like(found)
    for ids in tokens:
        outs, inputs = [], []

        def keep(module, args, out, outs=outs, inputs=inputs):
            outs.append(out)
            inputs.append(args[0])

        hook = model.get_submodule(name).register_forward_hook(keep)
        embedded = model.model.embed_tokens(ids[None]).requires_grad_()
        logits = model(inputs_embeds=embedded).logits[0, :-1]
        hook.remove()
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum"), outs)
        for g, x in zip(gradient[0], inputs[0][0], strict=True):
            wanted += (g[:, None] * x[None]).detach() ** 2
    torch.testing.assert_close(found, wanted / tokens.numel(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("format", ["squeeze", "dense"])
def test_target_bits_are_met(tmp_path, folder, format):
    tokens = torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(1))
    options = {"calibration": tokens, "format": format, "out": tmp_path / "out"}
    report = squeeze.quantize(folder, GPTQ(group_size=16), target_bits=5.5, **options)
    assert len({layer.bits for layer in report.layers}) > 1
    assert 4.5 < report.bits_per_weight <= 5.5
    if format == "dense":
        return
    size = report.stored_bytes - 1000
    report = squeeze.quantize(folder, GPTQ(group_size=16), target_bytes=size, overwrite=True, **options)
    assert 0.9 * size < report.stored_bytes <= size
    with pytest.raises(SqueezeError, match="the matrices take at least"):
        squeeze.quantize(folder, GPTQ(group_size=16), target_bits=1.0, overwrite=True, **options)
