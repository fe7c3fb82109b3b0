"""The way forward through a network of which one block at a time is in memory; hidden states go through files.

Nothing here knows what blocks are run for.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.calibration import Activations, Recorder
from squeeze.engine.network import Call, Network, is_linear, run_block

__all__ = ["Run", "each_block", "forward", "input_squares", "states_in", "summed_squares"]

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


def input_squares(checkpoint: Checkpoint, tokens: torch.Tensor, device: str = "cpu") -> dict[str, torch.Tensor]:
    """The mean square of each input of every linear module in the blocks, float32 [I], on tokens."""
    sums = summed_squares(checkpoint, tokens, device)
    return {name: squares / tokens.numel() for name, (squares, _) in sums.items()}


@torch.inference_mode()
def summed_squares(
    checkpoint: Checkpoint,
    tokens: torch.Tensor,
    device: str = "cpu",
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, tuple[torch.Tensor, int]]:
    """The sum of squares of each input of every linear module in the blocks, float32 [I], over the tokens that reach
    it, and their number. progress: called with a block's name, the blocks done, and of all."""
    network = Network(checkpoint, device)
    sums: dict[str, tuple[torch.Tensor, int]] = {}
    for number, (name, block, run) in enumerate(forward(network, tokens)):
        if progress:
            progress(name, number, len(network.blocks))
        leaves = [leaf for leaf, module in block.named_modules() if is_linear(module)]

        def note(leaf: str, x: torch.Tensor, name: str = name) -> None:
            rows = x.reshape(-1, x.shape[-1]).float()
            before, count = sums.get(f"{name}.{leaf}", (torch.zeros(()), 0))
            sums[f"{name}.{leaf}"] = before + rows.square().sum(0), count + len(rows)

        with Recorder(block, leaves, note):
            run()
    return {network.stored_name(name): (squares.cpu(), count) for name, (squares, count) in sums.items()}
