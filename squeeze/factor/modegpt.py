"""Pairs of matrices with fewer channels between them, as in MoDeGPT: smaller dense matrices.

MoDeGPT (Lin et al. 2024, arXiv 2408.09632) reduces what is between two matrices of a block. That is channels of the MLP
(Nystrom), rotary pairs of queries and keys (CR), and the values of each head (SVD). Each function here ranks what can
be left out by the rise of the loss that a Curvature predicts, and makes the pair for a number left out. Matrices keep
their shapes, with 0 for what is left out; `RowColumnPruning` stores the rest. The published method uses `leverage` for
channels and G = I elsewhere: recipes/plan/modegpt.py.

Channels are ranked by backward elimination instead of ridge leverage scores: each by its cost once the remaining ones
have compensated for it. That is the optimal brain surgeon (Hassibi and Stork 1992) for columns, as in ZipLM (Kurtic et
al. 2023, arXiv 2302.04089). `leverage` gives MoDeGPT's scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.method import Result
from squeeze.factor.curvature import Curvature
from squeeze.factor.form import Form, packed_mask
from squeeze.factor.lowrank import root
from squeeze.factor.matrices import Dense, RowColumnPruned

__all__ = ["EditedCheckpoint", "EliminationOrder", "RowColumnPruning", "channels", "leverage", "rotary_pairs", "values"]

_DAMPING = 1e-4
PAIRS = "expected an architecture with known pairs of matrices ({known}), got {kind}"


@dataclass(frozen=True, kw_only=True)
class RowColumnPruning:
    """Store a matrix W (out, in) without its rows and columns that are 0. `always`: use this form for every matrix."""

    name: ClassVar[str] = "sliced"
    needs_hessian: ClassVar[bool] = False

    always: bool = False

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Form]:
        """Store a weight; see Method.compress."""
        rows, columns = (weight != 0).any(1), (weight != 0).any(0)
        if rows.all() and columns.all() and not self.always:
            return Result(Dense(weight.contiguous()), comparable=False)
        size = torch.tensor(weight.shape, dtype=torch.int32, device=weight.device)
        pruned = RowColumnPruned(weight[rows][:, columns].contiguous(), packed_mask(rows), packed_mask(columns), size)
        return Result(pruned, comparable=False)

    def fallback(self) -> "RowColumnPruning":
        return self


@dataclass(frozen=True)
class EliminationOrder:
    """The order in which units are left out, and its costs.

    Attributes:
        order: units, the first to leave out first, int64 [N].
        costs: predicted rise of the loss in nats a token when n units are left out, float64 [N + 1].
    """

    order: torch.Tensor
    costs: torch.Tensor


def leverage(moments: torch.Tensor, ridge: float = 1e-3) -> torch.Tensor:
    """Return the ridge leverage score of each channel, diag(C (C + ridge mean)^-1), float64 [N]."""
    wide = moments.double()
    damped = wide.clone()
    damped.diagonal().add_(ridge * wide.diagonal().mean())
    scores: torch.Tensor = torch.linalg.solve(damped, wide).diagonal()
    return scores


def channels(
    down: torch.Tensor, curvature: Curvature, limit: int, order: torch.Tensor | None = None, group: int = 8
) -> EliminationOrder:
    """Rank the inputs of the second matrix of an MLP for elimination, the cheapest first.

    Each cost takes into account that the remaining inputs compensate.

    Args:
        down: the matrix [O, I].
        curvature: its moments.
        limit: most inputs to leave out.
        order: a given order, such as by leverage.
        group: channels left out at a time; costs within a group rise evenly.
    """
    weight, inverse = down.double(), torch.linalg.inv(_damped(curvature.inputs))
    weighted = curvature.outputs.double() @ weight  # G W, kept up to date
    alive = torch.ones(weight.shape[1], dtype=torch.bool)
    removed, costs = torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.float64)
    while len(removed) < limit:
        count = min(group, limit - len(removed))
        price = (weighted * weight).sum(0) / inverse.diagonal().clamp(min=1e-300)
        cheapest = price.masked_fill(~alive, torch.inf).topk(count, largest=False).indices
        out = cheapest if order is None else order[len(removed) : len(removed) + count]
        spread = torch.linalg.solve(inverse[out][:, out], inverse[out])  # [n, I]
        cost = 0.5 * (weight[:, out].T @ weighted[:, out] * torch.linalg.inv(inverse[out][:, out])).sum()
        costs = torch.cat([costs, costs[-1] + cost * torch.arange(1, count + 1) / count])
        inverse = inverse - inverse[:, out] @ spread
        weight, weighted = weight - weight[:, out] @ spread, weighted - weighted[:, out] @ spread
        inverse[out, out] = 1
        alive[out] = False
        removed = torch.cat([removed, out])
    return EliminationOrder(removed, costs)


def without_inputs(down: torch.Tensor, curvature: Curvature, removed: torch.Tensor) -> torch.Tensor:
    """Return a matrix [O, I] without some inputs, for which the others compensate; their columns are 0."""
    keep = torch.ones(down.shape[1], dtype=torch.bool)
    keep[removed] = False
    inner, wide = _damped(curvature.inputs), down.double()
    compensation = torch.linalg.solve(inner[keep][:, keep], inner[keep][:, ~keep])
    out = torch.zeros_like(down)
    out[:, keep] = (wide[:, keep] + wide[:, ~keep] @ compensation.T).to(down.dtype)
    return out


def without_channels(
    matrices: Mapping[str, torch.Tensor], curvature: Curvature, removed: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return gate [F, H], up [F, H] and down [H, F] of an MLP without some channels, for which the others
    compensate."""
    out = {name: matrix.clone() for name, matrix in matrices.items() if name != "down"}
    for matrix in out.values():
        matrix[removed] = 0
    return {**out, "down": without_inputs(matrices["down"], curvature, removed)}


def _damped(moments: torch.Tensor) -> torch.Tensor:
    wide = moments.double().clone()
    wide.diagonal().add_(_DAMPING * wide.diagonal().mean() + 1e-30)
    return wide


def pair_costs(q: torch.Tensor, k: torch.Tensor, seen_q: Curvature, seen_k: Curvature, size: int) -> torch.Tensor:
    """Return the cost of leaving out each rotary pair, float64 [key heads, size / 2].

    A pair's contribution to scores is lost from queries and keys alike, so the cost is the geometric mean of both.

    Args:
        q: queries' matrix [heads * size, H].
        k: keys' matrix [key heads * size, H].
        seen_q: moments of q.
        seen_k: moments of k.
        size: of a head.
    """
    groups = len(k) // size
    query_costs, key_costs = _row_costs(q, seen_q), _row_costs(k, seen_k)
    by_query = query_costs.view(groups, -1, 2, size // 2).sum((1, 2))  # [key heads, pairs]
    by_key = key_costs.view(groups, 2, size // 2).sum(1)
    return (by_query * by_key).clamp(min=0).sqrt()


def rotary_pairs(
    q: torch.Tensor, k: torch.Tensor, seen_q: Curvature, seen_k: Curvature, size: int
) -> tuple[torch.Tensor, EliminationOrder]:
    """Rank the pairs of channels that the rotary embedding rotates together, in all queries of a key head.

    See pair_costs for the arguments.

    Returns:
        Units (key head, pair), int64 [key heads * size / 2, 2], and their order of elimination.
    """
    price = pair_costs(q, k, seen_q, seen_k, size).flatten()
    order = price.argsort()
    units = torch.stack([order // (size // 2), order % (size // 2)], 1)
    return units, EliminationOrder(order, torch.cat([price.new_zeros(1), price[order].cumsum(0)]))


def _row_costs(weight: torch.Tensor, curvature: Curvature) -> torch.Tensor:
    """Return the predicted cost of losing each row, float64 [O], without cross terms."""
    wide = weight.double()
    return 0.5 * curvature.outputs.double().diagonal() * ((wide @ curvature.inputs.double()) * wide).sum(1)


def without_pairs(
    q: torch.Tensor, k: torch.Tensor, units: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return q and k without some of the pairs (key head, pair)."""
    groups, half = len(k) // size, size // 2
    q, k = q.clone(), k.clone()
    queries, keys = q.view(groups, -1, 2, half, q.shape[1]), k.view(groups, 2, half, k.shape[1])
    for group, pair in units.tolist():
        queries[group, :, :, pair] = 0
        keys[group, :, pair] = 0
    return q, k


@dataclass
class HeadValues:
    """The values of one key head, rotated so that the first matter most.

    Attributes:
        v: the head's part of v_proj, rotated [size, H].
        o: the part of o_proj of the query heads that read it [O, heads, size].
        losses: cost of leaving out each value, descending, float64 [size].
        basis, rotation: inverses of each other [size, size]; rotation times the head's part of the matrix is v.
    """

    v: torch.Tensor
    o: torch.Tensor
    losses: torch.Tensor
    basis: torch.Tensor
    rotation: torch.Tensor


def values(
    v: torch.Tensor, o: torch.Tensor, curvature: Curvature, size: int, damping: float = 0.01
) -> list[HeadValues]:
    """Return the rotated values of each key head.

    Args:
        v: v_proj [key heads * size, H].
        o: o_proj [O, heads * size].
        curvature: moments of v_proj.
        size: of a head.
        damping: of the output moments.
    """
    inner, _ = root(curvature.inputs, _DAMPING)
    heads = []
    for i, rows in enumerate(torch.split(v.double(), size)):
        span = slice(i * size, (i + 1) * size)
        outer, inverse = root(curvature.outputs[span, span], damping)
        left, singular, _ = torch.linalg.svd(outer.T @ rows @ inner, full_matrices=False)
        readers = o.double().view(len(o), len(v) // size, -1, size)[:, i]
        basis = inverse.T @ left  # rows = basis @ (left^T outer^T rows)
        rotation = left.T @ outer.T
        heads.append(HeadValues(rotation @ rows, readers @ basis, 0.5 * singular.square(), basis, rotation))
    return heads


def prices(head: HeadValues, curvature: Curvature, number: int) -> torch.Tensor:
    """Return the cost of leaving out each value of key head `number` under other moments of its matrix, float64
    [size]."""
    span = slice(number * len(head.v), (number + 1) * len(head.v))
    outputs, inputs = curvature.outputs[span, span].double(), curvature.inputs.double()
    return 0.5 * ((outputs @ head.basis) * head.basis).sum(0) * ((head.v @ inputs) * head.v).sum(1)


def with_values(
    v: torch.Tensor, o: torch.Tensor, heads: list[HeadValues], ranks: list[int], bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return v, o and the bias of v with only the first `ranks` values of each key head.

    Rows and columns are scaled alike.

    Args:
        v: v_proj [key heads * size, H].
        o: o_proj [O, heads * size].
        heads: rotated values of each key head.
        ranks: values to keep of each.
        bias: of v_proj, or None.
    """
    size = len(v) // len(heads)
    new_v, new_o = torch.zeros_like(v), torch.zeros_like(o)
    new_bias = None if bias is None else torch.zeros_like(bias)
    columns = new_o.view(len(o), len(heads), -1, size)
    for i, (head, rank) in enumerate(zip(heads, ranks, strict=True)):
        scale = (head.v[:rank].norm(dim=1) / head.o[..., :rank].norm(dim=(0, 1)).clamp(min=1e-30)).sqrt()
        scale = scale.clamp(min=1e-30)
        rows = slice(i * size, i * size + rank)
        new_v[rows] = (head.v[:rank] / scale[:, None]).to(v.dtype)
        columns[:, i, :, :rank] = (head.o[..., :rank] * scale).to(o.dtype)
        if bias is not None and new_bias is not None:
            turned = head.rotation[:rank] @ bias[i * size : (i + 1) * size].double()
            new_bias[rows] = (turned / scale).to(bias.dtype)
    return new_v, new_o, new_bias


@dataclass(frozen=True)
class EditedCheckpoint(Checkpoint):
    """A checkpoint in which some tensors are replaced by others of the same shape."""

    replaced: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def load(self, names: Any, device: torch.device | str = "cpu", strict: bool = True) -> dict[str, torch.Tensor]:
        requested = list(names)
        edited = {name: self.replaced[name].to(device) for name in requested if name in self.replaced}
        return edited | super().load([name for name in requested if name not in edited], device, strict)
