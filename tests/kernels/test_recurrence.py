"""Recurrences in Triton and by the compiled loop are those of the reference, with their derivatives."""

import pytest
import torch

from squeeze.kernels.recurrence import cpu_backward, cpu_forward, reference_scan, scan
from tests.makers.gpu import DEVICES

SHAPES = [(2, 13, 5), (1, 130, 33), (1, 64, 32), (2, 1, 7), (0, 3, 4)]


def draw(batch, time, width):
    torch.manual_seed(time)
    decay, update, gradient = torch.rand(batch, time, width), *torch.randn(2, batch, time, width)
    return decay, update, torch.randn(batch, width), gradient


def by_reference(decay, update, start, gradient):
    """States, and their derivatives."""
    leaves = [x.clone().requires_grad_() for x in (decay, update, start)]
    states = reference_scan(*leaves)
    states.backward(gradient)
    return [states.detach(), *(leaf.grad for leaf in leaves)]


def test_the_reference_is_the_recurrence():
    decay, update, state, _ = draw(2, 9, 3)
    states = reference_scan(decay, update, state)
    for t in range(9):
        state = decay[:, t] * state + update[:, t]
        torch.testing.assert_close(states[:, t], state)


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_the_cpu_equals_the_reference_with_derivatives(shape):
    *arguments, gradient = draw(*shape)
    leaves = [x.clone().requires_grad_() for x in arguments]
    states = scan(*leaves)
    states.backward(gradient)
    found = [states.detach(), *(leaf.grad for leaf in leaves)]
    torch.testing.assert_close(found, by_reference(*arguments, gradient))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_triton_equals_the_cpu_with_derivatives(shape, device):
    pytest.importorskip("triton", reason="triton is not installed")
    from squeeze.kernels.recurrence import kernel

    decay, update, start, gradient = draw(*shape)
    there = [x.to(device) for x in (decay, update, start)]
    states = kernel.forward(*there)
    derivatives = kernel.backward(there[0], states, there[2], gradient.to(device))
    expected = [cpu_forward(decay, update, start)]
    expected += cpu_backward(decay, expected[0], start, gradient)
    torch.testing.assert_close([x.cpu() for x in (states, *derivatives)], expected)


@pytest.mark.parametrize("device", DEVICES)
def test_triton_takes_rows_that_are_not_contiguous(device):
    pytest.importorskip("triton", reason="triton is not installed")
    from squeeze.kernels.recurrence import kernel

    decay, update, start, _ = draw(2, 20, 6)
    apart = [x.transpose(0, 1).contiguous().transpose(0, 1).to(device) for x in (decay, update)]
    torch.testing.assert_close(kernel.forward(*apart, start.to(device)).cpu(), cpu_forward(decay, update, start))
