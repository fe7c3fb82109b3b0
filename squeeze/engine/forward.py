"""The way forward through a network of which one block at a time is in memory; hidden states go through files.

Nothing here knows what blocks are run for.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from squeeze.engine.calibration import Activations
from squeeze.engine.network import Call, Network, run_block

__all__ = ["Run", "each_block", "forward", "states_in"]

Run = tuple[str, nn.Module, Callable[[], None]]  # a block's name, the block, loaded, and what runs it


def states_in(folder: Path | str, network: Network, tokens: torch.Tensor) -> Callable[[str, int], Activations]:
    """Where hidden states of sequences of tokens [N, L] lie, by what they are and their number."""
    width = network.width(tokens)
    return lambda name, number: Activations(Path(folder, f"{name}.{number}"), len(tokens), tokens.shape[1], width)


def each_block(
    network: Network, tokens: torch.Tensor, calls: list[Call], hidden: Callable[[int], Activations]
) -> Iterator[Run]:
    """Each block by its name, loaded, the first one first, and a function that runs all sequences of tokens [N, L]
    through it, without gradients, which has to be called once before the next block is asked for. hidden(n): where what
    the block n is given lies."""
    hidden(0).write(network.first_inputs(tokens))
    for number, name in enumerate(network.blocks):
        block = network.load(name)

        @torch.no_grad()
        def run(number: int = number, block: nn.Module = block) -> None:
            given = hidden(number).read(network.device)
            hidden(number + 1).write(run_block(block, x, calls[number]) for x in given)

        yield name, block, run
        network.release(name)


def forward(
    network: Network, tokens: torch.Tensor, last: Callable[[torch.Tensor], None] | None = None
) -> Iterator[Run]:
    """As each_block, with files that go once they are read, all of it in float32.
    last: is called with what comes out of the last block [1, L, H], for each sequence. Raises SqueezeError where the
    network cannot run the tokens."""
    network.check(tokens)
    with tempfile.TemporaryDirectory() as folder:
        states, calls = states_in(folder, network, tokens), network.calls(tokens)
        runs = each_block(network, tokens, calls, lambda number: states("hidden", number))
        for number, one in enumerate(runs):
            yield one
            states("hidden", number).path.unlink()
        if last:
            for x in states("hidden", len(network.blocks)).read(network.device):
                last(calls[-1].hidden(x))
