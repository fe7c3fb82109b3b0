"""Products of int8 matrices by torch beside int64."""

import numpy as np
import pytest
import torch

from squeeze.errors import DeviceError
from squeeze.numerics import int8_tensors
from squeeze.numerics.int8 import TOP_16
from squeeze.numerics.int8_tensors import FloatProducts, Int8Products, products_of, split_product
from tests.makers.integers import integers

WAYS = [way for way in (Int8Products(), FloatProducts()) if int8_tensors._is_exact(way, "cpu")]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: type(way).__name__)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 1, 1), (3, 35, 7), (17, 1024, 16), (40, 1025, 33), (2, 9001, 9)]
)
def test_products(way, rows, inputs, outputs):
    a, b = integers((rows, inputs), 127, 1, "any", np.int8), integers((outputs, inputs), 127, 2, "any", np.int8)
    a[0], b[0] = 127, -127  # the largest sum
    found = way(torch.tensor(a.astype(np.float32)), way.prepared(b, "cpu"), outputs)
    assert np.array_equal(found.numpy(), (a.astype(np.int64) @ b.T.astype(np.int64)).astype(np.float32))


def test_one_way_at_least_is_exact():
    assert type(products_of("cpu")) is type(WAYS[0])


@pytest.fixture
def asked_anew():
    products_of.cache_clear()
    yield
    products_of.cache_clear()


def not_there(*_):
    raise RuntimeError("not implemented")


def saturating(a, b):
    return (a.int() @ b.int()).clamp(-(1 << 25), 1 << 25)


@pytest.mark.parametrize("found", [saturating, not_there])
def test_products_of_bytes_that_are_wrong_or_not_there_are_not_taken(asked_anew, monkeypatch, found):
    monkeypatch.setattr(torch, "_int_mm", found)
    assert isinstance(products_of("cpu"), FloatProducts)


def test_a_device_without_exact_products_is_refused(asked_anew, monkeypatch):
    monkeypatch.setattr(torch, "_int_mm", not_there)
    monkeypatch.setattr(FloatProducts, "sums", lambda self, a, weights: (a @ weights.t()).half().float())
    with pytest.raises(DeviceError, match=r"^cpu does not multiply integers exactly: use `device='cpu'`$"):
        products_of("cpu")


@pytest.mark.parametrize("inputs", [1, 16, 512, 1024, 1025, 5000])
def test_numbers_of_16_bits(inputs):
    a, b = integers((2, 3, inputs), TOP_16, 1, "any", np.int64), integers((2, inputs, 5), 127, 2, "any", np.int64)
    a[0, 0], b[0, :, 0] = TOP_16, 127
    a[1, 1], b[1, :, 1] = -TOP_16, 127
    a[0, 1] = 127  # 256 * 0 + 127, and 128 is 256 - 128
    a[0, 2] = 128
    found = split_product(*(torch.tensor(x.astype(np.float32)) for x in (a, b)))
    assert np.array_equal(found.numpy(), (a @ b).astype(np.float32))
