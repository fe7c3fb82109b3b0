"""Inputs rounded while a block is calibrated: what is recorded, what is computed, and the block as it was."""

from functools import partial

import torch
from torch import nn

from squeeze.engine.calibration import Recorder, Stage
from squeeze.engine.rounding import ranges, rounding_inputs


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.third(self.first(x) * self.second(x))


class Halves:
    """Round to multiples of half the largest magnitude."""

    ranged = True

    def __call__(self, x, largest=None):
        return torch.round(2 * x / largest) * largest / 2


STAGE = Stage((("first", "second"),))
HIDDEN = torch.randn((3, 5, 8), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_modules_compute_with_rounded_inputs_and_others_see_them_as_they_were():
    block, halves = Block(), Halves()
    plain = block(HIDDEN[0])
    found = ranges(block, STAGE.groups, (partial(block, hidden) for hidden in HIDDEN))
    largest = HIDDEN.abs().max()
    assert found == {"first": largest}
    seen = {}
    rounded = rounding_inputs(block, dict.fromkeys(("first", "second"), (halves, largest)))
    with rounded, Recorder(block, ["first", "second"], seen.__setitem__):
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
    assert torch.equal(block(HIDDEN[0]), plain)
