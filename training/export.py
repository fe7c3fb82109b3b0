"""Write a trained model as the file that the package reads: `python -m training.export`.

Matrices become int8 with one scale per output, rounded to nearest. Those of words and the embedding tables become 4
bits. Norm weights are multiplied into the following matrices.
"""

from pathlib import Path
from typing import cast

import click
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from squeeze.recipes.train.byte_network import GRAMS, WORD_BITS, Block, ByWords, Flat, Stack, levels
from training import checkpoint

_TOP = 127


def tensors(model: Flat | ByWords) -> dict[str, Tensor]:
    """Return the tensors of the file."""
    found: dict[str, Tensor] = {"embedding": model.embedding.weight.detach().float()}
    width = model.shape.width
    if isinstance(model, ByWords):
        stacks, up, down = {"before": model.before, "words": model.words, "after": model.after}, model.up, model.down
        found |= _in_halves("up", up.weight) | _in_halves("down", down.weight)
    else:
        stacks = {"before": model.stack}
        found |= _in_halves("up", torch.zeros(16, width)) | _in_halves("down", torch.zeros(width, 16))
    tables = [cast(nn.Embedding, table).weight for table in model.grams] or [torch.zeros(1, width)] * len(GRAMS)
    for k, table in enumerate(tables):
        found |= _in_halves(f"grams.{k}", table)
    for name, stack in stacks.items():
        found |= _blocks(name, stack)
    return found | _in_bytes("head", _with_gains(model.head, model.norm))


def _blocks(name: str, stack: Stack) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    blocks = cast(list[Block], list[nn.Module](stack.blocks))
    for number, block in enumerate(blocks):
        one, recurrence, store = f"{name}.{number}", block.recurrence, _in_halves if block.bits else _in_bytes
        found |= store(f"{one}.into", _with_gains(recurrence.into, block.norm))
        found |= store(f"{one}.out", recurrence.out.weight)
        found |= store(f"{one}.gate_up", _with_gains(block.gate_up, block.feed_forward_norm))
        found |= store(f"{one}.down", block.down.weight)
        found[f"{one}.taps"] = recurrence.taps.detach().float().clone()
        found[f"{one}.keeping"] = recurrence.keeping.detach().float().clone()
    return found


def _with_gains(linear: nn.Linear, norm: nn.RMSNorm) -> Tensor:
    return linear.weight * norm.weight


def _in_bytes(name: str, weight: Tensor) -> dict[str, Tensor]:
    weight = weight.detach().float()
    scale = weight.abs().amax(1).clamp_min(1e-12) / _TOP
    codes = torch.round(weight / scale[:, None]).clamp(-_TOP, _TOP).to(torch.int8)
    return {name: codes, f"{name}.scale": scale}


def _in_halves(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Pack 4-bit values two per byte, rounded as in training."""
    codes, step = levels(weight.detach().float(), WORD_BITS)
    low, high = (codes + (1 << WORD_BITS - 1)).to(torch.uint8).chunk(2, 1)
    return {name: low | high << WORD_BITS, f"{name}.scale": step[:, 0] / 2}


@click.command()
@click.option("--run", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the training.")
@click.option("--into", type=click.Path(path_type=Path), required=True, help="File to write.")
def main(run: Path, into: Path) -> None:
    """Write the model of RUN."""
    save_file(tensors(checkpoint.model(run)), into)
    click.echo(f"wrote {into}: {into.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
