"""Inputs rounded while a block is calibrated: what is recorded, what is computed, and the block as it was."""

import torch
from torch import nn

from squeeze.engine.calibration import Recorder, Stage
from squeeze.engine.rounding import RoundedInputs


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.third(self.first(x) * self.second(x))


class Halves:
    """To multiples of half the largest magnitude."""

    ranged = True

    def __call__(self, x, largest=None):
        return torch.round(2 * x / largest) * largest / 2


STAGE = Stage((("first", "second"),))
HIDDEN = torch.randn((3, 5, 8), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_modules_compute_with_rounded_inputs_and_others_see_them_as_they_were():
    block, halves = Block(), Halves()
    plain = block(HIDDEN[0])
    rounded = RoundedInputs(block, lambda name: None if name == "third" else halves)
    rounded.begin(STAGE, HIDDEN, block)
    largest = HIDDEN.abs().max()
    assert rounded.largest == {"first": largest}
    seen = {}
    with Recorder(block, ["first", "second"], seen.__setitem__):
        found = block(HIDDEN[0])
    assert seen["first"] is seen["second"] and torch.equal(seen["first"], HIDDEN[0])
    x = halves(HIDDEN[0], largest)
    assert torch.equal(
        found,
        block.third(
            nn.functional.linear(x, block.first.weight, block.first.bias)
            * (nn.functional.linear(x, block.second.weight, block.second.bias))
        ),
    )
    assert torch.equal(rounded.rounded("first", HIDDEN[0]), x)
    assert torch.equal(rounded.rounded("third", HIDDEN[0]), HIDDEN[0])
    rounded.close()
    assert torch.equal(block(HIDDEN[0]), plain)


def test_inputs_are_not_read_where_no_range_is_needed():
    def never():
        raise AssertionError
        yield

    rounded = RoundedInputs(Block(), lambda name: None)
    rounded.begin(STAGE, never(), print)
    assert not rounded.largest
