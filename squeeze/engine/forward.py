"""Forward passes through a network of which one block is in memory; hidden states are in files.

Also here: the mean squares of inputs, for changes of channels and importance matrices.
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

Run = tuple[str, nn.Module, Callable[[], None]]  # a block's name, the loaded block, and a function that runs it


def states_in(folder: Path | str, network: Network, tokens: torch.Tensor) -> Callable[[str, int], Activations]:
    """Return a function from a stream's name and number to its file of hidden states, for sequences of tokens [N,
    L]."""
    width = network.width(tokens)
    return lambda name, number: Activations(Path(folder, f"{name}.{number}"), len(tokens), tokens.shape[1], width)


def each_block(
    network: Network, tokens: torch.Tensor, calls: list[Call], hidden: Callable[[int], Activations]
) -> Iterator[Run]:
    """Yield each block by name, loaded, with a function that runs all sequences through it without gradients.

    The function has to be called once before the next block is requested.

    Args:
        network: the network.
        tokens: sequences [N, L].
        calls: how each block is called.
        hidden: hidden(n) returns the file with the inputs of block n.
    """
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
    """Yield each block as each_block does, in float32, with files that are deleted once they are read.

    Args:
        network: the network.
        tokens: sequences [N, L].
        last: called with the outputs of the last block [1, L, H], for each sequence.

    Raises:
        SqueezeError: the network cannot run the tokens.
    """
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
    """Return the mean square of each input of every linear module in the blocks on tokens, float32 [I]."""
    sums = summed_squares(checkpoint, tokens, device)
    return {name: squares / tokens.numel() for name, (squares, _) in sums.items()}


@torch.inference_mode()
def summed_squares(
    checkpoint: Checkpoint,
    tokens: torch.Tensor,
    device: str = "cpu",
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, tuple[torch.Tensor, int]]:
    """Return the sum of squares of each input of every linear module, float32 [I], and the number of tokens that reach
    it.

    Args:
        checkpoint: the checkpoint.
        tokens: sequences [N, L].
        device: where blocks run.
        progress: called with a block's name, the blocks done, and the number of blocks.
    """
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
