"""Statistics of keys and values: where they lie."""

import torch

from squeeze.kv.statistics import observe
from tests.makers.kv_models import llama, tokens


def test_statistics_come_to_the_cpu(monkeypatch):
    """Whatever devices the layers are on: policies are made of those of all layers together."""
    moved = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: moved.append(self) or self)
    found = observe(llama(), tokens(length=60)[0], context=30, windows=2, window=8)
    kept = [tensor for statistics in found.values() for part in vars(statistics).values() for tensor in part]
    assert len(found) == 2 and len(kept) == 16
    assert all(one is other for one, other in zip(kept, moved, strict=True))
