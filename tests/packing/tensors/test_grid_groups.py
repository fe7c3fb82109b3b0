"""Groups of bf16 values: their scales are those of the model that was dequantised, and every value is restored."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from squeeze.packing.tensors import floats, grid, grid_plan
from squeeze.packing.tensors.content import InMemory, whole
from squeeze.packing.tensors.float_writer import in_memory
from squeeze.packing.tensors.floats import Decoded
from squeeze.packing.tensors.grid_levels import AFFINE, INT, SIGNED

ROWS, WIDTH = 64, 256


def drawn(seed=0):
    return torch.randn((ROWS, WIDTH), generator=torch.Generator().manual_seed(seed)) * 0.02


def affine(group, most, values):
    """Round values as Q4_1 does: a float16 scale and a float16 offset for each group."""
    values = values.reshape(-1, group)
    least = values.amin(1, keepdim=True)
    scale = (values.amax(1, keepdim=True) - least) / most
    codes = torch.clamp(torch.round((values - least) / scale), 0, most)
    return (codes * scale.half().float() + least.half().float()).reshape(ROWS, WIDTH)


def symmetric(group, most, values):
    """Round values as Q8_0 does: a float16 scale for each group."""
    values = values.reshape(-1, group)
    scale = values.abs().amax(1, keepdim=True) / most
    return (torch.round(values / scale) * scale.half().float()).reshape(ROWS, WIDTH)


def raw(tensor):
    return tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy().reshape(-1)


def check(data):
    """Find the grid of a tensor, check that it restores the tensor, and return it; None if no grid fits."""
    found = grid_plan.find(InMemory(data), "BF16", (ROWS, WIDTH))
    if found is None:
        return None
    payload = in_memory(lambda writer: grid.write(InMemory(data), "BF16", found, writer, floats.write, 1))
    if payload is not None:
        assert np.array_equal(whole(grid.DecodedGrid(InMemory(payload), "BF16", data.size, Decoded)), data)
    return found


def is_half(values):
    return np.array_equal(values.astype(np.float16).astype(np.float32), values)


@pytest.mark.parametrize("group", [32, 64, 256])
@pytest.mark.parametrize("most", [3, 15])
def test_scales_and_offsets_of_gguf_are_found_as_float16(group, most):
    found = check(raw(affine(group, most, drawn())))
    assert found.kind == AFFINE
    assert found.tiles.width == group
    assert is_half(found.scales)
    assert is_half(found.offsets)


@pytest.mark.parametrize("most", [7, 127])
def test_scales_of_whole_numbers_are_found(most):
    found = check(raw(symmetric(32, most, drawn())))
    assert found.kind in (INT, SIGNED)
    assert is_half(found.scales)


def test_groups_of_other_largest_levels_and_of_zeros_are_found():
    values = symmetric(32, 127, drawn())
    values[3, :32] = 0
    values[5, 32:64] = values[5, 32:64].clamp(-0.01, 0.01).sign() * 0.0125
    assert check(raw(values)).kind in (INT, SIGNED)
    values[7, :32] *= -0.0  # negative zeros
    assert check(raw(values)).kind == SIGNED


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38, 0.0123])
def test_one_value_off_the_grid_makes_it_none(value):
    for values in (affine(32, 15, drawn()), symmetric(32, 127, drawn())):
        values[40, 100] = value
        assert check(raw(values)) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 15, 31, 127]), st.floats(-30, 30), st.booleans())
def test_any_found_grid_restores_the_same_bits(seed, most, size, is_affine):
    values = drawn(seed % 1000) * 2.0**size
    values += (seed >> 20) % 3 * 2.0**size  # offsets of many steps, whose levels are rounded together
    check(raw((affine if is_affine else symmetric)(32, most, values)))
