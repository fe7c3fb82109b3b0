"""The lists of blocks of a model that quantize, prune and factorize walk, as `inspect --blocks` shows them."""

from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import existing_folder
from squeeze.engine.network import Network, is_linear, weight_of
from squeeze.quant.sources import floats

__all__ = ["Blocks", "blocks_of"]


@dataclass(frozen=True)
class Blocks:
    """One list of blocks, or all that is outside of lists.

    Attributes:
        name: of the list in the network.
        blocks: number of its blocks; 0 outside of lists.
        matrices: number of their matrices.
        weights: number of the matrices' weights.
    """

    name: str
    blocks: int
    matrices: int
    weights: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def blocks_of(folder: Path | str) -> list[Blocks]:
    """Return the lists of blocks of a model's folder, and last what is outside of them. Only headers are read.

    Raises ModelError if transformers has no class for the model, or it has no list of blocks.
    """
    network = Network(floats(Checkpoint.open(existing_folder(folder))))
    sizes = {name: prod(weight_of(module).shape) for name, module in network.model.named_modules() if is_linear(module)}
    found = []
    for stack in network.stacks:
        inside = [size for name, size in sizes.items() if name.startswith(tuple(f"{block}." for block in stack))]
        found.append(Blocks(stack[0].rpartition(".")[0], len(stack), len(inside), sum(inside)))
    outside = [size for name, size in sizes.items() if not network.is_inside(name)]
    return [*found, Blocks("outside of lists", 0, len(outside), sum(outside))]
