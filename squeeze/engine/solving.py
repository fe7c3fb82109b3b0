"""Matrices of a block compressed, each by its method and what is known of its inputs.

The block stays as it is: what a matrix becomes is returned. Which matrices, and in which order, is block.py's.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.sparse import violations
from squeeze.engine import calibration
from squeeze.engine.calibration import InputStatistics
from squeeze.engine.experts import is_expert
from squeeze.engine.method import HessianError, JointMethod, Method, Result, layer_error
from squeeze.engine.network import weight_of
from squeeze.engine.report import Layer
from squeeze.errors import SqueezeError
from squeeze.system.machine import trim_memory

__all__ = ["BINS", "Done", "Matrix", "apart", "histogram", "solved"]


@dataclass(frozen=True)
class Matrix:
    """What is to become of a module's. leaf: its name in the block; name: in the network; stored: in the checkpoint,
    where it has the type `dtype`."""

    leaf: str
    name: str
    stored: str
    dtype: torch.dtype
    method: Method

    @property
    def is_joint(self) -> bool:
        return isinstance(self.method, JointMethod) and not is_expert(self.leaf)


@dataclass(frozen=True)
class Done:
    """A compressed matrix and what the report says of it."""

    result: Result[Any]
    layer: Layer


def apart(group: Sequence[Matrix]) -> list[list[Matrix]]:
    """The matrices of a group in the smallest parts that give what all together do."""
    parts: dict[int, list[Matrix]] = {}
    for matrix in group:
        parts.setdefault(id(matrix.method) if matrix.is_joint else id(matrix), []).append(matrix)
    return list(parts.values())


def solved(
    block: nn.Module, group: Sequence[Matrix], statistics: InputStatistics, correction: float = 0.0
) -> dict[str, Done]:
    """Compress matrices that share their inputs, by their names in the block: those that one method is for together,
    where it is of that kind. statistics: used up. correction: as pipeline.py has it."""
    trim_memory()
    modules = {matrix.leaf: block.get_submodule(matrix.leaf) for matrix in group}
    weights = _wanted(group, modules, statistics, correction)
    together: dict[str, tuple[Result[Any], float]] = {}
    for part in apart(group):
        if len(part) > 1:
            started = time.perf_counter()
            results = _joint(part[0].method, {one.leaf: weights[one.leaf] for one in part}, statistics)
            seconds = (time.perf_counter() - started) / len(part)
            together |= {leaf: (result, seconds) for leaf, result in results.items()}
    done = {}
    for matrix in group:
        module = modules[matrix.leaf]
        if matrix.leaf in together:
            result, seconds = together[matrix.leaf]
            done[matrix.leaf] = _described(matrix, module, statistics, result, matrix.method.name, seconds)
        else:
            done[matrix.leaf] = _compressed(matrix, module, weights[matrix.leaf], statistics)
    return done


def _wanted(
    group: Sequence[Matrix], modules: Mapping[str, nn.Module], statistics: InputStatistics, correction: float
) -> dict[str, torch.Tensor]:
    """The matrices [O, I] that are to be compressed, in their stored types, or for methods that look at small parts of
    their values in float32. The cross-covariance is used up: it is as large as the Hessian."""
    weights = [weight_of(module) for module in modules.values()]
    if statistics.cross is not None:
        weights = calibration.error_propagated(weights, statistics, correction)
        statistics.cross = None
    return {
        matrix.leaf: weight if getattr(matrix.method, "unrounded", False) else weight.to(matrix.dtype)
        for matrix, weight in zip(group, weights, strict=True)
    }


def _joint(method: Method, weights: Mapping[str, torch.Tensor], statistics: InputStatistics) -> dict[str, Result[Any]]:
    """Several matrices at once; nothing where the statistics do not serve."""
    assert isinstance(method, JointMethod)
    if statistics.hessian is None or statistics.count < len(statistics.hessian):
        return {}
    try:
        return method.compress_together(weights, statistics.hessian)
    except HessianError:
        return {}


def _compressed(matrix: Matrix, module: nn.Module, weight: torch.Tensor, statistics: InputStatistics) -> Done:
    started = time.perf_counter()
    result, method = _result(matrix.method, weight, statistics)
    if statistics.largest is not None:
        result = replace(result, tensor=replace(result.tensor, input_range=statistics.largest))
    return _described(matrix, module, statistics, result, method, time.perf_counter() - started)


def _described(
    matrix: Matrix,
    module: nn.Module,
    statistics: InputStatistics,
    result: Result[Any],
    method: str,
    seconds: float,
) -> Done:
    """With what the report says of it. Raises SqueezeError where it is not finite."""
    weight = weight_of(module)
    values = result.tensor.dequantize(torch.float32)
    if not torch.isfinite(values).all():
        raise SqueezeError(f"{matrix.name}: became infinite; its weights are too large for the type of its scales")
    layer = Layer(
        name=matrix.stored,
        shape=(weight.shape[0], weight.shape[1]),
        method=method,
        bits=result.tensor.stored_bits / weight.numel(),
        error=layer_error(weight, values, statistics.hessian) if result.comparable else None,
        tokens=statistics.count,
        notes=result.notes,
        rank=getattr(result.tensor, "rank", None),
        seconds=round(seconds, 3),
        histogram=histogram(weight, values),
        **_sparsity(matrix.name, result.tensor, values.to(matrix.dtype)),
    )
    return Done(result, layer)


def _sparsity(name: str, tensor: Any, values: torch.Tensor) -> dict[str, Any]:
    """What the report says of zeros: of the matrix itself, without what is added to it in another form."""
    pattern = getattr(tensor, "pattern", None)
    if pattern is None:
        return {"sparsity": float((values == 0).float().mean())}
    sparse = tensor.sparse().to(values.dtype)
    wrong = violations(pattern, sparse)
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


BINS = 48
_WIDTH = 4.0  # standard deviations to each side
_PIECE = 1 << 20  # weights counted at a time: float32 holds their number


def histogram(before: torch.Tensor, after: torch.Tensor) -> dict[str, Any]:
    """Counts of weights [O, I] in BINS bins of one width, from -bound to bound: {"bound": 4 standard deviations of
    `before`, "before": [BINS], "after": [BINS], "zeros": [before, after]}. What lies beyond is in the outermost bins;
    weights that are 0 are in none, and counted apart.
    """
    spread = float(before.float().std(correction=0))
    bound = _WIDTH * spread or float(before.abs().max()) or 1.0
    (first, zeros), (second, more) = _counts(before, bound), _counts(after, bound)
    return {"bound": float(f"{bound:.6g}"), "before": first, "after": second, "zeros": [zeros, more]}


def _counts(values: torch.Tensor, bound: float) -> tuple[list[int], int]:
    counts, zeros = torch.zeros(BINS, dtype=torch.int64, device=values.device), 0
    for piece in values.reshape(-1).split(_PIECE):
        counts += torch.histc(piece.float().clamp(-bound, bound), BINS, -bound, bound).to(torch.int64)
        zeros += len(piece) - int(piece.count_nonzero())
    counts[BINS // 2] -= zeros  # which begins at 0
    return counts.tolist(), zeros
