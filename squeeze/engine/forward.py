"""Forward passes through a network of which one block is in memory; hidden states are in files.

Also here: the mean squares of inputs, for changes of channels and importance matrices.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.calibration import Activations, Recorder
from squeeze.engine.inputs import Inputs
from squeeze.engine.network import Call, Network, is_linear, run_block

__all__ = ["Run", "each_block", "forward", "input_squares", "states_in", "summed_squares"]

Run = tuple[str, nn.Module, Callable[[], None]]  # a block's name, the loaded block, and a function that runs it


def states_in(
    folder: Path | str, network: Network, tokens: Inputs, stack: int = 0
) -> Callable[[str, int], Activations]:
    """Return a function from a stream's name and number to its file of hidden states in a stack."""
    length, width = network.length(tokens, stack), network.width(tokens, stack)
    return lambda name, number: Activations(Path(folder, f"{name}.{stack}.{number}"), len(tokens), length, width)


def each_block(
    network: Network, tokens: Inputs, calls: list[Call], hidden: Callable[[int], Activations], stack: int = 0
) -> Iterator[Run]:
    """Yield each block of a stack by name, loaded, with a function that runs all sequences through it without
    gradients.

    The function has to be called once before the next block is requested.

    Args:
        network: the network.
        tokens: sequences [N, L], or samples.
        calls: how each block is called.
        hidden: hidden(n) returns the file with the inputs of block n.
        stack: number of the stack.
    """
    hidden(0).write(network.first_inputs(tokens, stack))
    for number, name in enumerate(network.stacks[stack]):
        block = network.load(name)

        @torch.no_grad()
        def run(number: int = number, block: nn.Module = block) -> None:
            given = hidden(number).read(network.device)
            hidden(number + 1).write(run_block(block, x, calls[number]) for x in given)

        yield name, block, run
        network.release(name)


def forward(network: Network, tokens: Inputs, last: Callable[[torch.Tensor], None] | None = None) -> Iterator[Run]:
    """Yield each block of all stacks as each_block does, in float32, with files that are deleted once they are read.

    Args:
        network: the network.
        tokens: sequences [N, L], or samples.
        last: called with the outputs of the last block, such as [1, L, H], for each sequence.

    Raises:
        SqueezeError: the network cannot run the tokens.
    """
    network.check(tokens)
    network.settle(tokens)
    with tempfile.TemporaryDirectory() as folder:
        for stack, names in enumerate(network.stacks):
            states, calls = states_in(folder, network, tokens, stack), network.calls(tokens, stack)
            runs = each_block(network, tokens, calls, partial(states, "hidden"), stack)
            for number, one in enumerate(runs):
                yield one
                states("hidden", number).path.unlink()
            if last and stack + 1 == len(network.stacks):
                for x in states("hidden", len(names)).read(network.device):
                    last(calls[-1].hidden(x))
            states("hidden", len(names)).path.unlink(missing_ok=True)


def input_squares(checkpoint: Checkpoint, tokens: Inputs, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Return the mean square of each input of every linear module in the blocks on tokens, float32 [I]."""
    sums = summed_squares(checkpoint, tokens, device)
    rows = tokens.numel() if isinstance(tokens, torch.Tensor) else 0
    return {name: squares / (rows or max(count, 1)) for name, (squares, count) in sums.items()}


@torch.inference_mode()
def summed_squares(
    checkpoint: Checkpoint,
    tokens: Inputs,
    device: str = "cpu",
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, tuple[torch.Tensor, int]]:
    """Return the sum of squares of each input of every linear module, float32 [I], and the number of tokens that reach
    it.

    Args:
        checkpoint: the checkpoint.
        tokens: sequences [N, L], or samples.
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
