"""Codes of 1 to 8 bits and ternary digits, packed."""

import torch
from hypothesis import given, strategies as st

from squeeze.kv import packing


@given(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]), st.integers(1, 9), st.integers(0, 2**32))
def test_packing(width, bytes_a_bit, seed):
    codes = torch.randint(0, 1 << width, (2, 8 * bytes_a_bit), generator=torch.Generator().manual_seed(seed))
    packed = packing.pack(codes.to(torch.uint8), width)
    assert packed.shape[-1] == packing.packed_size(codes.shape[-1], width) == bytes_a_bit * width
    assert torch.equal(packing.unpack(packed, width, codes.shape[-1]), codes.to(torch.uint8))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_packing_ternary(codes):
    given_codes = torch.tensor(codes, dtype=torch.uint8)
    assert torch.equal(packing.unpack_ternary(packing.pack_ternary(given_codes), len(codes)), given_codes)
