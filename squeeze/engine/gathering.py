"""What calibration gathers of one block: inputs of its modules as they were in the original, and statistics of what
they are in the block that is being compressed.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

from squeeze.engine import calibration
from squeeze.engine.calibration import Activations, InputStatistics, Recorder, Stage
from squeeze.engine.experts import is_expert
from squeeze.engine.network import Call, run_block, weight_of
from squeeze.engine.rounding import RoundedInputs
from squeeze.engine.shortcuts import Shortcuts

__all__ = ["original", "statistics_of"]


def original(
    block: nn.Module,
    planned: list[Stage],
    before: Activations,
    after: Activations,
    call: Call,
    work: Path,
    device: torch.device,
) -> dict[str, Activations]:
    """Run a block that is not compressed yet: what comes out of it goes to a file, and so do the inputs of each group,
    in the folder `work`, by the name of its first module; not those of experts, where the compressed block may send
    other tokens, nor those that a sequence does not reach."""
    firsts = [group[0] for stage in planned for group in stage.groups if not is_expert(group[0])]
    widths = {name: weight_of(block.get_submodule(name)).shape[1] for name in firsts}
    files = {
        name: Activations(work / f"{name}.inputs", before.count, before.length, width) for name, width in widths.items()
    }
    with ExitStack() as stack:
        sinks = {name: stack.enter_context(file.path.open("wb")) for name, file in files.items()}

        def outputs() -> Iterator[torch.Tensor]:
            for hidden in before.read(device):
                seen: dict[str, torch.Tensor] = {}
                with Recorder(block, firsts, seen.__setitem__):
                    yield run_block(block, hidden, call)
                for name, x in seen.items():
                    sinks[name].write(Activations.as_bytes(x))

        after.write(outputs())
    for name in [name for name, file in files.items() if not file.whole()]:
        files.pop(name).path.unlink()
    return files


def statistics_of(
    block: nn.Module,
    stage: Stage,
    *,
    shortcuts: Shortcuts,
    rounded: RoundedInputs,
    originals: dict[str, Activations],
    every: int,
    bound: float | None = None,
    call: Call,
    device: torch.device,
) -> dict[str, InputStatistics]:
    """Of each group's inputs, by the name of its first module. bound: as InputStatistics has it. The files of the
    original's inputs, one sequence in `every`, are read and deleted."""
    gathered = {group[0]: InputStatistics(bound=bound) for group in stage.groups}
    theirs = {name: originals.pop(name) for name in gathered if name in originals}
    values = {name: file.read(device) for name, file in theirs.items()}
    for number, hidden in enumerate(shortcuts.read(device)):
        seen = calibration.record(block, stage.groups, lambda: run_block(block, hidden, call))  # noqa: B023
        known = {name: next(file) for name, file in values.items()} if number % every == 0 else {}
        for group in stage.groups:
            if group[0] in seen:
                gathered[group[0]].add(rounded.rounded(group[0], seen[group[0]]), known.get(group[0]))
                shortcuts.keep(group, seen[group[0]])
    for name, statistics in gathered.items():
        statistics.finish()
        statistics.largest = rounded.largest.get(name)
    for file in theirs.values():
        file.path.unlink()
    return gathered
