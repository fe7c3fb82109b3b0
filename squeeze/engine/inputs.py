"""How large the inputs of a checkpoint's matrices are, which is what a change of its channels goes by."""

import tempfile
from pathlib import Path

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.calibration import Activations, Recorder
from squeeze.engine.network import Network, is_linear, run_block

__all__ = ["input_squares"]


@torch.inference_mode()
def input_squares(checkpoint: Checkpoint, tokens: torch.Tensor, device: str = "cpu") -> dict[str, torch.Tensor]:
    """The mean square of each input of every linear module in the blocks, float32 [I], on tokens."""
    network = Network(checkpoint, device)
    network.check(tokens)
    calls = network.calls(tokens)
    sums: dict[str, torch.Tensor] = {}
    width = network.model.config.get_text_config().hidden_size
    with tempfile.TemporaryDirectory() as folder:
        before = Activations(Path(folder) / "0", len(tokens), tokens.shape[1], width)
        before.write(network.first_inputs(tokens))
        for number, name in enumerate(network.blocks):
            block = network.load(name)
            leaves = [leaf for leaf, module in block.named_modules() if is_linear(module)]

            def note(leaf: str, x: torch.Tensor, name: str = name) -> None:
                squares = x.reshape(-1, x.shape[-1]).float().square().sum(0) / tokens.numel()
                sums[f"{name}.{leaf}"] = sums.get(f"{name}.{leaf}", torch.zeros(())) + squares

            after = Activations(Path(folder) / str(number + 1), len(tokens), tokens.shape[1], width)
            with Recorder(block, leaves, note):
                after.write(run_block(block, hidden, calls[number]) for hidden in before.read(network.device))
            before.path.unlink()
            before = after
            network.release(name)
    return {network.stored_name(name): squares.cpu() for name, squares in sums.items()}
