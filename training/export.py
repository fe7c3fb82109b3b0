"""`python -m training.export`: a trained model as the file that the package reads.

Matrices become int8 with one scale for each output, rounded to nearest; the gains of norms go into the matrices that
follow them.
"""

from pathlib import Path
from typing import cast

import click
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from training import checkpoint
from training.models import Block, ByWords, Flat, Stack

_TOP = 127


def tensors(model: Flat | ByWords) -> dict[str, Tensor]:
    """The file's tensors."""
    found: dict[str, Tensor] = {"embedding": model.embedding.weight.detach().float()}
    if isinstance(model, ByWords):
        stacks, up, down = {"before": model.before, "words": model.words, "after": model.after}, model.up, model.down
        found |= _quantised("up", up.weight) | _quantised("down", down.weight)
    else:
        stacks, width = {"before": model.stack}, model.shape.width
        found |= _quantised("up", torch.zeros(16, width)) | _quantised("down", torch.zeros(width, 16))
    for k, table in enumerate(model.grams):
        found |= _quantised(f"grams.{k}", cast(nn.Embedding, table).weight)
    for name, stack in stacks.items():
        found |= _blocks(name, stack)
    return found | _quantised("head", _with_gains(model.head, model.norm))


def _blocks(name: str, stack: Stack) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    blocks = cast(list[Block], list[nn.Module](stack.blocks))
    for number, block in enumerate(blocks):
        one, recurrence = f"{name}.{number}", block.recurrence
        found |= _quantised(f"{one}.into", _with_gains(recurrence.into, block.norm))
        found |= _quantised(f"{one}.out", recurrence.out.weight)
        found |= _quantised(f"{one}.gate_up", _with_gains(block.gate_up, block.feed_forward_norm))
        found |= _quantised(f"{one}.down", block.down.weight)
        found[f"{one}.taps"] = recurrence.taps.detach().float().clone()
        found[f"{one}.keeping"] = recurrence.keeping.detach().float().clone()
    return found


def _with_gains(linear: nn.Linear, norm: nn.RMSNorm) -> Tensor:
    return linear.weight * norm.weight


def _quantised(name: str, weight: Tensor) -> dict[str, Tensor]:
    weight = weight.detach().float()
    scale = weight.abs().amax(1).clamp_min(1e-12) / _TOP
    codes = torch.round(weight / scale[:, None]).clamp(-_TOP, _TOP).to(torch.int8)
    return {name: codes, f"{name}.scale": scale}


@click.command()
@click.option("--run", type=click.Path(path_type=Path, exists=True), required=True, help="The folder of the training.")
@click.option("--into", type=click.Path(path_type=Path), required=True, help="The file to write.")
def main(run: Path, into: Path) -> None:
    """Write the model of RUN."""
    save_file(tensors(checkpoint.model(run)), into)
    click.echo(f"wrote {into}: {into.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
