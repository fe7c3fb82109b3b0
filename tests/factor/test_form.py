"""Masks, packed."""

import torch
from hypothesis import given, strategies as st

from squeeze.factor.form import mask_of, packed_mask


@given(st.lists(st.booleans(), max_size=40))
def test_packed_masks_come_back(bits):
    mask = torch.tensor(bits, dtype=torch.bool)
    assert torch.equal(mask_of(packed_mask(mask), len(bits)), mask)
