"""Memory of caches, and at its peak."""

import torch

from squeeze.kv import KIVI
from squeeze.kv.layer import PackedLayer
from squeeze.kv.memory import PeakMemory, nbytes_of


def test_peak_memory_counts_tensors():
    with PeakMemory() as memory:
        a = torch.zeros(1000)
        b = a + 1
        b.view(10, 100).add_(1)
        del a
        c = torch.zeros(1000)
        del b, c
        torch.zeros(10)
    assert memory.peak == 8000 and memory.current == 0
    held = [torch.zeros(1000)]
    with PeakMemory(iter(held)) as memory:
        held[0] = torch.cat([held[0], torch.zeros(10)])  # old and new at once, then only the new
        held[0] = torch.cat([held[0], torch.zeros(10)])
    assert memory.peak == 4040 + 4080 + 40


def test_bytes_are_within_the_bound():
    """Check that 8,192 tokens take at most 1.15 times their nominal size, including growth, sinks and window."""
    for policy in (KIVI(4), KIVI(2), KIVI(8)):
        layer = PackedLayer(policy, 0)
        for _ in range(16):
            layer.update(*torch.randn(2, 1, 2, 512, 64, dtype=torch.bfloat16))
        (group,) = layer.head_groups
        nominal = (group.keys.bits(64, 64) + group.values.bits(64, 64)) / 2
        assert layer.nbytes * 8 <= 1.15 * nominal * 8192 * 2 * 2 * 64
        assert layer.nbytes == nbytes_of(type("Cache", (), {"layers": [layer], "nbytes": layer.nbytes}))
