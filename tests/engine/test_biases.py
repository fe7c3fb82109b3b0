"""A compressed matrix with a bias keeps the mean of the outputs, and is fitted to inputs without their mean."""

import pytest
import torch
from torch import nn

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.calibration import InputStatistics
from squeeze.engine.report import Report
from squeeze.engine.solving import Matrix, compress_matrices
from squeeze.quant.gptq import GPTQ
from squeeze.quant.rtn import RTN
from tests.makers import zoo_others

RANDOM = torch.Generator().manual_seed(5)
INPUTS, OUTPUTS = 32, 48


def drawn(tokens=600):
    """Return inputs with a mean that is larger than their spread, and the same inputs in the original."""
    mean = 3 * torch.randn(INPUTS, generator=RANDOM)
    x = mean + torch.randn(tokens, INPUTS, generator=RANDOM) @ torch.randn(INPUTS, INPUTS, generator=RANDOM) / 6
    return x, x + 0.3 * torch.randn(INPUTS, generator=RANDOM) + 0.1 * torch.randn(tokens, INPUTS, generator=RANDOM)


def statistics(x, original=None, bound=None):
    seen = InputStatistics(bound=bound)
    for part in range(0, len(x), 100):
        one = InputStatistics(bound=bound)
        one.add(x[part : part + 100], None if original is None else original[part : part + 100])
        seen.join(one)
    seen.finish()
    return seen


def block(*names, biased=True):
    layers = nn.ModuleDict({name: nn.Linear(INPUTS, OUTPUTS, bias=biased) for name in names})
    return layers.requires_grad_(False)


def matrix(leaf, method, bias=torch.float32):
    return Matrix(leaf, leaf, leaf, torch.float32, method, bias)


def test_moments_without_the_mean_are_those_of_centred_inputs():
    x, original = drawn()
    seen = statistics(x, original)
    torch.testing.assert_close(seen.mean, x.mean(0))
    torch.testing.assert_close(seen.shift, (original - x).mean(0), rtol=1e-4, atol=1e-5)
    seen.centre()
    rest = x - x.mean(0)
    torch.testing.assert_close(seen.hessian, rest.T @ rest / len(x), rtol=1e-3, atol=1e-3)
    moved = original - x
    torch.testing.assert_close(seen.cross, (moved - moved.mean(0)).T @ rest / len(x), rtol=1e-3, atol=1e-3)


def test_moments_of_bounded_tokens_are_centred_at_their_weighted_mean():
    x, _ = drawn()
    x[::100] *= 50
    seen = statistics(x, bound=2.0)
    lengths = x.square().sum(-1, keepdim=True)
    medians = lengths.reshape(-1, 100).median(1).values.repeat_interleave(100)[:, None]
    weights = (2 * medians / lengths).clamp(max=1)
    mean = (weights * x).sum(0) / weights.sum()
    torch.testing.assert_close(seen.mean, mean, rtol=1e-4, atol=1e-5)
    seen.centre()
    expected = (weights * (x - mean)).T @ (x - mean) / len(x)
    torch.testing.assert_close(seen.hessian, expected, rtol=1e-3, atol=2e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("paired", [False, True])
def test_the_mean_of_the_outputs_is_the_originals(paired):
    x, original = drawn()
    layers, seen = block("a", "b"), statistics(x, original if paired else None)
    group = [matrix(leaf, GPTQ(bits=3, group_size=16)) for leaf in ("a", "b")]
    done = compress_matrices(layers, group, seen, 0.3 if paired else 0.0)
    for leaf, one in done.items():
        expected = layers[leaf](original if paired else x).mean(0)
        found = (x @ one.result.tensor.dequantize(torch.float32).T + one.bias).mean(0)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_the_outputs_are_nearer_than_with_the_bias_that_stays():
    x, _ = drawn()
    layers = block("a")
    errors = []
    for bias in (torch.float32, None):
        done = compress_matrices(layers, [matrix("a", GPTQ(bits=3, group_size=16), bias)], statistics(x))["a"]
        own = layers["a"].bias if done.bias is None else done.bias
        found = x @ done.result.tensor.dequantize(torch.float32).T + own
        errors.append(float((found - layers["a"](x)).square().mean()))
    assert errors[0] < 0.8 * errors[1]


def test_a_matrix_without_a_bias_in_the_same_group_is_compressed_as_it_is_alone():
    x, original = drawn()
    layers = block("a", "b")
    method = GPTQ(bits=4, group_size=16)
    both = compress_matrices(layers, [matrix("a", method), matrix("b", method, None)], statistics(x, original), 0.3)
    alone = compress_matrices(layers, [matrix("b", method, None)], statistics(x, original), 0.3)
    assert both["b"].bias is None and both["a"].bias is not None
    assert torch.equal(both["b"].result.tensor.codes, alone["b"].result.tensor.codes)


def test_without_enough_tokens_the_bias_stays():
    x, _ = drawn(INPUTS - 1)
    done = compress_matrices(block("a"), [matrix("a", GPTQ(bits=4, group_size=16))], statistics(x))
    assert done["a"].bias is None and done["a"].layer.method == RTN.name


def test_an_input_that_never_changes_is_left_to_the_bias():
    x, _ = drawn()
    x[:, 3] = 7
    layers = block("a")
    done = compress_matrices(layers, [matrix("a", GPTQ(bits=3, group_size=16))], statistics(x))["a"]
    found = x @ done.result.tensor.dequantize(torch.float32).T + done.bias
    torch.testing.assert_close(found.mean(0), layers["a"](x).mean(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("format", ["compressed-tensors", "dense"])
def test_the_biases_of_an_encoder_are_written(tmp_path, format):
    model = zoo_others.write(tmp_path / "model", "BertModel")
    samples = zoo_others.samples("BertModel", 16)
    squeeze.quantize(model, out=tmp_path / "out", bits=3, group_size=16, calibration=samples, format=format)
    before, after = Checkpoint.open(model), Checkpoint.open(tmp_path / "out")
    names = [name for name in before.files if name.endswith(".bias") and name in after.files]
    changed = {name for name in names if not torch.equal(before.load([name])[name], after.load([name])[name])}
    assert changed and all("LayerNorm" not in name and "layer." in name for name in changed)
    assert len(changed) == len(Report.read(tmp_path / "out").layers)
