"""Rotary embedding, and its inverse."""

import torch

from squeeze.kv.rotary import apply_rotary, frequencies_of
from tests.makers.kv_models import gpt2, llama


def test_rotary_embedding_is_undone():
    keys, frequencies = torch.randn(1, 2, 10, 12), torch.tensor([1.0, 0.1, 0.01, 0.001])
    torch.testing.assert_close(apply_rotary(apply_rotary(keys, frequencies, 7), frequencies, 7, inverse=True), keys)
    assert torch.equal(apply_rotary(keys, frequencies, 7)[..., 8:], keys[..., 8:])
    assert frequencies_of(llama()).shape == (4,)
    assert frequencies_of(gpt2()) is None
