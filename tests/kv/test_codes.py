"""Codes packed into bytes, and the points that they stand for."""

import pytest
import torch
from hypothesis import given, strategies as st

from squeeze.kv.codes import CURVED, curve, lloyd_max, pack, pack_ternary, packed_size, unpack, unpack_ternary


@given(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]), st.integers(1, 9), st.integers(0, 2**32))
def test_packed_codes_are_unpacked(width, bytes_a_bit, seed):
    codes = torch.randint(0, 1 << width, (2, 8 * bytes_a_bit), generator=torch.Generator().manual_seed(seed))
    packed = pack(codes.to(torch.uint8), width)
    assert packed.shape[-1] == packed_size(codes.shape[-1], width) == bytes_a_bit * width
    assert torch.equal(unpack(packed, width, codes.shape[-1]), codes.to(torch.uint8))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_packed_ternary_codes_are_unpacked(codes):
    given_codes = torch.tensor(codes, dtype=torch.uint8)
    assert torch.equal(unpack_ternary(pack_ternary(given_codes), len(codes)), given_codes)


def test_lloyd_max_points_minimise_the_error():
    torch.testing.assert_close(lloyd_max(1), torch.tensor([-0.79788456, 0.79788456]))
    torch.testing.assert_close(lloyd_max(2)[2:], torch.tensor([0.4527800, 1.5104176]))  # Max 1960


@pytest.mark.parametrize("bits", range(1, CURVED + 1))
def test_a_curve_goes_through_the_points(bits):
    x = torch.arange(1 << bits) * (2 / ((1 << bits) - 1)) - 1
    found = (x[:, None] ** (2 * torch.arange(8) + 1) @ curve(bits)[:, None])[:, 0]
    torch.testing.assert_close(found, lloyd_max(bits), rtol=0, atol=1e-6)
