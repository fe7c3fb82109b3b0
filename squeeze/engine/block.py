"""One block of a checkpoint: its matrices compressed, each on what it sees.

The linear modules are taken in the order in which they run, those that share an input together, and each sees what the
ones before it have become. Blocks and their order are pipeline.py's.
"""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.engine import calibration
from squeeze.engine.calibration import Activations, InputStatistics, Stage
from squeeze.engine.distribution import histogram
from squeeze.engine.experts import in_memory, is_expert, seeing_all
from squeeze.engine.gathering import original, statistics_of
from squeeze.engine.method import HessianError, JointMethod, Method, Result, layer_error
from squeeze.engine.network import Call, Network, run_block, weight_of
from squeeze.engine.report import Layer
from squeeze.engine.rounding import RoundedInputs, Rounding
from squeeze.engine.shortcuts import Shortcuts
from squeeze.errors import SqueezeError
from squeeze.system.memory import trim

__all__ = ["BlockJob", "Done", "calibrated_block", "plain_block"]


@dataclass(frozen=True, kw_only=True)
class BlockJob:
    """What to do to which module. methods: others than `method`, by the checkpoint's name of a module; work: a folder
    for files meanwhile; correction: strength of error propagation, as pipeline.py has it; every: the original runs on
    one sequence in so many; bound: of a token's weight, as InputStatistics has it."""

    network: Network
    method: Method
    methods: Mapping[str, Method]
    work: Path
    correction: float
    every: int = 1
    bound: float | None = None

    def method_of(self, name: str) -> Method:
        return self.methods.get(self.network.stored_name(name), self.method)

    def rounding_of(self, name: str) -> Rounding | None:
        """What is done to a module's inputs, where its method says so."""
        return getattr(self.method_of(name), "rounding", None)


@dataclass(frozen=True)
class Done:
    """A compressed matrix and what the report says of it."""

    result: Result[Any]
    layer: Layer


def plain_block(job: BlockJob, name: str, chosen: list[str]) -> dict[str, Done]:
    """Without statistics."""
    block = job.network.load(name)
    return _uncalibrated(job, name, {leaf: block.get_submodule(leaf) for leaf in chosen})


def calibrated_block(
    job: BlockJob, name: str, chosen: list[str], inputs: list[Activations], outputs: list[Activations], call: Call
) -> dict[str, Done]:
    """Compress the modules of a block stage by stage, then write what comes out of it."""
    block, device = job.network.load(name), job.network.device
    done: dict[str, Done] = {}
    with torch.inference_mode():
        trials = (lambda hidden=hidden: run_block(block, hidden, call) for hidden in inputs[0].read(device))
        with seeing_all(block):
            planned = calibration.stages(block, chosen, trials)
        theirs = original(block, planned, inputs[1], outputs[1], call, job.work, device) if job.correction else {}
        first = next(inputs[0].read(device))
        with (
            closing(Shortcuts(block, chosen, lambda: run_block(block, first, call), inputs[0], job.work)) as shortcuts,
            closing(RoundedInputs(block, lambda leaf: job.rounding_of(f"{name}.{leaf}"))) as rounded,
        ):
            gather = partial(
                statistics_of, block, shortcuts=shortcuts, rounded=rounded, every=job.every, bound=job.bound, call=call
            )
            for stage in (part for whole in planned for part in in_memory(block, whole)):
                rounded.begin(stage, shortcuts.read(device), lambda hidden: run_block(block, hidden, call))
                statistics = gather(stage, originals=theirs, device=device)
                if few := _reached_by_few(job, name, block, stage, statistics):
                    with seeing_all(block, [group[0] for group in few.groups]):
                        shared = gather(few, originals={}, device=device)
                    for leaf, seen in shared.items():
                        statistics[leaf] = replace(seen, routed=statistics[leaf].count)
                for group in stage.groups:
                    trim()
                    done |= _compressed_group(job, name, block, group, statistics.pop(group[0]))
                    shortcuts.take(group)
            done |= _uncalibrated(job, name, {leaf: block.get_submodule(leaf) for leaf in chosen if leaf not in done})
            outputs[0].write(run_block(block, hidden, call) for hidden in shortcuts.read(device))
    return done


def _reached_by_few(
    job: BlockJob, name: str, block: nn.Module, stage: Stage, statistics: Mapping[str, InputStatistics]
) -> Stage | None:
    """The groups of experts that a method wants to know more of than the tokens sent to them tell."""
    few = [
        group
        for group in stage.groups
        if is_expert(group[0])
        and any(job.method_of(f"{name}.{leaf}").needs_hessian for leaf in group)
        and statistics[group[0]].count < weight_of(block.get_submodule(group[0])).shape[1]
    ]
    return Stage(tuple(few)) if few else None


def _compressed_group(
    job: BlockJob, name: str, block: nn.Module, group: tuple[str, ...], statistics: InputStatistics
) -> dict[str, Done]:
    """Compress the matrices that share an input: those that one method is for together, where it is of that kind."""
    modules = {leaf: block.get_submodule(leaf) for leaf in group}
    weights = _wanted(job, name, modules, statistics)
    joint: dict[int, list[str]] = {}
    for leaf in group:
        if isinstance(method := job.method_of(f"{name}.{leaf}"), JointMethod) and not is_expert(leaf):
            joint.setdefault(id(method), []).append(leaf)
    together: dict[str, Result[Any]] = {}
    seconds = 0.0
    for leaves in joint.values():
        if len(leaves) > 1:
            method, started = job.method_of(f"{name}.{leaves[0]}"), time.perf_counter()
            assert isinstance(method, JointMethod)
            together |= _joint(method, {leaf: weights[leaf] for leaf in leaves}, statistics)
            seconds += time.perf_counter() - started
    done = {}
    for leaf, module in modules.items():
        full = f"{name}.{leaf}"
        if leaf in together:
            how = job.method_of(full).name, seconds / len(together)
            done[leaf] = _placed(job, full, module, statistics, together[leaf], *how)
        else:
            done[leaf] = _compressed(job, full, module, weights[leaf], statistics)
    return done


def _uncalibrated(job: BlockJob, name: str, modules: Mapping[str, nn.Module]) -> dict[str, Done]:
    """Compress matrices of whose inputs nothing is known."""
    done = {}
    for leaf, module in modules.items():
        full = f"{name}.{leaf}"
        done[leaf] = _compressed(job, full, module, weight_of(module).to(_dtype(job, full)), InputStatistics())
    return done


def _wanted(
    job: BlockJob, name: str, modules: Mapping[str, nn.Module], statistics: InputStatistics
) -> dict[str, torch.Tensor]:
    """The matrices [O, I] that are to be compressed, in their stored types, or for methods that look at small parts of
    their values in float32. The cross-covariance is used up: it is as large as the Hessian."""
    weights = [weight_of(module) for module in modules.values()]
    if statistics.cross is not None:
        weights = calibration.error_propagated(weights, statistics, job.correction)
        statistics.cross = None
    wanted = {}
    for leaf, weight in zip(modules, weights, strict=True):
        full = f"{name}.{leaf}"
        wanted[leaf] = weight if getattr(job.method_of(full), "unrounded", False) else weight.to(_dtype(job, full))
    return wanted


def _joint(
    method: JointMethod, weights: Mapping[str, torch.Tensor], statistics: InputStatistics
) -> dict[str, Result[Any]]:
    """Several matrices at once; nothing where the statistics do not serve."""
    if statistics.hessian is None or statistics.count < len(statistics.hessian):
        return {}
    try:
        return method.compress_together(weights, statistics.hessian)
    except HessianError:
        return {}


def _compressed(job: BlockJob, name: str, module: nn.Module, weight: torch.Tensor, statistics: InputStatistics) -> Done:
    """Compress one matrix and put what became of it in its place."""
    started = time.perf_counter()
    result, method = _result(job.method_of(name), weight, statistics)
    if statistics.largest is not None:
        result = replace(result, tensor=replace(result.tensor, input_range=statistics.largest))
    return _placed(job, name, module, statistics, result, method, time.perf_counter() - started)


def _placed(
    job: BlockJob,
    name: str,
    module: nn.Module,
    statistics: InputStatistics,
    result: Result[Any],
    method: str,
    seconds: float,
) -> Done:
    """Put what became of a matrix in its place."""
    weight, dtype = weight_of(module), _dtype(job, name)
    values = result.tensor.dequantize(torch.float32)
    if not torch.isfinite(values).all():
        raise SqueezeError(f"{name}: became infinite; its weights are too large for the type of its scales")
    layer = Layer(
        name=job.network.stored_name(name),
        shape=(weight.shape[0], weight.shape[1]),
        method=method,
        bits=result.tensor.stored_bits / weight.numel(),
        error=layer_error(weight, values, statistics.hessian) if result.comparable else None,
        tokens=statistics.count,
        notes=result.notes,
        rank=getattr(result.tensor, "rank", None),
        seconds=round(seconds, 3),
        histogram=histogram(weight, values),
        **_sparsity(name, result.tensor, values.to(dtype)),
    )
    weight.copy_(values.to(dtype))
    return Done(result, layer)


def _sparsity(name: str, tensor: Any, values: torch.Tensor) -> dict[str, Any]:
    """What the report says of zeros: of the matrix itself, without what is added to it in another form."""
    pattern = getattr(tensor, "pattern", None)
    if pattern is None:
        return {"sparsity": float((values == 0).float().mean())}
    sparse = tensor.sparse().to(values.dtype)
    wrong = pattern.violations(sparse)
    assert not wrong, f"{name}: {wrong} groups do not hold to {pattern}"
    return {"sparsity": float((sparse == 0).float().mean()), "pattern": str(pattern)}


def _result(method: Method, weight: torch.Tensor, statistics: InputStatistics) -> tuple[Result[Any], str]:
    """What a method makes of a matrix, or its fallback where the statistics do not serve; and the name of which."""
    if not method.needs_hessian:
        return method.compress(weight), method.name
    inputs = weight.shape[1]
    reached = statistics.count if statistics.routed is None else statistics.routed
    reason = f"only {reached} calibration tokens reached its {inputs} inputs"
    if reached == 0:
        reason = "no calibration token reached it"
    if statistics.hessian is not None and statistics.count >= inputs:
        try:
            result = method.compress(weight, statistics.hessian)
        except HessianError as error:
            reason = str(error)
        else:
            if statistics.routed is None:
                return result, method.name
            way = f"it was shown all {statistics.count} of the layer"
            return replace(result, notes=(*result.notes, f"{reason}: {way}")), method.name
    other = method.fallback()
    result = other.compress(weight)
    way = f"{other.name} instead" if other.name != method.name else "made without statistics"
    return replace(result, notes=(*result.notes, f"{reason}: {way}")), other.name


def _dtype(job: BlockJob, name: str) -> torch.dtype:
    """The type of a module's stored weight."""
    stored = job.network.checkpoint.info(job.network.sources[f"{name}.weight"]).dtype
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get(stored, torch.float32)
