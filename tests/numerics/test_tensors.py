"""The exact arithmetic by torch gives the integers of the compiled one."""

import numpy as np
import pytest
import torch

from squeeze.errors import DeviceError
from squeeze.lm import forward
from squeeze.lm.llama import cos_sin_table
from squeeze.numerics import exact, rotation, tensors
from squeeze.numerics.frequencies import allocate, cumulative
from squeeze.numerics.int8 import TOP_16
from squeeze.numerics.jit import kernel
from squeeze.numerics.tensors import FloatProducts, Int8Products, products_of, split_product
from tests.makers.integers import integers

ROWS = {
    "like activations": np.random.default_rng(1).normal(size=(40, 96)).astype(np.float32),
    "of all sizes": np.random.default_rng(2).normal(size=(40, 96)).astype(np.float32)
    * np.float32(10.0) ** np.random.default_rng(3).integers(-20, 15, (40, 1)).astype(np.float32),
    "an outlier": np.eye(40, 96, dtype=np.float32) * np.float32(3e4) + np.float32(1e-3),
    "zeros": np.zeros((2, 96), np.float32),
    "halves": np.arange(-48, 48, dtype=np.float32)[None] / 2 * np.float32(127 / 24),
    "subnormal": np.full((2, 96), 2.0**-140, np.float32),
    "one number": np.float32([[0.3], [-7.0], [0.0]]),
}


@kernel
def quantised(x, top, out, scales):
    for r in range(x.shape[0]):
        scales[r] = exact.quantise(x[r], top, out[r])


@kernel
def rms_inverses(x, epsilon, out):
    for r in range(x.shape[0]):
        out[r] = exact.rms_inverse(x[r], epsilon)


@kernel
def exponentials(x, out):
    for i in range(x.size):
        out[i] = exact.exp_negative(x[i])


@kernel
def gate(x, up):
    for r in range(x.shape[0]):
        forward.gate(x[r], up[r])


@kernel
def rotated(x, block):
    for r in range(x.shape[0]):
        rotation.rotate_sums(x[r], block)


@kernel
def turned(table, factor, positions, cosine, sine):
    for r in range(positions.size):
        forward.rotary_angles(table, factor, positions[r], cosine[r], sine[r])


@kernel
def cumulated(logits, bias, out):
    for r in range(logits.shape[0]):
        exact.cumulate(logits[r], bias, out, r)


@pytest.mark.parametrize("top", [127, 32639])
@pytest.mark.parametrize("name", ROWS)
def test_quantise_equals_the_compiled_one(name, top):
    x = ROWS[name]
    integers, scales = np.zeros(x.shape, np.int16), np.zeros(len(x), np.float32)
    quantised(x, top, integers, scales)
    found = tensors.quantise(torch.from_numpy(x), top)
    assert np.array_equal(found[0].numpy(), integers) and np.array_equal(found[1].numpy(), scales)


@pytest.mark.parametrize("name", ROWS)
def test_rms_inverse_equals_the_compiled_one(name):
    x, epsilon = ROWS[name], np.float32(1e-5)
    wanted = np.zeros(len(x), np.float32)
    rms_inverses(x, epsilon, wanted)
    assert np.array_equal(tensors.rms_inverse(torch.from_numpy(x), float(epsilon)).numpy(), wanted)


def test_exp_negative_equals_the_compiled_one():
    x = -np.concatenate([np.abs(ROWS["of all sizes"].ravel()), np.linspace(0, 90, 50_000), [0.0, 87.0, 1e30]])
    x, wanted = x.astype(np.float32), np.zeros(x.size, np.float32)
    exponentials(x, wanted)
    assert np.array_equal(tensors.exp_negative(torch.from_numpy(x)).numpy(), wanted)


@pytest.mark.parametrize("name", ROWS)
def test_gates_equal_the_compiled_ones(name):
    x, up = ROWS[name], ROWS[name][::-1].copy()
    wanted = x.copy()
    gate(wanted, up)
    assert np.array_equal(tensors.gated(*map(torch.from_numpy, (x, up))).numpy(), wanted)


@pytest.mark.parametrize("block", [1, 2, 8, 32])
def test_rotations_equal_the_compiled_ones(block):
    wanted = ROWS["of all sizes"].copy()
    rotated(wanted, block)
    found = tensors.rotate_sums(torch.from_numpy(ROWS["of all sizes"]), block)
    assert np.array_equal(found.numpy(), wanted)


def test_angles_equal_the_compiled_ones():
    table = cos_sin_table((1.0, 0.3, 1e-4))
    positions = np.array([0, 1, 2, 3, 100, 4095, 1 << 20, (1 << 24) - 1])
    for factor in (1.0, 1.138):
        cosine, sine = np.zeros((2, positions.size, 3), np.float32)
        turned(table, factor, positions, cosine, sine)
        found = tensors.angles(torch.from_numpy(table), factor, torch.from_numpy(positions), int(positions.max()))
        assert np.array_equal(found[0].numpy(), cosine) and np.array_equal(found[1].numpy(), sine)


def test_frequencies_equal_the_compiled_ones():
    random = np.random.default_rng(4)
    logits, bias = (5 * random.normal(size=(30, 999)).astype(np.float32) for _ in range(2))
    bias, wanted = bias[0], allocate(30, 999)
    found = tensors.cumulate(torch.from_numpy(logits) + torch.from_numpy(bias)).numpy()
    cumulated(logits, bias, wanted)
    assert np.array_equal(found.view(np.uint64), cumulative(wanted)[:, 1:])


def test_a_processor_is_asked_and_trusted():
    tensors.check.__wrapped__("cpu")


@pytest.mark.parametrize("operation", ["quotient", "square_root"])
def test_a_device_that_rounds_otherwise_is_refused(operation, monkeypatch):
    right = getattr(tensors, operation)

    def wrong(*values):
        found = right(*values)
        return torch.where(torch.arange(found.numel()) == 500, found * (1 + 1e-6), found)

    monkeypatch.setattr(tensors, operation, wrong)
    with pytest.raises(DeviceError, match=r"^cpu does not compute as IEEE 754 says: use `device='cpu'`$"):
        tensors.check.__wrapped__("cpu")


def test_a_device_that_lacks_an_operation_is_refused(monkeypatch):
    def missing(x):
        raise RuntimeError("not implemented")

    monkeypatch.setattr(tensors, "square_root", missing)
    with pytest.raises(DeviceError, match=r"^cpu cannot run the language model: use `device='cpu'`"):
        tensors.check.__wrapped__("cpu")


WAYS = [way for way in (Int8Products(), FloatProducts()) if tensors._is_exact(way, "cpu")]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: type(way).__name__)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 1, 1), (3, 35, 7), (17, 1024, 16), (40, 1025, 33), (2, 9001, 9)]
)
def test_products_are_exact(way, rows, inputs, outputs):
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
def test_products_of_16_bit_integers_are_exact(inputs):
    a, b = integers((2, 3, inputs), TOP_16, 1, "any", np.int64), integers((2, inputs, 5), 127, 2, "any", np.int64)
    a[0, 0], b[0, :, 0] = TOP_16, 127
    a[1, 1], b[1, :, 1] = -TOP_16, 127
    a[0, 1] = 127  # 256 * 0 + 127, and 128 is 256 - 128
    a[0, 2] = 128
    found = split_product(*(torch.tensor(x.astype(np.float32)) for x in (a, b)))
    assert np.array_equal(found.numpy(), (a @ b).astype(np.float32))
