"""Rotary embedding, and its inverse."""

import torch

from squeeze.kv import rotary
from squeeze.kv.rotary import apply_rotary, frequencies_of
from tests.makers.kv_models import gpt2, llama


def test_rotary_embedding_is_undone():
    keys, frequencies = torch.randn(1, 2, 10, 12), torch.tensor([1.0, 0.1, 0.01, 0.001])
    torch.testing.assert_close(apply_rotary(apply_rotary(keys, frequencies, 7), frequencies, 7, inverse=True), keys)
    assert torch.equal(apply_rotary(keys, frequencies, 7)[..., 8:], keys[..., 8:])
    assert frequencies_of(llama()).shape == (4,)
    assert frequencies_of(gpt2()) is None


def test_a_table_that_a_recording_computes_is_not_kept(monkeypatch):
    """It has no values before the recording is run."""
    keys, frequencies = torch.randn(1, 2, 10, 4), torch.tensor([1.0, 0.1])
    monkeypatch.setattr(rotary, "_is_recorded", lambda device: True)
    before = rotary._cos_sin.cache_info()
    recorded = apply_rotary(keys, frequencies, 3)
    assert rotary._cos_sin.cache_info() == before
    monkeypatch.undo()
    assert not rotary._is_recorded(keys.device) and torch.equal(apply_rotary(keys, frequencies, 3), recorded)
