"""Coded tensors that torch's threads decode and multiply: exact where they decode, in a fixed order where they sum."""

import numpy as np
import pytest
import torch

from squeeze.errors import DamagedError
from squeeze.numerics import openmp
from squeeze.packing import device_decode
from squeeze.packing.tensors import fixed, floats
from tests.makers.floats import bytes_of, weights

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
# How they are coded, safetensors dtype, outputs, inputs.
CASES = [
    (fixed, "BF16", 700, 256),
    (fixed, "BF16", 1803, 77),
    (fixed, "BF16", 2, 100_000),
    (fixed, "F16", 300, 512),
    (floats, "BF16", 900, 256),
    (floats, "BF16", 3, 90_001),
    (floats, "F32", 500, 321),
]


def prepared(coder, matrix):
    dtype = next(name for name, kind in TYPES.items() if kind == matrix.dtype)
    data = bytes_of(matrix.view(torch.uint8).numpy())
    return device_decode.prepare(torch.from_numpy(coder.encode(data, dtype)), dtype, data.size, coder is fixed)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["torch's threads", "threads of its own"])
def threads(request, two_threads, monkeypatch):
    if request.param == "threads of its own":
        monkeypatch.setattr(openmp, "_team", lambda: None)


@pytest.mark.parametrize(("coder", "dtype", "outputs", "inputs"), CASES)
def test_tiles_decode_as_floats_do(coder, dtype, outputs, inputs, threads):
    matrix = torch.from_numpy(weights(outputs * inputs)).to(TYPES[dtype]).view(outputs, inputs)
    coded = prepared(coder, matrix)
    assert torch.equal(device_decode.decode(coded, threads=2).view(outputs, inputs), matrix)
    size, chosen = coded.per_segment, [0, 1, *range(1, coded.segments)]
    parts = device_decode.decode_segments(coded, chosen, threads=2)
    for segment, part in zip(chosen, parts, strict=True):
        expected = matrix.view(-1)[segment * size : (segment + 1) * size]
        assert torch.equal(part[: len(expected)], expected)


@pytest.mark.parametrize(("coder", "dtype", "outputs", "inputs"), CASES)
@pytest.mark.parametrize("rows", [1, 6])
def test_products_are_those_of_the_decoded_weight(coder, dtype, outputs, inputs, rows, threads):
    matrix = torch.from_numpy(weights(outputs * inputs)).to(TYPES[dtype]).view(outputs, inputs)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(3))
    tiles = prepared(coder, matrix).tiles
    found = tiles.multiply(x, outputs, 2)
    exact = x.double() @ matrix.double().T
    bound = x.double().abs() @ matrix.double().abs().T
    assert ((found - exact).abs() <= 1e-5 * bound).all()
    assert torch.equal(found, tiles.multiply(x, outputs, 1))
    assert torch.equal(found[-1:], tiles.multiply(x[-1:], outputs, 2))  # whatever rows are beside it


@pytest.mark.parametrize(("coder", "dtype", "outputs", "inputs"), CASES)
def test_products_of_integers_are_exact(coder, dtype, outputs, inputs, two_threads):
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randint(-4, 5, (outputs, inputs), generator=generator).to(TYPES[dtype])
    x = torch.randint(-9, 9, (3, inputs), generator=generator).float()
    found = prepared(coder, matrix).tiles.multiply(x, outputs, 2)
    assert torch.equal(found, (x.double() @ matrix.double().T).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_value_is_widened_as_torch_does(dtype):
    columns, every = 40, torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.int16)).view(dtype)
    matrix = torch.zeros(every.numel(), columns, dtype=dtype)
    matrix[:, 7] = matrix[:, 39] = every
    for column in (7, 39):  # among the vectors, and after them
        alone = matrix.clone()
        alone[:, 46 - column] = 0
        x = torch.zeros(1, columns)
        x[0, column] = 1
        found = prepared(fixed, alone).tiles.multiply(x, every.numel(), 1)[0]
        assert torch.equal(found.nan_to_num(nan=1e38), every.float().nan_to_num(nan=1e38))


@pytest.mark.parametrize("coder", [fixed, floats])
def test_a_damaged_weight_is_not_multiplied(coder):
    matrix = torch.from_numpy(weights(200_000)).to(torch.bfloat16).view(400, 500)
    data = bytes_of(matrix.view(torch.uint8).numpy())
    payload, generator, refused = coder.encode(data, "BF16"), np.random.default_rng(5), 0
    for _ in range(40):
        hurt = torch.from_numpy(payload.copy())
        hurt[generator.integers(100, len(payload) // 2)] ^= 255
        try:
            coded = device_decode.prepare(hurt, "BF16", data.size, coder is fixed)
            coded.tiles.multiply(torch.ones(1, 500), 400, 2)
        except DamagedError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused


def test_other_types_have_no_tiles():
    values = (weights(60_000) * 300).astype(np.int8)
    coded = device_decode.prepare(torch.from_numpy(floats.encode(bytes_of(values), "I8")), "I8", values.size)
    assert coded.tiles is None
    assert torch.equal(device_decode.decode(coded, threads=2), torch.from_numpy(values))
