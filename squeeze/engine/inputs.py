"""How large the inputs of a checkpoint's matrices are, which a change of its channels goes by, and an
importance matrix holds; and how blocks run one after the other."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.calibration import Activations, Recorder
from squeeze.engine.network import Network, is_linear, run_block

__all__ = ["input_squares", "running", "summed_squares"]


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
    for number, (name, block, run) in enumerate(running(network, tokens)):
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


def running(network: Network, tokens: torch.Tensor) -> Iterator[tuple[str, nn.Module, Callable[[], None]]]:
    """Each block by its name, loaded, and a function that runs all sequences of tokens [N, L] through it, which has to
    be called once before the next block is asked for. Raises SqueezeError where the network cannot run them."""
    network.check(tokens)
    calls, width = network.calls(tokens), network.width(tokens)
    with tempfile.TemporaryDirectory() as folder:
        files = [Activations(Path(folder) / str(n), len(tokens), tokens.shape[1], width) for n in range(len(calls) + 1)]
        files[0].write(network.first_inputs(tokens))
        for number, name in enumerate(network.blocks):
            block = network.load(name)

            def run(number: int = number, block: nn.Module = block) -> None:
                hidden_states = files[number].read(network.device)
                files[number + 1].write(run_block(block, hidden, calls[number]) for hidden in hidden_states)

            yield name, block, run
            files[number].path.unlink()
            network.release(name)
