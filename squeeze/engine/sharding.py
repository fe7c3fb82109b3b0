"""The calibration in shards, some sequences each with files of their own; and the workers that process them.

The results of a shard depend only on the shard, and sums of shards are added in their order. So results do not depend
on which workers process them, one after another or in parallel. The number of sequences in a shard depends only on
their length. squeeze/cluster has the workers of a cluster.
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
from squeeze.engine.shortcuts import CachedInputs, shortened
from squeeze.engine.walking import Call

__all__ = ["LocalWorkers", "OnBlock", "Setting", "Shard", "Workers", "shards_of"]

_TOKENS = 8192  # tokens of a shard, if that is at least one sequence


@dataclass(frozen=True)
class Shard:
    """Sequences of L tokens, from number `first` on.

    Attributes:
        number: of the shard.
        first: number of its first sequence.
        inputs, outputs: files of the present block.
        original: the same files of the original network, for one sequence in `every`; None if that does not run.
        every: the original runs on one sequence in `every`.
    """

    number: int
    first: int
    inputs: Activations
    outputs: Activations
    original: tuple[Activations, Activations] | None
    every: int = 1

    def file(self, folder: Path, name: str, width: int, original: bool = False) -> Activations:
        """Return the file of the inputs of one of the block's modules.

        Args:
            folder: of the file.
            name: of the module.
            width: number of inputs.
            original: whether the inputs are those in the original network.
        """
        like = self.original[0] if original and self.original else self.inputs
        return Activations(folder / f"{name}.{self.number}", like.count, like.length, width)


def shards_of(folder: Path, count: int, shape: tuple[int, int], block: int, original: bool, every: int) -> list[Shard]:
    """Return the shards of sequences at a block.

    Args:
        folder: for files.
        count: number of sequences.
        shape: (L, W) of a sequence's state.
        block: number of the block in the names of files.
        original: whether the original network runs, too.
        every: it runs on one sequence in `every`.
    """
    length, width = shape
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
    """The present setup of a block, with which it runs on a shard.

    Attributes:
        call: its arguments.
        work: folder for temporary files.
        device: where it runs.
        roundings: of its modules' inputs.
        cached: parts that need not run again.
    """

    call: Call
    work: Path
    device: torch.device
    roundings: Roundings = field(default_factory=dict)
    cached: Mapping[str, CachedInputs] = field(default_factory=dict)

    @contextmanager
    def running(self, block: nn.Module, shard: Shard) -> Iterator[Iterator[torch.Tensor]]:
        """Set up the block for the shard's sequences [L, H], and return them, each for one run."""
        files = {name: shard.file(self.work, f"{name}.kept", kept.width) for name, kept in self.cached.items()}
        with ExitStack() as stack:
            stack.enter_context(rounding_inputs(block, self.roundings))
            stack.enter_context(shortened(block, self.cached, files, self.device))
            yield shard.inputs.read(self.device)


T = TypeVar("T")


class OnBlock(Protocol):
    """Workers that have a block. `splits_groups`: whether matrices that share their inputs are processed one by one."""

    splits_groups: bool

    def over(self, function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """Yield function(block, *part) of each part, in the order of the parts."""
        ...

    def share(self, value: Any) -> Any:
        """Return a handle of a value for use in parts, so that it is sent once."""
        ...

    def changed(self, names: Iterable[str]) -> None:
        """Announce that the weights of these modules of the block have changed."""
        ...


class Workers(Protocol):
    """Processes that work on the parts of a block. A function of a part does not change the block."""

    def on(self, name: str, block: nn.Module) -> AbstractContextManager[OnBlock]:
        """Return a context in which the workers have the block of this name."""
        ...


class LocalWorkers:
    """This process as the only worker."""

    def on(self, name: str, block: nn.Module) -> AbstractContextManager[OnBlock]:
        return nullcontext(_LocalOnBlock(block))


class _LocalOnBlock:
    splits_groups = False

    def __init__(self, block: nn.Module) -> None:
        self._block = block

    def over(self, function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        return (function(self._block, *part) for part in parts)

    def share(self, value: Any) -> Any:
        return value

    def changed(self, names: Iterable[str]) -> None:
        pass
