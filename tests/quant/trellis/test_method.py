"""The method trellis: paths that are the nearest, and less error than grids have in more bytes."""

import itertools

import numpy as np
import pytest
import torch

from squeeze.engine.method import HessianError, layer_error
from squeeze.errors import SqueezeError
from squeeze.kernels.trellis import reference
from squeeze.quant.gptq import GPTQ
from squeeze.quant.trellis.method import Trellis
from squeeze.quant.trellis.viterbi import Viterbi


def draw(outputs=64, inputs=96):
    generator = torch.Generator().manual_seed(0)
    weight = 0.02 * torch.randn(outputs, inputs, generator=generator)
    x = torch.randn(500, inputs, generator=generator) * torch.linspace(0.1, 3, inputs)
    return weight, x.T @ x / len(x)


@pytest.mark.parametrize(("rate", "rows"), [(16, 7), (24, 5), (32, 4), (36, 4), (48, 3), (64, 2)])
def test_no_other_path_is_nearer(rate, rows):
    generator = np.random.default_rng(rate)
    targets, scales = generator.normal(size=rows).astype(np.float32), np.linspace(0.5, 1.5, rows, dtype=np.float32)
    codes, levels = Viterbi(rows, rate).encode(targets, scales)
    assert np.array_equal(reference.decode(torch.from_numpy(codes)[None], rows, rate)[:, 0].numpy(), levels)
    bits = rows * rate // 16
    numbers = np.arange(1 << bits, dtype="<u4").view(np.uint8).reshape(-1, 4)[:, : len(codes)].copy()
    every = reference.decode(torch.from_numpy(numbers), rows, rate).numpy()
    errors = (np.square(targets[:, None] - scales[:, None] * every)).sum(0)
    assert np.isclose(np.square(targets - scales * levels).sum(), errors.min(), rtol=1e-5)


def test_its_memory_serves_many_columns():
    coder, targets = Viterbi(20, 36), np.random.default_rng(0).normal(size=(3, 20)).astype(np.float32)
    ones = np.ones(20, np.float32)
    first = [coder.encode(column, ones)[0] for column in targets]
    again = [Viterbi(20, 36).encode(column, ones)[0] for column in targets]
    assert all(map(np.array_equal, first, again))


@pytest.mark.parametrize(("bits", "grid"), [(2, 2), (2.25, 2), (3, 3)])
def test_it_loses_less_than_a_grid_of_more_bytes(bits, grid):
    weight, hessian = draw()
    found = Trellis(rate=bits).compress(weight, hessian).tensor
    other = GPTQ(bits=grid, group_size=32, symmetric=False, refine=3).compress(weight, hessian).tensor
    assert found.stored_bits < other.stored_bits
    errors = [layer_error(weight, tensor.dequantize(), hessian) for tensor in (found, other)]
    assert errors[0] < 0.85 * errors[1]


def test_more_bits_lose_less():
    weight, hessian = draw()
    tensors = [Trellis(rate=bits).compress(weight, hessian).tensor for bits in (1, 1.5, 2.25, 3.0625, 4)]
    errors = [layer_error(weight, tensor.dequantize(), hessian) for tensor in tensors]
    assert all(more > 1.5 * less for more, less in itertools.pairwise(errors))


def test_it_is_pure_and_says_what_it_stores():
    weight, hessian = draw(33, 48)
    before = weight.clone(), hessian.clone()
    tensor = Trellis(rate=2.25).compress(weight, hessian).tensor
    assert torch.equal(weight, before[0])
    assert torch.equal(hessian, before[1])
    assert tensor.shape == (33, 48)
    assert tensor.stored_bits == 48 * 8 * -(-(33 * 36 // 16) // 8) + 33 * 16
    again = Trellis(rate=2.25).compress(weight, hessian).tensor
    assert torch.equal(again.codes, tensor.codes)
    assert torch.equal(again.dequantize(), tensor.dequantize())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scales_are_of_16_bits(dtype):
    tensor = Trellis().compress(draw(32, 32)[0].to(dtype)).tensor
    assert tensor.scales.dtype == (torch.float16 if dtype == torch.float32 else dtype)
    assert tensor.dequantize(torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("inputs", [1, 7, 96])
def test_codes_without_statistics_lose_little(inputs):
    method, weight = Trellis(rate=3), draw(64, inputs)[0]
    assert method.fallback() == method
    assert layer_error(weight, method.compress(weight).tensor.dequantize(), None) < 0.06


def test_dead_inputs_and_rows_of_zeros():
    weight, hessian = draw(32, 48)
    weight[3] = 0
    hessian[5], hessian[:, 5] = 0, 0
    result = Trellis(rate=3).compress(weight, hessian)
    assert result.notes == ("1 inputs are always 0",)
    assert torch.count_nonzero(result.tensor.dequantize()[3]) == 0
    assert layer_error(weight, result.tensor.dequantize(), hessian) < 0.05


def test_what_does_not_serve_is_refused():
    weight, hessian = draw(32, 48)
    with pytest.raises(HessianError, match="expected a Hessian of 48 x 48"):
        Trellis().compress(weight, hessian[:40, :40])
    with pytest.raises(SqueezeError, match=r"expected a rate that is a multiple of 1/16 bit, got 2\.3"):
        Trellis(rate=2.3)
    with pytest.raises(SqueezeError, match="rate must be from 1 to 4, got 5"):
        Trellis(rate=5)
