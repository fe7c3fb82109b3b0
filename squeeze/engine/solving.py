"""Compression of the matrices of a block, each with its method and the statistics of its inputs.

The block is not changed; results are returned. block.py decides which matrices, and in which order.
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
from squeeze.engine.expert_names import is_expert
from squeeze.engine.method import HessianError, JointMethod, Method, Result, layer_error
from squeeze.engine.network import weight_of
from squeeze.engine.report import Layer
from squeeze.errors import SqueezeError
from squeeze.system.machine import trim_memory

__all__ = ["BINS", "CompressedMatrix", "Matrix", "compress_matrices", "histogram", "independent_parts"]


@dataclass(frozen=True)
class Matrix:
    """A matrix to compress.

    Attributes:
        leaf: name of its module in the block.
        name: name in the network.
        stored_name: name in the checkpoint, where it has the dtype `dtype`.
        method: the method.
        bias: the stored dtype of its bias, if that may change; else None.
    """

    leaf: str
    name: str
    stored_name: str
    dtype: torch.dtype
    method: Method
    bias: torch.dtype | None = None

    @property
    def is_joint(self) -> bool:
        return isinstance(self.method, JointMethod) and not is_expert(self.leaf)


@dataclass(frozen=True)
class CompressedMatrix:
    """A compressed matrix, its layer for the report, and its new bias [O] if that has changed."""

    result: Result[Any]
    layer: Layer
    bias: torch.Tensor | None = None


def independent_parts(group: Sequence[Matrix]) -> list[list[Matrix]]:
    """Split a group of matrices into the smallest parts that give the same result as the whole group."""
    parts: dict[int, list[Matrix]] = {}
    for matrix in group:
        parts.setdefault(id(matrix.method) if matrix.is_joint else id(matrix), []).append(matrix)
    return list(parts.values())


def compress_matrices(
    block: nn.Module, group: Sequence[Matrix], statistics: InputStatistics, correction: float = 0.0
) -> dict[str, CompressedMatrix]:
    """Compress matrices that share their inputs, together if one joint method is for several of them.

    Matrices with a bias that may change are compressed for inputs without their mean, and their biases keep the mean of
    the original's outputs.

    Args:
        block: the block.
        group: the matrices.
        statistics: of their inputs; emptied.
        correction: strength of error propagation.

    Returns:
        Results by name in the block.
    """
    parts = [part for part in independent_parts(group) if all(one.bias is not None for one in part)]
    biased = {matrix.leaf for part in parts for matrix in part}
    if statistics.hessian is None or statistics.mean is None or statistics.count < len(statistics.mean):
        biased.clear()
    plain = [matrix for matrix in group if matrix.leaf not in biased]
    cross = statistics.cross if biased else None
    done = _compressed_alike(block, plain, statistics, correction) if plain else {}
    if biased:
        statistics.cross = cross
        statistics.centre()
        free = [matrix for matrix in group if matrix.leaf in biased]
        for leaf, one in _compressed_alike(block, free, statistics, correction).items():
            done[leaf] = _with_bias(next(m for m in free if m.leaf == leaf), block.get_submodule(leaf), statistics, one)
    return done


def _with_bias(
    matrix: Matrix, module: nn.Module, statistics: InputStatistics, done: CompressedMatrix
) -> CompressedMatrix:
    """Return a compressed matrix with the bias that keeps the mean of the original's outputs."""
    if not done.result.comparable or statistics.mean is None or matrix.bias is None:
        return done
    weight, bias = weight_of(module), module.bias
    expected = statistics.mean if statistics.shift is None else statistics.mean + statistics.shift
    assert isinstance(bias, torch.Tensor)
    change = weight.float() @ expected - done.result.tensor.dequantize(torch.float32) @ statistics.mean
    return replace(done, bias=(bias + change).to(matrix.bias))


def _compressed_alike(
    block: nn.Module, group: Sequence[Matrix], statistics: InputStatistics, correction: float
) -> dict[str, CompressedMatrix]:
    """Compress matrices by the statistics as they are; see compress_matrices."""
    trim_memory()
    modules = {matrix.leaf: block.get_submodule(matrix.leaf) for matrix in group}
    weights = _wanted(group, modules, statistics, correction)
    together: dict[str, tuple[Result[Any], float]] = {}
    for part in independent_parts(group):
        if len(part) > 1:
            started = time.perf_counter()
            results = _joint(part[0].method, {one.leaf: weights[one.leaf] for one in part}, statistics)
            seconds = (time.perf_counter() - started) / len(part)
            together |= {leaf: (result, seconds) for leaf, result in results.items()}
    compressed = {}
    for matrix in group:
        module = modules[matrix.leaf]
        if matrix.leaf in together:
            result, seconds = together[matrix.leaf]
            compressed[matrix.leaf] = _described(matrix, module, statistics, result, matrix.method.name, seconds)
        else:
            compressed[matrix.leaf] = _compressed(matrix, module, weights[matrix.leaf], statistics)
    return compressed


def _wanted(
    group: Sequence[Matrix], modules: Mapping[str, nn.Module], statistics: InputStatistics, correction: float
) -> dict[str, torch.Tensor]:
    """Return the matrices [O, I] to be compressed, corrected for earlier errors.

    They have their stored dtype, or float32 for methods that look at small parts of their values. The cross-covariance,
    which is as large as the Hessian, is deleted.
    """
    weights = [weight_of(module) for module in modules.values()]
    if statistics.cross is not None:
        weights = calibration.error_propagated(weights, statistics, correction)
        statistics.cross = None
    return {
        matrix.leaf: weight if getattr(matrix.method, "unrounded", False) else weight.to(matrix.dtype)
        for matrix, weight in zip(group, weights, strict=True)
    }


def _joint(method: Method, weights: Mapping[str, torch.Tensor], statistics: InputStatistics) -> dict[str, Result[Any]]:
    """Compress several matrices together; return nothing if the statistics cannot be used."""
    assert isinstance(method, JointMethod)
    if statistics.hessian is None or statistics.count < len(statistics.hessian):
        return {}
    try:
        return method.compress_together(weights, statistics.hessian)
    except HessianError:
        return {}


def _compressed(
    matrix: Matrix, module: nn.Module, weight: torch.Tensor, statistics: InputStatistics
) -> CompressedMatrix:
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
) -> CompressedMatrix:
    """Add a layer for the report. Raises SqueezeError if the result is not finite."""
    weight = weight_of(module)
    values = result.tensor.dequantize(torch.float32)
    if not torch.isfinite(values).all():
        raise SqueezeError(f"{matrix.name}: became infinite: its weights are too large for the dtype of its scales")
    layer = Layer(
        name=matrix.stored_name,
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
    return CompressedMatrix(result, layer)


def _sparsity(name: str, tensor: Any, values: torch.Tensor) -> dict[str, Any]:
    """Return the report's entries on zeros, of the matrix without additions in another form."""
    pattern = getattr(tensor, "pattern", None)
    if pattern is None:
        return {"sparsity": float((values == 0).float().mean())}
    sparse = tensor.sparse().to(values.dtype)
    wrong = violations(pattern, sparse)
    assert not wrong, f"{name}: {wrong} groups do not hold to {pattern}"
    return {"sparsity": float((sparse == 0).float().mean()), "pattern": str(pattern)}


def _result(method: Method, weight: torch.Tensor, statistics: InputStatistics) -> tuple[Result[Any], str]:
    """Compress a matrix with its method, or with the fallback if the statistics cannot be used; also return the
    method's name."""
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
            way = f"calibrated on all {statistics.count} tokens of the layer"
            return replace(result, notes=(*result.notes, f"{reason}: {way}")), method.name
    other = method.fallback()
    result = other.compress(weight)
    way = f"{other.name} instead" if other.name != method.name else "made without statistics"
    return replace(result, notes=(*result.notes, f"{reason}: {way}")), other.name


BINS = 48
_WIDTH = 4.0  # standard deviations to each side
_PIECE = 1 << 20  # weights counted at a time, so that float32 counts exactly


def histogram(original: torch.Tensor, result: torch.Tensor) -> dict[str, Any]:
    """Count the weights [O, I] before and after compression in BINS equal bins.

    Bins are from -bound to bound; values beyond are in the outermost bins. Weights that are 0 are in no bin, and
    counted separately.

    Returns:
        {"bound": 4 standard deviations of `original`, "before": [BINS], "after": [BINS], "zeros": [before, after]}.
    """
    spread = float(original.float().std(correction=0))
    bound = _WIDTH * spread or float(original.abs().max()) or 1.0
    (first, zeros), (second, more) = _counts(original, bound), _counts(result, bound)
    return {"bound": float(f"{bound:.6g}"), "before": first, "after": second, "zeros": [zeros, more]}


def _counts(values: torch.Tensor, bound: float) -> tuple[list[int], int]:
    counts, zeros = torch.zeros(BINS, dtype=torch.int64, device=values.device), 0
    for piece in values.reshape(-1).split(_PIECE):
        counts += torch.histc(piece.float().clamp(-bound, bound), BINS, -bound, bound).to(torch.int64)
        zeros += len(piece) - int(piece.count_nonzero())
    counts[BINS // 2] -= zeros  # which begins at 0
    return counts.tolist(), zeros
