"""The walk that reduces the experts of one block after the other.

The inputs of a block come from the blocks before it that are reduced already. In memory are a block with all its
experts, and the same block with those that stay.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.engine.calibration import Activations
from squeeze.engine.experts import Experts
from squeeze.engine.forward import states_in
from squeeze.engine.inputs import Inputs
from squeeze.engine.network import Call, Network, run_block
from squeeze.engine.pipeline import Progress
from squeeze.engine.report import Report
from squeeze.errors import ModelError, SqueezeError
from squeeze.prune.experts.choosing import ExpertMethod, largest
from squeeze.prune.experts.counts import Counts
from squeeze.prune.experts.cutting import Layers, Mixture
from squeeze.prune.experts.fitting import Difference, fitted, outputs_of
from squeeze.prune.experts.statistics import LayerStatistics, gathered

__all__ = ["Plan", "Walk"]

_MEASURED = 8  # sequences on which the error of a layer is measured


@dataclass(frozen=True)
class Plan:
    """The numbers of experts of the result.

    Attributes:
        counts: of the original.
        kept: experts that a layer keeps.
        active: experts that a token uses.
    """

    counts: Counts
    kept: int
    active: int

    @classmethod
    def of(cls, network: Network, keep: float | None, active: int | None) -> "Plan":
        """Return the numbers for a share of experts to keep and the experts that a token uses; None for those before.

        Raises SqueezeError if the model has no experts, or the numbers do not fit its router.
        """
        if not any(isinstance(one, Experts) for one in network.model.modules()):
            kind = type(network.model).__name__
            raise ModelError(f"{network.checkpoint.folder}: {kind} has no experts that can be reduced")
        if keep is None and active is None:
            raise SqueezeError("expected `keep`, the share of experts to keep, or `active`, the experts a token uses")
        counts = Counts.of(network)
        kept = counts.experts if keep is None else round(keep * counts.experts)
        used = counts.active if active is None else active
        if used > counts.active:
            raise SqueezeError(f"a token uses {counts.active} experts: active must be at most that, got {used}")
        counts.check(kept, used)
        return cls(counts, kept, used)


@dataclass
class Walk:
    """A run: the network, what is left of its layers, the method, and the calibration set or None."""

    network: Network
    layers: Layers
    method: ExpertMethod
    plan: Plan
    tokens: Inputs | None
    report: Report
    small: Network = field(init=False)

    def blocks(self, content: Path, progress: Progress) -> Iterator[str]:
        """Reduce one block after the other, and yield its name; its tensors can then be read from the views."""
        if self.tokens is not None:
            self.network.check(self.tokens)
            self.network.settle(self.tokens)
        self.small = Network(self.layers.checkpoint(content), str(self.network.device))
        total, done = len(self.network.blocks), 0
        with tempfile.TemporaryDirectory() as name:
            for stack, blocks in enumerate(self.network.stacks):
                calls: list[Call] = []
                if self.tokens is not None:
                    states = states_in(name, self.network, self.tokens, stack)
                    calls = self.network.calls(self.tokens, stack)
                    states("hidden", 0).write(self.network.first_inputs(self.tokens, stack))
                for number, block in enumerate(blocks):
                    progress(block, done, total)
                    if self.tokens is None:
                        self._choose(block, None)
                    else:
                        hidden = states("hidden", number)
                        self._reduce(block, calls[number], hidden, states("hidden", number + 1))
                        hidden.path.unlink()
                    yield block
                    done += 1
        progress("", total, total)

    def _reduce(self, name: str, call: Call, hidden: Activations, following: Activations) -> None:
        """Reduce a block given its inputs, and write the inputs of the next one."""
        device, block = self.network.device, self.network.load(name)
        mixture = self.layers.in_block(name)
        with torch.no_grad():
            if mixture is None:
                following.write(run_block(block, x, call) for x in hidden.read(device))
            else:
                whole = _inside(block, name, mixture)
                sums = None
                if self.plan.kept < self.plan.counts.experts and self.method.needs_tokens:
                    run = _Running(hidden, device, call, block)
                    sums = gathered(whole, run.all, self.method.compared_tokens)
                self._choose(name, sums)
                kept_block = self.small.load(name)
                pair = _Pair(hidden, device, call, block, kept_block)
                for _ in range(self.method.rounds):
                    new = fitted(whole, _inside(kept_block, name, mixture), pair.sequences, self.method.ridge)
                    mixture.parts |= new
                    kept_block = self.small.load(name)
                error = pair.error(whole, _inside(kept_block, name, mixture))
                self._note(mixture, sums, error)
                following.write(run_block(kept_block, x, call) for x in hidden.read(device))
                self.small.release(name)
        self.network.release(name)

    def _choose(self, name: str, sums: LayerStatistics | None) -> None:
        """Choose the experts of a block that stay, and merge others into them if the method does."""
        mixture = self.layers.in_block(name)
        if mixture is None:
            return
        plan = self.plan
        if plan.kept == plan.counts.experts:
            return
        loaded = sums is not None
        block = self.network.module(name) if loaded else self.network.load(name)
        whole = _inside(block, name, mixture)
        mixture.kept = largest(self.method.scores(whole, sums), plan.kept, plan.counts.groups)
        mixture.parts = self.method.merged(whole, mixture.kept, sums)
        if self.tokens is None:
            self.network.release(name)
            self._note(mixture, None, None)

    def _note(self, mixture: Mixture, sums: LayerStatistics | None, error: float | None) -> None:
        """Add a layer to the report."""
        entry: dict[str, Any] = {"experts": self.plan.counts.experts, "kept": mixture.kept, "error": error}
        if sums is not None:
            entry["weight"] = float(sums.weight[mixture.kept].sum() / sums.weight.sum().clamp(min=1e-30))
        self.report.experts[mixture.path] = entry


def _inside(block: nn.Module, name: str, mixture: Mixture) -> Experts:
    """Return a mixture's module in its block."""
    module = block.get_submodule(mixture.path.removeprefix(f"{name}."))
    assert isinstance(module, Experts)
    return module


@dataclass(frozen=True)
class _Running:
    """A block and its inputs."""

    hidden: Activations
    device: torch.device
    call: Call
    block: nn.Module

    def all(self) -> None:
        for x in self.hidden.read(self.device):
            run_block(self.block, x, self.call)


@dataclass(frozen=True)
class _Pair(_Running):
    """A block with all experts, the same block with those that stay, and their inputs."""

    kept: nn.Module

    def sequences(self) -> Iterator[Callable[[bool], object]]:
        """Yield for each sequence a function that runs the block with all experts (True) or the kept ones."""
        for x in self.hidden.read(self.device):
            yield partial(self._run, x)

    def _run(self, x: torch.Tensor, whole: bool) -> object:
        return run_block(self.block if whole else self.kept, x, self.call)

    def error(self, whole: Experts, kept: Experts) -> float:
        """Return the squared error of the experts' outputs, relative to those of all experts."""
        difference = Difference()
        with outputs_of(whole) as before, outputs_of(kept) as after:
            for number, run in enumerate(self.sequences()):
                if number == _MEASURED:
                    break
                run(True)
                run(False)
                difference.add(before.pop(), after.pop())
        return difference.relative
