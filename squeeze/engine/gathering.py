"""The work of calibration on one shard of sequences and one block: inputs in the original, statistics, outputs.

Each function may be repeated, and may run in a process with a copy of the block: its results are its return value and
files in the work folder.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from squeeze.engine import calibration
from squeeze.engine.calibration import Activations, InputStatistics, Recorder, Stage
from squeeze.engine.experts import seeing_all
from squeeze.engine.network import run_block, weight_of
from squeeze.engine.rounding import ranges
from squeeze.engine.sharding import Setting, Shard

__all__ = ["GroupStatistics", "joined", "largest", "original", "outputs", "statistics"]

_INPUTS = "{}.inputs"


@dataclass
class GroupStatistics:
    """Statistics of each group's inputs, by the name of its first module, and the modules whose inputs are in files."""

    sums: dict[str, InputStatistics]
    recorded: set[str] = field(default_factory=set)


def original(block: nn.Module, setting: Setting, shard: Shard, firsts: Collection[str]) -> set[str]:
    """Run a block that is not compressed yet, and write its outputs and the inputs of some modules to files.

    Returns:
        The modules that every sequence reached.
    """
    assert shard.original
    before, after = shard.original
    files = {name: _inputs_of(block, setting, shard, name) for name in firsts}
    with ExitStack() as stack:
        sinks = {name: stack.enter_context(file.path.open("wb")) for name, file in files.items()}

        def states() -> Iterator[torch.Tensor]:
            for hidden in before.read(setting.device):
                seen: dict[str, torch.Tensor] = {}
                with Recorder(block, firsts, seen.__setitem__):
                    yield run_block(block, hidden, setting.call)
                for name, x in seen.items():
                    sinks[name].write(Activations.as_bytes(x))

        after.write(states())
    return {name for name, file in files.items() if file.whole()}


def largest(block: nn.Module, setting: Setting, shard: Shard, groups: list[tuple[str, ...]]) -> dict[str, torch.Tensor]:
    """Return the largest magnitude of each group's inputs; see rounding.ranges."""
    with setting.running(block, shard) as sequences:
        return ranges(block, groups, (partial(run_block, block, hidden, setting.call) for hidden in sequences))


def statistics(
    block: nn.Module,
    setting: Setting,
    shard: Shard,
    stage: Stage,
    recorded: Collection[str] = (),
    keep: Collection[str] = (),
    bound: float | None = None,
    displayed: Collection[str] = (),
) -> GroupStatistics:
    """Return statistics of each group's inputs.

    Args:
        block: as it is at present.
        setting: how it runs.
        shard: the sequences.
        stage: the groups.
        recorded: first modules whose inputs in the original are in files.
        keep: modules whose inputs are to be kept in files.
        bound: bound of a token's weight; see InputStatistics.
        displayed: modules of experts that run on all tokens.
    """
    gathered = GroupStatistics({group[0]: InputStatistics(bound=bound) for group in stage.groups})
    originals = {name: _inputs_of(block, setting, shard, name).read(setting.device) for name in recorded}
    files = {name: shard.file(setting.work, f"{name}.kept", _width(block, name)) for name in keep}
    with ExitStack() as stack:
        stack.enter_context(seeing_all(block, list(displayed)))
        sinks = {name: stack.enter_context(file.path.open("wb")) for name, file in files.items()}
        sequences = stack.enter_context(setting.running(block, shard))
        for number, hidden in enumerate(sequences, shard.first):
            inputs = calibration.record(block, stage, lambda: run_block(block, hidden, setting.call))  # noqa: B023
            pairs = {name: next(file) for name, file in originals.items()} if number % shard.every == 0 else {}
            for first, *others in stage.groups:
                if first in inputs:
                    x = inputs[first]
                    rounding, highest = setting.roundings.get(first, (None, None))
                    gathered.sums[first].add(x if rounding is None else rounding(x, highest), pairs.get(first))
                    for name in sinks.keys() & {first, *others}:
                        sinks[name].write(Activations.as_bytes(x))
    gathered.recorded = {name for name, file in files.items() if file.whole()}
    return gathered


def joined(stage: Stage, shards: Iterator[GroupStatistics], recorded: Collection[str] = ()) -> GroupStatistics:
    """Sum the statistics of all shards, in their order; `recorded` are modules whose inputs should be whole in every
    shard."""
    total = GroupStatistics({group[0]: InputStatistics() for group in stage.groups}, set(recorded))
    for found in shards:
        total.recorded &= found.recorded
        for name in list(found.sums):
            total.sums[name].join(found.sums.pop(name))
    for one in total.sums.values():
        one.finish()
    return total


def outputs(block: nn.Module, setting: Setting, shard: Shard) -> None:
    """Write the outputs of the block as it is now."""
    with setting.running(block, shard) as sequences:
        shard.outputs.write(run_block(block, hidden, setting.call) for hidden in sequences)


def remove(setting: Setting, shards: list[Shard], name: str, recorded: bool = False) -> None:
    """Delete a module's inputs in the original, or those that were kept."""
    for shard in shards:
        shard.file(setting.work, f"{name}.kept" if recorded else _INPUTS.format(name), 0).path.unlink(missing_ok=True)


def _inputs_of(block: nn.Module, setting: Setting, shard: Shard, name: str) -> Activations:
    return shard.file(setting.work, _INPUTS.format(name), _width(block, name), original=True)


def _width(block: nn.Module, name: str) -> int:
    return weight_of(block.get_submodule(name)).shape[1]
