"""Fused kernels compared with their references: the same bits for any shape and numbers that a network may have."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from squeeze.lm.fused import (
    attention,
    kernels,
    reference,
)
from squeeze.lm.fused.attention import LayerCache, Norms, Shape, kernel as attending, reference as attention_reference
from squeeze.lm.fused.reference import Product
from squeeze.lm.llama import cos_sin_table
from squeeze.numerics.rotation import block_of, factor
from tests.makers.gpu import DEVICES

EPSILON = float(np.float32(1e-5))  # as models have it
ROOMS = [torch.int8, torch.float32]  # of activations: as products of bytes, and of floats, want them


def product(rows: int, columns: int, device: str, seed: int, biased: bool = False) -> Product:
    """Make a product with sums and scales of all magnitudes, and padding of rows and columns."""
    random = np.random.default_rng(seed)
    sums = random.integers(-(2**31), 2**31, (rows + 3, columns + 5)) >> random.integers(0, 31, (rows + 3, 1))
    of_rows, of_columns, bias = (
        (random.normal(size=size) * 10.0 ** random.integers(-9, -3, size)).astype(np.float32)
        for size in (rows, columns, columns)
    )
    parts = (torch.tensor(part, device=device) for part in (sums.astype(np.int32), np.abs(of_rows), np.abs(of_columns)))
    return Product(*parts, torch.tensor(bias, device=device) if biased else None)


def room(rows: int, columns: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((rows + 2, columns + 7), 77, dtype=dtype, device=device)


def same(ours, theirs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def numbers(rows: int, columns: int, device: str) -> torch.Tensor:
    """Return zeros, subnormal numbers, halves, an outlier, and numbers of all magnitudes in the first rows."""
    random = np.random.default_rng(1)
    x = random.normal(size=(rows, columns)).astype(np.float32)
    x[0] = 0
    x[1 % rows] = 2.0**-140
    x[2 % rows] = np.arange(columns) / 2
    x[3 % rows, 0] = 3e4
    x[4 % rows] *= np.float32(10.0) ** random.integers(-20, 15, columns)
    return torch.tensor(x, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ROOMS)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (7, 96), (5, 130), (6, 576)])
def test_norms_give_the_bits_of_the_reference(device, dtype, rows, width):
    x = numbers(rows, width, device)
    for given in (None, product(rows, width, device, 1), product(rows, width, device, 2, biased=True)):
        outs = [room(rows, width, device, dtype) for _ in range(2)]
        found = kernels.normalise(x, given, EPSILON, outs[0])
        assert same((*found, outs[0]), (*reference.normalise(x, given, EPSILON, outs[1]), outs[1]))
    outs = [room(rows, width, device, dtype) for _ in range(2)]
    assert same((kernels.quantise(x, outs[0]), outs[0]), (reference.quantise(x, outs[1]), outs[1]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ROOMS)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 12), (3, 96), (2, 1536), (2, 5632), (1, 9728)])
def test_gates_give_the_bits_of_the_reference(device, dtype, rows, width):
    given, block = product(rows, 2 * width, device, width), block_of(width)
    outs = [room(rows, width, device, dtype) for _ in range(2)]
    found = kernels.gate(given, block, float(factor(block)), outs[0])
    assert torch.equal(found, reference.gate(given, block, float(factor(block)), outs[1]))
    assert torch.equal(*outs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "leaves"), [(1, 1), (4, 300), (2, 9001)])
def test_frequencies_give_the_bits_of_the_reference(device, biased, rows, leaves):
    given = product(rows, leaves, device, leaves, biased)
    assert torch.equal(kernels.cumulate(given), reference.cumulate(given))


@pytest.mark.parametrize("device", DEVICES)
def test_rotary_angles_give_the_bits_of_the_reference(device):
    table = torch.tensor(cos_sin_table(tuple(0.7**i for i in range(67))), device=device)
    positions = torch.tensor([[0, 1, 2, 3], [100, 4095, 1 << 20, (1 << 24) - 1]], device=device)
    shape = Shape(1, 1, 134, 4)
    for by in (1.0, 1.138):
        wanted = attention_reference.rotary(table, by, positions, shape, (1 << 24) - 1)
        assert same(attending.rotary(table, by, positions, shape, 0), wanted)


def kept(shape: Shape, lanes: int, ring: int, device: str) -> LayerCache:
    """Make a cache of some lanes as a view into a larger one."""
    random = np.random.default_rng(4)
    sizes = (2, lanes + 2, shape.groups, attention.BLOCK * (1 + ring))
    integers = random.integers(-127, 128, (*sizes, shape.size)).astype(np.int8)
    scales = (random.random(sizes) * 10.0 ** random.integers(-8, 0, sizes)).astype(np.float32)
    return LayerCache(*(torch.tensor(part, device=device)[:, 1:-1] for part in (integers, scales)))


CASES = [  # shape, lanes, rows of each, ring; first positions
    (Shape(3, 1, 8, 1), 1, 1, 1, [0]),
    (Shape(2, 2, 16, 2), 2, 1, 3, [16, 1000]),
    (Shape(3, 1, 64, 5), 1, 5, 6, [13]),
    (Shape(1, 1, 80, 1), 1, 9, 3, [333]),
    (Shape(2, 1, 128, 5), 1, 2, 6, [(1 << 24) - 4]),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("shape", "lanes", "n", "ring", "first"), CASES)
def test_attention_gives_the_bits_of_the_reference(device, shape, lanes, n, ring, first):
    """Heads are with and without norms and biases."""
    positions = torch.tensor([[start + i for i in range(n)] for start in first], device=device)
    table = torch.tensor(cos_sin_table(tuple(0.5**i for i in range(shape.size // 2))), device=device)
    rotary = attention_reference.rotary(table, 1.0, positions, shape, int(positions.max()))
    random = np.random.default_rng(6)
    weights = [torch.tensor(random.normal(size=shape.size).astype(np.float32), device=device) for _ in range(2)]
    outputs = (shape.heads + 2 * shape.groups) * shape.size
    for norms, biased in ((Norms(None, None, EPSILON), False), (Norms(*weights, EPSILON), True))[n < 9 :]:
        given = product(lanes * n, outputs, device, 5, biased)
        ours, theirs = (kept(shape, lanes, ring, device) for _ in range(2))
        found = attending.heads(given, shape, norms, rotary, positions, ours)
        wanted = attention_reference.heads(given, shape, norms, rotary, positions, theirs)
        assert same(found, wanted) and same(ours, theirs)
        attended = attending.attend(found, shape, positions, ours)
        assert torch.equal(attended, attention_reference.attend(wanted, shape, positions, theirs))
        assert attended.abs().max() > 0


@pytest.mark.parametrize("device", DEVICES)
def test_no_rows_launch_nothing(device):
    shape = Shape(2, 1, 8, 1)
    positions = torch.zeros((0, 1), dtype=torch.int64, device=device)
    table = torch.tensor(cos_sin_table((1.0,) * 4), device=device)
    rotary, layer = attending.rotary(table, 1.0, positions, shape, 0), kept(shape, 0, 1, device)
    queries = attending.heads(product(0, 32, device, 1), shape, Norms(None, None, 1.0), rotary, positions, layer)
    assert attending.attend(queries, shape, positions, layer).shape == (0, 16)
    assert kernels.cumulate(product(0, 9, device, 1)).shape == (0, 9)
    assert kernels.gate(product(0, 8, device, 1), 4, 1.0, room(0, 4, device, torch.int8)).shape == (0,)
    out = room(0, 9, device, torch.int8)
    assert kernels.normalise(torch.zeros((0, 9), device=device), None, 1.0, out)[0].shape == (0, 9)
