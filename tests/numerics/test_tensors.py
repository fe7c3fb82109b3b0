"""Exact arithmetic on torch's tensors beside the compiled kernels: the same floats, to the bit."""

import numpy as np
import pytest
import torch

from squeeze.errors import DeviceError
from squeeze.lm import forward
from squeeze.lm.llama import cos_sin_table
from squeeze.numerics import exact, rotation, tensors
from squeeze.numerics.frequencies import expanded, room
from squeeze.numerics.jit import kernel

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
def test_quantise(name, top):
    x = ROWS[name]
    integers, scales = np.zeros(x.shape, np.int16), np.zeros(len(x), np.float32)
    quantised(x, top, integers, scales)
    found = tensors.quantise(torch.from_numpy(x), top)
    assert np.array_equal(found[0].numpy(), integers) and np.array_equal(found[1].numpy(), scales)


@pytest.mark.parametrize("name", ROWS)
def test_norms(name):
    x, epsilon = ROWS[name], np.float32(1e-5)
    wanted = np.zeros(len(x), np.float32)
    rms_inverses(x, epsilon, wanted)
    assert np.array_equal(tensors.rms_inverse(torch.from_numpy(x), float(epsilon)).numpy(), wanted)


def test_exp():
    x = -np.concatenate([np.abs(ROWS["of all sizes"].ravel()), np.linspace(0, 90, 50_000), [0.0, 87.0, 1e30]])
    x, wanted = x.astype(np.float32), np.zeros(x.size, np.float32)
    exponentials(x, wanted)
    assert np.array_equal(tensors.exp_negative(torch.from_numpy(x)).numpy(), wanted)


@pytest.mark.parametrize("name", ROWS)
def test_gates(name):
    x, up = ROWS[name], ROWS[name][::-1].copy()
    wanted = x.copy()
    gate(wanted, up)
    assert np.array_equal(tensors.gated(*map(torch.from_numpy, (x, up))).numpy(), wanted)


@pytest.mark.parametrize("block", [1, 2, 8, 32])
def test_rotations(block):
    wanted = ROWS["of all sizes"].copy()
    rotated(wanted, block)
    found = tensors.rotate_sums(torch.from_numpy(ROWS["of all sizes"]), block)
    assert np.array_equal(found.numpy(), wanted)


def test_angles():
    table = cos_sin_table((1.0, 0.3, 1e-4))
    positions = np.array([0, 1, 2, 3, 100, 4095, 1 << 20, (1 << 24) - 1])
    for factor in (1.0, 1.138):
        cosine, sine = np.zeros((2, positions.size, 3), np.float32)
        turned(table, factor, positions, cosine, sine)
        found = tensors.angles(torch.from_numpy(table), factor, torch.from_numpy(positions), int(positions.max()))
        assert np.array_equal(found[0].numpy(), cosine) and np.array_equal(found[1].numpy(), sine)


def test_frequencies():
    random = np.random.default_rng(4)
    logits, bias = (5 * random.normal(size=(30, 999)).astype(np.float32) for _ in range(2))
    bias, wanted = bias[0], room(30, 999)
    found = tensors.cumulate(torch.from_numpy(logits) + torch.from_numpy(bias)).numpy()
    cumulated(logits, bias, wanted)
    assert np.array_equal(found.view(np.uint64), expanded(wanted)[:, 1:])


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
