"""Compression of one block of a checkpoint, each matrix on the inputs that it sees.

Linear modules are compressed in the order in which they run, those that share an input together. Each sees the effect
of the ones before it. The work on a shard of the calibration is in gathering.py, on a matrix in solving.py; sharding.py
has the workers. The loop over blocks is in pipeline.py.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.engine import calibration, gathering
from squeeze.engine.calibration import InputStatistics, Stage
from squeeze.engine.expert_names import is_expert
from squeeze.engine.experts import in_memory, seeing_all
from squeeze.engine.method import Method
from squeeze.engine.network import Call, Network, run_block, weight_of
from squeeze.engine.rounding import Rounding
from squeeze.engine.sharding import LocalWorkers, OnBlock, Setting, Shard, Workers
from squeeze.engine.shortcuts import Shortcuts
from squeeze.engine.solving import CompressedMatrix, Matrix, compress_matrices, independent_parts

__all__ = ["BlockJob", "CompressedMatrix", "calibrated_block", "plain_block"]

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}  # others are computed and stored in float32


@dataclass(frozen=True, kw_only=True)
class BlockJob:
    """The settings of a compression.

    Attributes:
        network: the network.
        method: the method of most matrices.
        methods: other methods, by a module's name in the checkpoint.
        work: folder for temporary files.
        correction: strength of error propagation; see pipeline.Compression.
        every: the original runs on one sequence in `every`.
        bound: bound of a token's weight; see InputStatistics.
        biases: whether biases of compressed matrices may change, and are stored.
        workers: what gathers statistics and compresses matrices.
    """

    network: Network
    method: Method
    methods: Mapping[str, Method]
    work: Path
    correction: float
    every: int = 1
    bound: float | None = None
    biases: bool = False
    workers: Workers = field(default_factory=LocalWorkers)

    def method_of(self, name: str) -> Method:
        return self.methods.get(self.network.stored_name(name), self.method)

    def rounding_of(self, name: str) -> Rounding | None:
        """Return the rounding of a module's inputs, if its method has one."""
        return getattr(self.method_of(name), "rounding", None)

    def matrix(self, block: str, leaf: str) -> Matrix:
        name = f"{block}.{leaf}"
        stored = self.network.checkpoint.info(self.network.sources[f"{name}.weight"]).dtype
        dtype, bias = _DTYPES.get(stored, torch.float32), None
        source = self.network.sources.get(f"{name}.bias")
        if self.biases and source is not None and not is_expert(leaf):
            bias = _DTYPES.get(self.network.checkpoint.info(source).dtype, torch.float32)
        return Matrix(leaf, name, self.network.stored_name(name), dtype, self.method_of(name), bias)


def plain_block(job: BlockJob, name: str, leaves: list[str]) -> dict[str, CompressedMatrix]:
    """Compress the chosen modules of a block without statistics."""
    block = job.network.load(name)
    compressed: dict[str, CompressedMatrix] = {}
    for leaf in leaves:
        compressed |= compress_matrices(block, [job.matrix(name, leaf)], InputStatistics())
    return compressed


def calibrated_block(
    job: BlockJob, name: str, leaves: list[str], shards: list[Shard], call: Call
) -> dict[str, CompressedMatrix]:
    """Compress the chosen modules of a block stage by stage, then write the block's outputs."""
    block = job.network.load(name)
    with torch.inference_mode(), job.workers.on(name, block) as workers:
        walk = _Walk(job, name, block, leaves, shards, Setting(call, job.work, job.network.device), workers)
        try:
            walk.compress()
        finally:
            walk.close()
    return walk.compressed


class _Walk:
    """The compression of one block, stage by stage."""

    def __init__(
        self,
        job: BlockJob,
        name: str,
        block: nn.Module,
        leaves: list[str],
        shards: list[Shard],
        setting: Setting,
        workers: OnBlock,
    ) -> None:
        self.job, self.name, self.block, self.leaves = job, name, block, leaves
        self.shards, self.setting, self.workers = shards, setting, workers
        self.compressed: dict[str, CompressedMatrix] = {}
        self.recorded: set[str] = set()  # first modules of groups whose inputs in the original are in files
        ending = [] if setting.call.changes_arguments else leaves
        self.shortcuts = Shortcuts(block, ending, lambda: run_block(block, self._first(), call=setting.call))

    def _first(self) -> torch.Tensor:
        return next(self.shards[0].inputs.read(self.setting.device))

    def compress(self) -> None:
        block, job = self.block, self.job
        with seeing_all(block):
            planned = calibration.stages(block, self.leaves, self._trials())
        if job.correction:
            self._see_original(planned)
        for stage in (part for whole in planned for part in in_memory(block, whole)):
            self._round_inputs(stage)
            self._compress_stage(stage)
        rest = [leaf for leaf in self.leaves if leaf not in self.compressed]
        self._solve([(leaf,) for leaf in rest], {leaf: InputStatistics() for leaf in rest})
        for _ in self.workers.over(gathering.outputs, ((self.setting, shard) for shard in self.shards)):
            pass

    def _trials(self) -> Iterator[Callable[[], object]]:
        """Yield functions that run the block on one sequence each."""
        for shard in self.shards:
            for hidden in shard.inputs.read(self.setting.device):
                yield partial(run_block, self.block, hidden, self.setting.call)

    def _see_original(self, planned: list[Stage]) -> None:
        """Record the inputs of modules in the original block, before anything in it is compressed.

        Experts are left out, since the compressed block may route other tokens to them, and so are modules that a
        sequence does not reach.
        """
        groups = [group for stage in planned for group in stage.groups if not stage.repeated & set(group)]
        firsts = [group[0] for group in groups if not is_expert(group[0])]
        self.recorded = set(firsts)
        for whole in self.workers.over(gathering.original, ((self.setting, shard, firsts) for shard in self.shards)):
            self.recorded &= whole
        for name in set(firsts) - self.recorded:
            gathering.remove(self.setting, self.shards, name)

    def _round_inputs(self, stage: Stage) -> None:
        """Make the modules of a stage compute with rounded inputs from here on, if their methods say so."""
        rounding_of = {leaf: self.job.rounding_of(f"{self.name}.{leaf}") for group in stage.groups for leaf in group}
        ranged = [group for group in stage.groups if (how := rounding_of[group[0]]) and how.ranged]
        largest: dict[str, torch.Tensor] = {}
        if ranged:
            for found in self.workers.over(gathering.largest, ((self.setting, s, ranged) for s in self.shards)):
                for first, value in found.items():
                    largest[first] = torch.maximum(value, largest.get(first, value))
        roundings = {
            leaf: (rounding, largest.get(group[0]))
            for group in stage.groups
            for leaf in group
            if (rounding := rounding_of[leaf])
        }
        self.setting = replace(self.setting, roundings={**self.setting.roundings, **roundings})

    def _compress_stage(self, stage: Stage) -> None:
        leaves = {leaf for group in stage.groups for leaf in group}
        recorded, keep = self.recorded & leaves, self.shortcuts.ends.keys() & leaves
        found = self._statistics(stage, recorded, keep)
        for name in recorded:
            gathering.remove(self.setting, self.shards, name)
        if few := self._with_few_tokens(stage, found.sums):
            shown = [group[0] for group in few.groups]
            for leaf, statistics in self._statistics(few, shown=shown).sums.items():
                found.sums[leaf] = replace(statistics, routed=found.sums[leaf].count)
        self._solve(stage.groups, found.sums)
        for group in stage.groups:
            for name in self.shortcuts.take(group, found.recorded):
                gathering.remove(self.setting, self.shards, name, recorded=True)
        self.setting = replace(self.setting, cached=dict(self.shortcuts.used))

    def _statistics(
        self, stage: Stage, recorded: Collection[str] = (), keep: Collection[str] = (), shown: Collection[str] = ()
    ) -> gathering.GroupStatistics:
        parts = ((self.setting, shard, stage, recorded, keep, self.job.bound, shown) for shard in self.shards)
        return gathering.joined(stage, self.workers.over(gathering.statistics, parts), keep)

    def _with_few_tokens(self, stage: Stage, statistics: Mapping[str, InputStatistics]) -> Stage | None:
        """Return the groups of experts whose statistics are of too few tokens for their method, or None."""
        few = [
            group
            for group in stage.groups
            if is_expert(group[0])
            and any(self.job.method_of(f"{self.name}.{leaf}").needs_hessian for leaf in group)
            and statistics[group[0]].count < weight_of(self.block.get_submodule(group[0])).shape[1]
        ]
        return Stage(tuple(few), stage.repeated) if few else None

    def _solve(self, groups: Iterable[tuple[str, ...]], sums: dict[str, InputStatistics]) -> None:
        """Compress groups of matrices that share an input, and put the results into the block.

        `sums` has the statistics of each group by its first module, and is emptied.
        """
        for done in self.workers.over(compress_matrices, self._matrices(groups, sums)):
            for leaf, one in done.items():
                weight, values = weight_of(self.block.get_submodule(leaf)), one.result.tensor.dequantize(torch.float32)
                weight.copy_(values.to(self.job.matrix(self.name, leaf).dtype))
                if one.bias is not None:
                    self.block.get_parameter(f"{leaf}.bias").copy_(one.bias)
            self.compressed |= done
        self.workers.changed(leaf for group in groups for leaf in group)

    def _matrices(
        self, groups: Iterable[tuple[str, ...]], sums: dict[str, InputStatistics]
    ) -> Iterator[tuple[Sequence[Matrix], Any, float]]:
        for group in groups:
            matrices, statistics = [self.job.matrix(self.name, leaf) for leaf in group], sums.pop(group[0])
            _, statistics.largest = self.setting.roundings.get(group[0], (None, None))
            shared = self.workers.share(statistics)
            del statistics
            for part in independent_parts(matrices) if self.workers.splits_groups else [matrices]:
                yield part, shared, self.job.correction

    def close(self) -> None:
        """Delete the temporary files."""
        for name in self.recorded:
            gathering.remove(self.setting, self.shards, name)
        for name in self.shortcuts.ends:
            gathering.remove(self.setting, self.shards, name, recorded=True)
