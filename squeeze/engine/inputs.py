"""How large the inputs of a checkpoint's matrices are, which a change of its channels goes by, and an
importance matrix holds."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.calibration import Activations, Recorder
from squeeze.engine.network import Network, is_linear, run_block

__all__ = ["input_squares", "summed_squares"]


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
    network.check(tokens)
    calls = network.calls(tokens)
    sums: dict[str, tuple[torch.Tensor, int]] = {}
    width = network.model.config.get_text_config().hidden_size
    with tempfile.TemporaryDirectory() as folder:
        before = Activations(Path(folder) / "0", len(tokens), tokens.shape[1], width)
        before.write(network.first_inputs(tokens))
        for number, name in enumerate(network.blocks):
            if progress:
                progress(name, number, len(network.blocks))
            block = network.load(name)
            leaves = [leaf for leaf, module in block.named_modules() if is_linear(module)]

            def note(leaf: str, x: torch.Tensor, name: str = name) -> None:
                rows = x.reshape(-1, x.shape[-1]).float()
                before, count = sums.get(f"{name}.{leaf}", (torch.zeros(()), 0))
                sums[f"{name}.{leaf}"] = before + rows.square().sum(0), count + len(rows)

            after = Activations(Path(folder) / str(number + 1), len(tokens), tokens.shape[1], width)
            with Recorder(block, leaves, note):
                after.write(run_block(block, hidden, calls[number]) for hidden in before.read(network.device))
            before.path.unlink()
            before = after
            network.release(name)
    return {network.stored_name(name): (squares.cpu(), count) for name, (squares, count) in sums.items()}
