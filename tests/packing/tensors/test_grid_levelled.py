"""Groups of NF4, FP4 and of whole numbers in float32: found by their largest level, and restored bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.packing.tensors import floats, grid, grid_plan
from squeeze.packing.tensors.content import InMemory, whole
from squeeze.packing.tensors.float_writer import in_memory
from squeeze.packing.tensors.floats import Decoded
from squeeze.packing.tensors.grid_levels import FP4, INT, NF4, SIGNED, TABLES

ROWS, COLUMNS, GROUP = 32, 256, 64
NAMES = {FP4: np.concatenate((TABLES[FP4, 0, :8], -TABLES[FP4, 0, 1:8])),
         NF4: np.concatenate((TABLES[NF4, 0, :9], -TABLES[NF4, 1, 1:8]))}  # fmt: skip


def bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)


def named(kind, seed=0, size=0.02):
    """Return groups of levels, each with the last one in it, times scales in float32."""
    random = np.random.default_rng(seed)
    levels = random.choice(NAMES[kind], (ROWS * COLUMNS // GROUP, GROUP)).astype(np.float32)
    levels[:, 5] = NAMES[kind].max()
    return levels * (random.random((len(levels), 1)) * size + size).astype(np.float32)


def whole_numbers(most, seed=0):
    random = np.random.default_rng(seed)
    levels = random.integers(-most, most + 1, (ROWS * COLUMNS // GROUP, GROUP)).astype(np.float32)
    levels[:, 7] = most
    return levels * (random.random((len(levels), 1)) * 0.02 + 0.01).astype(np.float32)


def check(data, dtype):
    """Find the grid of a tensor, check that it restores the tensor, and return it; None if no grid fits."""
    found = grid_plan.find(InMemory(data), dtype, (ROWS, COLUMNS))
    if found is None:
        return None
    payload = in_memory(lambda writer: grid.write(InMemory(data), dtype, found, writer, floats.write, 1))
    if payload is not None:
        assert np.array_equal(whole(grid.DecodedGrid(InMemory(payload), dtype, data.size, Decoded)), data)
    return found


@pytest.mark.parametrize("kind", [FP4, NF4])
def test_levels_of_tables_are_found(kind):
    found = check(bf16(named(kind)), "BF16")
    assert (found.kind, found.tiles.width) == (kind, GROUP)


@pytest.mark.parametrize("most", [7, 127])
def test_whole_numbers_in_float32_are_found(most):
    values = whole_numbers(most)
    found = check(values.view(np.uint8).reshape(-1), "F32")
    assert found.kind in (INT, SIGNED)
    assert found.tiles.width == GROUP
    values[3, 9] = -0.0
    assert check(values.view(np.uint8).reshape(-1), "F32").kind == SIGNED
    values[3, 9] = 0.0123
    assert check(values.view(np.uint8).reshape(-1), "F32") is None


@pytest.mark.parametrize("size", [1e-44, 1e-40, 1e-37, 1e37, 4e38, np.inf, np.nan])
def test_extreme_groups_are_restored(size):
    values = named(NF4)
    with np.errstate(over="ignore", invalid="ignore"):
        values[6] *= np.float32(size) * 50
    check(bf16(values), "BF16")
    values = whole_numbers(127)
    with np.errstate(over="ignore", invalid="ignore"):
        values[6] *= np.float32(size) * 50
    check(values.view(np.uint8).reshape(-1), "F32")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 20), st.sampled_from([FP4, NF4]), st.floats(-110, 110))
def test_any_found_grid_restores_the_same_bits(seed, kind, size):
    check(bf16(named(kind, seed, 2.0**size)), "BF16")
