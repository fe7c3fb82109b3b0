"""Refinement of a quantised matrix under its Hessian: the best scales for the codes, then the best code for each
column.

Neither step raises tr((W - Q) H (W - Q)^T). Cyclic minimisation over columns is CDQuant's (Nair and Suggala 2024, arXiv
2406.17542); the scales are a least squares problem for each row.
"""

from typing import TYPE_CHECKING

import torch

from squeeze.quant import columns
from squeeze.quant.block_grid import BlockGrid, BlockParams, moved
from squeeze.quant.codebooks import Codebook, NestedCodebook
from squeeze.quant.grid import ROWS, QParams, Quantizer, stored
from squeeze.quant.lattice import LatticeGrid, descend as descend_points
from squeeze.quant.scales import round_scale

if TYPE_CHECKING:
    from squeeze.quant.method import GridMethod

__all__ = ["refine"]

_BLOCK = 128
_RIDGE = 1e-4  # of a row's mean curvature


def refine(
    method: "GridMethod",
    weight: torch.Tensor,
    hessian: torch.Tensor,
    codes: torch.Tensor,
    params: QParams,
    dtype: torch.dtype,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, QParams]:
    """Return better codes [O, I] and parameters [O, G].

    Args:
        method: the method, which has the grid.
        weight: W [O, I], float32.
        hessian: H [I, I].
        codes: uint8 [O, I].
        params: parameters [O, G].
        dtype: dtype in which scales are stored.
        mask: bool [O, I], the codes that may change; None for all.
    """
    quantizer = method.as_quantizer()
    if isinstance(quantizer, BlockGrid):
        assert isinstance(params, BlockParams)
        params = quantizer.refit(weight, hessian, codes, params)
    elif quantizer.free_scales:
        params = _scales(method, weight, hessian, codes, params, dtype)
    elif isinstance(quantizer, NestedCodebook):
        params = quantizer.nest(_scales(method, weight, hessian, codes, params, torch.float32))
    elif isinstance(quantizer, Codebook):
        params = _narrow_scales(quantizer, weight, hessian, codes, params, method.effective_group_size(codes.shape[1]))
    return _descend(method, weight, hessian, codes, params, mask), params


def _scales(
    method: "GridMethod",
    weight: torch.Tensor,
    hessian: torch.Tensor,
    codes: torch.Tensor,
    params: QParams,
    dtype: torch.dtype,
) -> QParams:
    """Return the scales that minimise each row's error with its codes, if they are better than the present ones."""
    planes, target = _unscaled(method, codes, params).to(hessian.dtype), weight @ hessian
    before = params.scale.movedim(0, 1).reshape(len(weight), -1)  # [O, P G]
    size = method.effective_group_size(weight.shape[1])
    rows = zip(*(torch.split(t, ROWS, dim) for t, dim in ((planes, 1), (target, 0), (before, 0))), strict=True)
    best = torch.cat([_best_scales(p, t, b, hessian, size, dtype) for p, t, b in rows])
    best = best.reshape(len(weight), len(planes), -1).movedim(1, 0).contiguous()
    return QParams(best, params.zero, params.factor)


def _best_scales(
    planes: torch.Tensor,
    target: torch.Tensor,
    before: torch.Tensor,
    hessian: torch.Tensor,
    size: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the best scales of some rows, float32 [O, P G].

    Args:
        planes: values of the codes before scaling [P, O, I].
        target: W H [O, I].
        before: present scales [O, P G].
        hessian: H [I, I].
        size: inputs of a group.
        dtype: dtype in which scales are stored.
    """
    rows, inputs = target.shape
    starts = range(0, inputs, size)
    groups = len(starts)
    pad = groups * size - inputs
    gram = torch.empty((rows, len(planes) * groups, len(planes) * groups), dtype=torch.float64, device=target.device)
    right = torch.empty((rows, len(planes) * groups), dtype=torch.float64, device=target.device)

    def by_group(values: torch.Tensor) -> torch.Tensor:
        whole = torch.nn.functional.pad(values, (0, pad)) if pad else values
        return whole.reshape(rows, groups, size).sum(-1).double()

    for p, plane in enumerate(planes):
        right[:, p * groups : (p + 1) * groups] = by_group(plane * target)
        for g, start in enumerate(starts):
            product = plane[:, start : start + size] @ hessian[start : start + size]
            for q, other in enumerate(planes):
                gram[:, p * groups + g, q * groups : (q + 1) * groups] = by_group(product * other)
    before = before.double()
    ridge = _RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] + 1e-30
    damped = gram + ridge * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    after = torch.linalg.solve(damped, right + ridge[:, :, 0] * before)
    after = torch.where(after > 0.1 * before, after, before)
    after = stored(after.float(), dtype).double()

    def error(scale: torch.Tensor) -> torch.Tensor:
        return torch.einsum("oi,oij,oj->o", scale, gram, scale) - 2 * (right * scale).sum(1)

    return torch.where((error(after) < error(before))[:, None], after, before).float()


def _narrow_scales(
    quantizer: Codebook,
    weight: torch.Tensor,
    hessian: torch.Tensor,
    codes: torch.Tensor,
    params: QParams,
    size: int,
) -> QParams:
    """Return better scales of one byte: group after group the nearest to the optimum with the others fixed."""
    level = quantizer.codebook[0].to(codes.device, hessian.dtype)[codes.long()]
    scale = params.scale.clone()
    values = level * scale[0].repeat_interleave(size, 1)
    pull = (weight - values) @ hessian  # [O, I], half the negative gradient

    def rounded(values: torch.Tensor) -> torch.Tensor:
        return round_scale(quantizer.scale_kind, values, params.factor)

    for group in range(scale.shape[2]):
        span = slice(group * size, (group + 1) * size)
        scale[:, :, group] = moved(scale[:, :, group], level[None, :, span], pull, hessian, span, rounded)
    return QParams(scale, params.zero, params.factor)


def _unscaled(method: "GridMethod", codes: torch.Tensor, params: QParams) -> torch.Tensor:
    """Return the values of codes before their scales, [P, O, I]."""
    quantizer, size = method.as_quantizer(), method.effective_group_size(codes.shape[1])
    if quantizer.codebook is not None:
        return quantizer.codebook.to(codes.device)[:, codes.long()]
    return _decoded(quantizer, codes, QParams(torch.ones_like(params.scale), params.zero), size)[None]


def _decoded(quantizer: Quantizer, codes: torch.Tensor, params: QParams, size: int) -> torch.Tensor:
    """Return the values of codes [O, I] in groups of `size` inputs."""
    groups = enumerate(torch.split(codes, size, 1))
    return torch.cat([quantizer.decode(group, params[:, g]) for g, group in groups], 1)


def _descend(
    method: "GridMethod",
    weight: torch.Tensor,
    hessian: torch.Tensor,
    codes: torch.Tensor,
    params: QParams,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Round every column to the best code with the others fixed, in one pass."""
    quantizer, size = method.as_quantizer(), method.effective_group_size(weight.shape[1])
    if isinstance(quantizer, LatticeGrid):
        assert isinstance(params, BlockParams)
        return descend_points(quantizer, weight, hessian, codes, params, mask)
    values = _decoded(quantizer, codes, params, size).to(hessian.dtype)
    pull = (weight - values) @ hessian  # [O, I], half the negative gradient
    if weight.device.type == "cpu" and (levels := quantizer.levels_of(params)):
        return columns.descend(codes, values, pull, hessian, size, levels, mask)
    by_column, curvature = codes.T.contiguous(), hessian.diagonal().tolist()  # columns are contiguous
    for first in range(0, weight.shape[1], _BLOCK):
        last = min(first + _BLOCK, weight.shape[1])
        local, before = pull[:, first:last].T.contiguous(), values[:, first:last].T.contiguous()
        after = before.clone()
        for j in range(first, last):
            if curvature[j] <= 0:
                continue
            mine, column = params[:, j // size], after[j - first]
            code = quantizer.encode(torch.add(column, local[j - first], alpha=1 / curvature[j])[:, None], mine)
            if mask is not None:
                code = torch.where(mask[:, j, None], code, by_column[j, :, None])
            fresh = quantizer.decode(code, mine)[:, 0]
            local[j - first + 1 :].addr_(hessian[j, j + 1 : last], fresh - column, alpha=-1)
            after[j - first], by_column[j] = fresh, code[:, 0]
        pull[:, last:].addmm_((after - before).T, hessian[first:last, last:], alpha=-1)
    return by_column.T.contiguous()
