"""Kernels are chosen if they give the bits of plain torch; otherwise there is a reason."""

from contextlib import nullcontext

import pytest
import torch

from squeeze.lm.fused import operations
from squeeze.lm.fused.attention import Shape
from squeeze.lm.fused.operations import TORCH, Operations, Sizes, choose_operations, first_difference
from squeeze.numerics.tensors import FloatProducts

SIZES = Sizes(24, 24, 50, Shape(2, 1, 8, 2), biased=True, normed=True)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(operations, "_CALLS", ((2, 1), (1, 3)))


def test_kernels_give_the_bits_of_torch(few):
    pytest.importorskip("triton", reason="triton is not installed")
    assert first_difference(operations.fused(), "cpu", FloatProducts(), SIZES) is None


@pytest.mark.parametrize("name", Operations._fields[1:])
def test_an_operation_that_gives_other_bits_is_found(few, name):
    def wrong(*given):
        found = getattr(TORCH, name)(*given)
        first = found if isinstance(found, torch.Tensor) else found[-1]
        first.view(-1)[-1] += 1
        return found

    assert first_difference(TORCH._replace(**{name: wrong}), "cpu", FloatProducts(), SIZES) == name


def test_integers_that_differ_are_found(few):
    def wrong(x, out):
        scales = TORCH.quantise(x, out)
        out[0, 0] += 1
        return scales

    assert first_difference(TORCH._replace(quantise=wrong), "cpu", FloatProducts(), SIZES) == "quantise"


@pytest.fixture
def gpu(monkeypatch):
    """Sets what the kernels are found to do on a GPU that is not there."""

    def does(found):
        def result(*_):
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(operations, "first_difference", result)

    monkeypatch.setattr(torch.cuda, "device", lambda name: nullcontext())
    monkeypatch.setattr(operations, "fused", lambda: "kernels")
    return does


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (None, ("kernels", "")),
        ("attend", (TORCH, "the kernel of attend gives other bits")),
        (RuntimeError("no ptxas\nat all"), (TORCH, "kernels do not run: no ptxas")),
        (ValueError(), (TORCH, "kernels do not run: ValueError")),
    ],
)
def test_chooses_kernels_only_if_they_give_equal_bits(gpu, found, wanted):
    gpu(found)
    assert choose_operations("cuda:0", FloatProducts(), SIZES) == wanted


def test_chooses_torch_without_triton(gpu, monkeypatch):
    def missing():
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(operations, "fused", missing)
    assert choose_operations("cuda:0", FloatProducts(), SIZES) == (
        TORCH,
        "kernels do not run: No module named 'triton'",
    )


def test_running_out_of_memory_is_raised(gpu):
    gpu(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        choose_operations("cuda:0", FloatProducts(), SIZES)


def test_chooses_torch_on_a_processor():
    assert choose_operations("cpu", FloatProducts(), SIZES) == (TORCH, "cpu is no GPU")
