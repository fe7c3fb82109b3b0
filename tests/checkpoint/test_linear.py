"""Test layers of stored weights: when tensors are prepared anew, shapes, the bias, copies, and refusals."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from squeeze.checkpoint.linear import StoredLinear
from squeeze.errors import FormatError, SqueezeError


class Toy(StoredLinear[torch.Tensor]):
    """A weight stored as integers and a scale."""

    known_leaves = ("whole", "scale", "absent")

    weight_dtype = torch.float64
    calls = 0

    def prepare(self, dtype):
        type(self).calls += 1
        self._check_shape(self.get_buffer("whole").shape)
        return self.get_buffer("whole") * self.get_buffer("scale")

    def multiply(self, rows, prepared):
        assert rows.ndim == 2
        return functional.linear(rows, prepared.to(rows.dtype)).detach()

    def dequantize(self, dtype=torch.float32):
        return (self.get_buffer("whole") * self.get_buffer("scale")).to(dtype)


class Detached(Toy):
    differentiable = False


class ByType(Toy):
    by_dtype = True


WHOLE = torch.arange(-6, 6).view(3, 4)
BIAS = torch.tensor([1.0, -2.0, 0.5])
X = torch.arange(24.0).view(2, 3, 4)


def toy(kind=Toy, bias=None):
    kind.calls = 0
    stored, bias = {"whole": WHOLE.clone(), "scale": torch.tensor([0.3])}, None if bias is None else bias.clone()
    return kind(4, 3, stored, bias)


@pytest.mark.parametrize(
    "x", [X, X[0], X[0, 0], X[:, :0], X[:, ::2], X.mT.reshape(2, 3, 4)], ids=lambda x: str(x.shape)
)
def test_inputs_of_any_number_of_dimensions_are_multiplied(x):
    for bias in (None, BIAS):
        torch.testing.assert_close(toy(bias=bias)(x), functional.linear(x, 0.3 * WHOLE, bias))


def test_the_dense_weight_has_its_own_dtype():
    assert toy().weight.dtype == torch.float64 and toy().dequantize().dtype == torch.float32


def test_tensors_are_prepared_anew_only_when_they_change():
    layer = toy()
    for _ in range(2):
        layer(X), layer(X.bfloat16())
        layer.to("cpu").float()
    assert layer.calls == 1
    layer.scale = torch.tensor([0.6])
    assert torch.equal(layer(X), toy()(X) * 2)


@pytest.mark.parametrize("assign", [False, True])
def test_loaded_values_are_multiplied_by(assign):
    layer = toy(bias=BIAS)
    layer(X)
    state = {name: tensor * 2 for name, tensor in layer.state_dict().items()}
    layer.load_state_dict(state, assign=assign)
    torch.testing.assert_close(layer(X), functional.linear(X, 1.2 * WHOLE, 2 * BIAS))


def test_a_cast_is_honoured_after_the_first_call():
    called, fresh = toy(), toy()
    called(X)
    assert torch.equal(called.to(torch.bfloat16)(X), fresh.to(torch.bfloat16)(X))
    assert not torch.equal(called(X), toy()(X))


def test_one_preparation_for_each_dtype_of_activations():
    layer = toy(ByType)
    for dtype in (torch.float32, torch.float32, torch.bfloat16):
        layer(X.to(dtype))
    assert layer.calls == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_prepares_its_own(copied):
    layer = toy(bias=BIAS)
    expected, other = layer(X), copied(layer)
    assert other._cache.find(other._dependencies()) is None
    other.whole.mul_(2)
    assert torch.equal(layer(X), expected) and not torch.equal(other(X), expected)


def test_fetched_tensors_are_not_kept():
    layer = toy()
    layer._hf_hook = SimpleNamespace(offload=True)
    layer(X), layer(X)
    assert layer.calls == 2 and layer._cache.find(layer._dependencies()) is None


def test_gradients_reach_the_inputs_by_the_dense_weight():
    x = X.clone().requires_grad_(True)
    toy(Detached, BIAS)(x).sum().backward()
    torch.testing.assert_close(x.grad, (0.3 * WHOLE).sum(0).expand_as(X))


@pytest.mark.parametrize(
    ("x", "got"),
    [
        (torch.ones(2, 8), r"torch.float32 of shape \[2, 8\]"),
        (torch.ones(0, 3), r"torch.float32 of shape \[0, 3\]"),
        (torch.ones(2, 4, dtype=torch.int64), r"torch.int64 of shape \[2, 4\]"),
        (torch.tensor(1.0), r"torch.float32 of shape \[\]"),
    ],
)
def test_other_inputs_are_refused(x, got):
    with pytest.raises(SqueezeError, match=rf"Toy: expected floats of shape \[\.\.\., 4\], got {got}"):
        toy()(x)


def test_another_shape_is_refused():
    layer = Toy(5, 3, {"whole": WHOLE, "scale": torch.ones(1)}, name="a.b")
    with pytest.raises(FormatError, match=r"a\.b: expected a matrix of 3 x 5, got 3 x 4"):
        layer(torch.ones(1, 5))
