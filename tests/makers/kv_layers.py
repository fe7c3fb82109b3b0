"""Make layers of a coded cache and queries, and compare attention over them."""

import torch

from squeeze.kv import HeadGroup, Policy
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.layer import PackedLayer

CLOSE = {"rtol": 2e-5, "atol": 2e-5}  # float32 sums in another order


class Coded(Policy):
    """A policy of any two coders."""

    sinks, window, block = 3, 5, 16

    def __init__(self, keys, values, heads=None):
        self.keys, self.values, self.heads = keys, values, heads

    def head_groups(self, layer, heads):
        if self.heads is None:
            return [HeadGroup(self.keys, self.values)]
        rest = tuple(head for head in range(heads) if head not in self.heads)
        return [
            HeadGroup(self.keys, self.values, self.heads),
            HeadGroup(GroupedCoder(8, "channels"), GroupedCoder(8, "tokens"), rest),
        ]


CODERS = {
    f"{width} bits, {along}, {points}{', groups' * bool(group)}{', rotated' * rotate}": GroupedCoder(
        width, along, group, rotate, points
    )
    for width in (1, 2, 3, 4, 8)
    for along, group, rotate, points in (
        ("tokens", 0, False, "even"),
        ("channels", 8, False, "even"),
        ("channels", 0, True, "normal"),
    )
}


def layer_of(policy, length=60, batch=2, heads=3, size=16, value_size=16, sliding_window=None):
    layer = PackedLayer(policy, 0, sliding_window)
    random = torch.Generator().manual_seed(0)
    layer.update(
        torch.randn(batch, heads, length, size, generator=random),
        torch.randn(batch, heads, length, value_size, generator=random),
    )
    return layer


def query_of(queries=1, batch=2, heads=6, size=16):
    return torch.randn(batch, heads, queries, size, generator=torch.Generator().manual_seed(1))
