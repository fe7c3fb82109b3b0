"""Lists of blocks are found, put in the order of the forward, and replaced by the module around them."""

import pytest
from torch import nn

from squeeze.engine.stacks import around, find_stacks, is_linear, running_order
from squeeze.errors import ModelError


class Tower(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(blocks))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.second, self.first, self.unused = Tower(1), Tower(2), Tower(1)
        self.heads = nn.ModuleList([nn.Linear(4, 2)])  # matrices themselves, no blocks
        self.stages = nn.ModuleList(nn.ModuleList([nn.Sequential(nn.Linear(4, 4))]) for _ in range(2))

    def forward(self, x):
        return self.second(self.first(x))


def test_lists_are_the_outermost_that_hold_blocks_with_matrices():
    assert find_stacks(Towers()) == [
        ["second.layers.0"],
        ["first.layers.0", "first.layers.1"],
        ["unused.layers.0"],
        ["stages.0", "stages.1"],
    ]
    with pytest.raises(ModelError, match="Sequential: expected an architecture with a list of blocks"):
        find_stacks(nn.Sequential(nn.Conv2d(1, 1, 1)))


def test_lists_are_in_the_order_of_the_forward_and_those_it_leaves_out_are_gone():
    import torch

    model = Towers()
    order = running_order(model, find_stacks(model), lambda: model(torch.zeros(1, 4)))
    assert order == [["first.layers.0", "first.layers.1"], ["second.layers.0"]]


def test_the_module_around_a_list():
    stacks = [["encoder.layer.0", "encoder.layer.1"], ["decoder.0"], ["a.b.0"], ["a.c.0"]]
    assert around(stacks[0], stacks) == ["encoder"]
    assert around(["encoder"], stacks) is None  # the model
    assert around(stacks[1], stacks) is None
    assert around(["a.b.0"], stacks) is None  # it holds a.c, too


def test_torch_reads_the_last_matrix_of_its_own_attention_without_calling_it():
    attention = nn.MultiheadAttention(4, 2)
    assert not is_linear(attention.out_proj) and is_linear(nn.Linear(4, 4))
