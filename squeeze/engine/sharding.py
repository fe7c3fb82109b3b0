"""The calibration in shards: some sequences each, in files of their own, so that others can work on them.

What is gathered of a shard depends on it alone, and sums of shards are added in their order. So the result is the same
whoever works on them, one after another or side by side. How many sequences make a shard depends on their length alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from squeeze.engine.calibration import Activations
from squeeze.engine.rounding import Roundings, rounding_inputs
from squeeze.engine.shortcuts import Kept, shortened
from squeeze.engine.walking import Call

__all__ = ["Here", "OnBlock", "Setting", "Shard", "Workers", "shards_of"]

_TOKENS = 8192  # of a shard, or one sequence


@dataclass(frozen=True)
class Shard:
    """Sequences of L tokens from the number `first` on. inputs, outputs: of the block at work; original: the same of
    the original network, of one sequence in `every`; None where that does not run."""

    number: int
    first: int
    inputs: Activations
    outputs: Activations
    original: tuple[Activations, Activations] | None
    every: int = 1

    def file(self, folder: Path, name: str, width: int, original: bool = False) -> Activations:
        """Of what one of the block's modules is given, by what is known of it."""
        like = self.original[0] if original and self.original else self.inputs
        return Activations(folder / f"{name}.{self.number}", like.count, like.length, width)


def shards_of(folder: Path, tokens: torch.Tensor, width: int, block: int, original: bool, every: int) -> list[Shard]:
    """Of sequences of tokens [N, L], in front of the block of this number and behind it. width: of the hidden states;
    original: whether the original network runs, too."""
    count, length = tokens.shape
    size = max(1, _TOKENS // length)

    def states(stream: str, number: int, shard: int, sequences: int) -> Activations:
        return Activations(folder / f"{stream}.{number}.{shard}.hidden", sequences, length, width)

    found = []
    for shard, first in enumerate(range(0, count, size)):
        inside = range(first, min(first + size, count))
        known = len([number for number in inside if number % every == 0])
        inputs, outputs = (states("compressed", n, shard, len(inside)) for n in (block, block + 1))
        theirs = states("original", block, shard, known), states("original", block + 1, shard, known)
        found.append(Shard(shard, first, inputs, outputs, theirs if original else None, every))
    return found


@dataclass(frozen=True)
class Setting:
    """How a block runs at present. call: what it is given besides; work: a folder for files meanwhile; roundings: of
    its modules' inputs; kept: what need not run again."""

    call: Call
    work: Path
    device: torch.device
    roundings: Roundings = field(default_factory=dict)
    kept: Mapping[str, Kept] = field(default_factory=dict)

    @contextmanager
    def running(self, block: nn.Module, shard: Shard) -> Iterator[Iterator[torch.Tensor]]:
        """The shard's sequences [L, H], each for one run of the block, which is meanwhile set up for them."""
        files = {name: shard.file(self.work, f"{name}.kept", kept.width) for name, kept in self.kept.items()}
        with ExitStack() as stack:
            stack.enter_context(rounding_inputs(block, self.roundings))
            stack.enter_context(shortened(block, self.kept, files, self.device))
            yield shard.inputs.read(self.device)


T = TypeVar("T")


class OnBlock(Protocol):
    """They have a block. apart: whether matrices that share their inputs are worked on one by one."""

    apart: bool

    def over(self, function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """function(block, *part) of each part, in their order."""
        ...

    def share(self, value: Any) -> Any:
        """What stands for a value in parts, so that it is sent once."""
        ...

    def changed(self, names: Iterable[str]) -> None:
        """The weights of these modules of the block are others than they were."""
        ...


class Workers(Protocol):
    def on(self, name: str, block: nn.Module) -> AbstractContextManager[OnBlock]:
        """Workers that have the block of this name meanwhile."""
        ...


class Here:
    """This process."""

    def on(self, name: str, block: nn.Module) -> AbstractContextManager[OnBlock]:
        return nullcontext(_HereOnBlock(block))


class _HereOnBlock:
    apart = False

    def __init__(self, block: nn.Module) -> None:
        self._block = block

    def over(self, function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        return (function(self._block, *part) for part in parts)

    def share(self, value: Any) -> Any:
        return value

    def changed(self, names: Iterable[str]) -> None:
        pass
