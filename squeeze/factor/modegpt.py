"""Pairs of matrices with fewer channels between them: smaller dense shapes, as MoDeGPT has them.

MoDeGPT (Lin et al. 2024, arXiv 2408.09632) takes apart what lies between two matrices of a block: channels of the MLP
(Nystrom), rotary pairs of queries and keys (CR), and the values of each head (SVD). Each function here ranks what there
is to leave out, with the rise of the loss that a Curvature predicts for every number left out, and makes the pair for
one of them. Matrices keep their shapes, and what is left out of them is 0: `RowColumnPruning` stores the rest.
Published are `leverage` for channels and G = I elsewhere: recipes/plan/modegpt.py.

Instead of ridge leverage scores channels go by backward elimination, each by what it costs once the remaining ones have
made up for it (the optimal brain surgeon of Hassibi and Stork 1992 for columns, as ZipLM, Kurtic et al. 2023, arXiv
2302.04089); `leverage` gives the scores of MoDeGPT.
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
PAIRS = "pairs of matrices are taken apart in {known}, not {kind}"  # said of an architecture that is not known


@dataclass(frozen=True, kw_only=True)
class RowColumnPruning:
    """Leaves out rows and columns that are all 0. always: store a matrix without any in the same form."""

    name: ClassVar[str] = "sliced"
    needs_hessian: ClassVar[bool] = False

    always: bool = False

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Form]:
        """As Method.compress."""
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
    """What is left out first, and what it costs. order: int64 [N], units from the first to go; costs: float64 [N + 1],
    the predicted rise in nats a token when so many are gone, from 0."""

    order: torch.Tensor
    costs: torch.Tensor


def leverage(moments: torch.Tensor, ridge: float = 1e-3) -> torch.Tensor:
    """float64 [N]: the ridge leverage score of each channel, diag(C (C + ridge mean)^-1)."""
    wide = moments.double()
    damped = wide.clone()
    damped.diagonal().add_(ridge * wide.diagonal().mean())
    scores: torch.Tensor = torch.linalg.solve(damped, wide).diagonal()
    return scores


def channels(
    down: torch.Tensor, seen: Curvature, most: int, order: torch.Tensor | None = None, group: int = 8
) -> EliminationOrder:
    """Inputs [I] of the second matrix [O, I] of an MLP, at most `most` of them, the cheapest first.

    order: one that is given, such as by leverage. group: channels that go at a time; the costs within it rise evenly.
    Each cost counts what the remaining inputs make up for.
    """
    weight, inverse = down.double(), torch.linalg.inv(_damped(seen.inputs))
    weighted = seen.outputs.double() @ weight  # G W, kept up to date
    alive = torch.ones(weight.shape[1], dtype=torch.bool)
    gone, costs = torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.float64)
    while len(gone) < most:
        count = min(group, most - len(gone))
        price = (weighted * weight).sum(0) / inverse.diagonal().clamp(min=1e-300)
        cheapest = price.masked_fill(~alive, torch.inf).topk(count, largest=False).indices
        out = cheapest if order is None else order[len(gone) : len(gone) + count]
        spread = torch.linalg.solve(inverse[out][:, out], inverse[out])  # [n, I]
        cost = 0.5 * (weight[:, out].T @ weighted[:, out] * torch.linalg.inv(inverse[out][:, out])).sum()
        costs = torch.cat([costs, costs[-1] + cost * torch.arange(1, count + 1) / count])
        inverse = inverse - inverse[:, out] @ spread
        weight, weighted = weight - weight[:, out] @ spread, weighted - weighted[:, out] @ spread
        inverse[out, out] = 1
        alive[out] = False
        gone = torch.cat([gone, out])
    return EliminationOrder(gone, costs)


def without_inputs(down: torch.Tensor, seen: Curvature, gone: torch.Tensor) -> torch.Tensor:
    """A matrix [O, I] without some inputs, whose sum the others make up for; columns of what is gone are 0."""
    keep = torch.ones(down.shape[1], dtype=torch.bool)
    keep[gone] = False
    inner, wide = _damped(seen.inputs), down.double()
    made_up = torch.linalg.solve(inner[keep][:, keep], inner[keep][:, ~keep])
    out = torch.zeros_like(down)
    out[:, keep] = (wide[:, keep] + wide[:, ~keep] @ made_up.T).to(down.dtype)
    return out


def without_channels(
    matrices: Mapping[str, torch.Tensor], seen: Curvature, gone: torch.Tensor
) -> dict[str, torch.Tensor]:
    """gate [F, H], up [F, H] and down [H, F] of an MLP without some channels, whose sum the others make up for."""
    out = {name: matrix.clone() for name, matrix in matrices.items() if name != "down"}
    for matrix in out.values():
        matrix[gone] = 0
    return {**out, "down": without_inputs(matrices["down"], seen, gone)}


def _damped(moments: torch.Tensor) -> torch.Tensor:
    wide = moments.double().clone()
    wide.diagonal().add_(_DAMPING * wide.diagonal().mean() + 1e-30)
    return wide


def pair_costs(q: torch.Tensor, k: torch.Tensor, seen_q: Curvature, seen_k: Curvature, size: int) -> torch.Tensor:
    """float64 [key heads, size / 2]: what leaving out each rotary pair costs. q: [heads * size, H]; k: [key heads *
    size, H]. What a pair adds to scores is lost from queries and keys alike, so it is the geometric mean of the costs
    of either."""
    groups = len(k) // size
    ours, theirs = _row_costs(q, seen_q), _row_costs(k, seen_k)
    by_query = ours.view(groups, -1, 2, size // 2).sum((1, 2))  # [key heads, pairs]
    by_key = theirs.view(groups, 2, size // 2).sum(1)
    return (by_query * by_key).clamp(min=0).sqrt()


def rotary_pairs(
    q: torch.Tensor, k: torch.Tensor, seen_q: Curvature, seen_k: Curvature, size: int
) -> tuple[torch.Tensor, EliminationOrder]:
    """Pairs of channels that the rotary embedding turns together, in all queries of a key head, cheapest first: units
    int64 [key heads * size / 2, 2], (key head, pair), and the path through them. Arguments as of pair_costs."""
    price = pair_costs(q, k, seen_q, seen_k, size).flatten()
    order = price.argsort()
    units = torch.stack([order // (size // 2), order % (size // 2)], 1)
    return units, EliminationOrder(order, torch.cat([price.new_zeros(1), price[order].cumsum(0)]))


def _row_costs(weight: torch.Tensor, seen: Curvature) -> torch.Tensor:
    """float64 [O]: the predicted cost of each row's loss, cross terms aside."""
    wide = weight.double()
    return 0.5 * seen.outputs.double().diagonal() * ((wide @ seen.inputs.double()) * wide).sum(1)


def without_pairs(
    q: torch.Tensor, k: torch.Tensor, units: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k without some of the pairs (key head, pair)."""
    groups, half = len(k) // size, size // 2
    q, k = q.clone(), k.clone()
    queries, keys = q.view(groups, -1, 2, half, q.shape[1]), k.view(groups, 2, half, k.shape[1])
    for group, pair in units.tolist():
        queries[group, :, :, pair] = 0
        keys[group, :, pair] = 0
    return q, k


@dataclass
class HeadValues:
    """The values of one key head, rotated so that the first of them matter most. v: [size, H]; o: [O, heads, size] of
    the query heads that read them; losses: float64 [size], what leaving out each costs, largest first; basis, turn:
    [size, size], inverses of each other: turn times the head's part of the matrix is v."""

    v: torch.Tensor
    o: torch.Tensor
    losses: torch.Tensor
    basis: torch.Tensor
    turn: torch.Tensor


def values(v: torch.Tensor, o: torch.Tensor, seen: Curvature, size: int, damping: float = 0.01) -> list[HeadValues]:
    """Of each key head. v: [key heads * size, H] with its Curvature, whose outputs are damped; o: [O, heads * size]."""
    inner, _ = root(seen.inputs, _DAMPING)
    heads = []
    for i, rows in enumerate(torch.split(v.double(), size)):
        span = slice(i * size, (i + 1) * size)
        outer, inverse = root(seen.outputs[span, span], damping)
        left, singular, _ = torch.linalg.svd(outer.T @ rows @ inner, full_matrices=False)
        readers = o.double().view(len(o), len(v) // size, -1, size)[:, i]
        basis = inverse.T @ left  # rows = basis @ (left^T outer^T rows)
        turn = left.T @ outer.T
        heads.append(HeadValues(turn @ rows, readers @ basis, 0.5 * singular.square(), basis, turn))
    return heads


def prices(head: HeadValues, held: Curvature, number: int) -> torch.Tensor:
    """float64 [size]: what leaving out each value of key head `number` costs by another Curvature of its matrix."""
    span = slice(number * len(head.v), (number + 1) * len(head.v))
    outputs, inputs = held.outputs[span, span].double(), held.inputs.double()
    return 0.5 * ((outputs @ head.basis) * head.basis).sum(0) * ((head.v @ inputs) * head.v).sum(1)


def with_values(
    v: torch.Tensor, o: torch.Tensor, heads: list[HeadValues], ranks: list[int], bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """v, o and the bias of v with only the first `ranks` values of each key head. Rows and columns are scaled alike."""
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
            turned = head.turn[:rank] @ bias[i * size : (i + 1) * size].double()
            new_bias[rows] = (turned / scale).to(bias.dtype)
    return new_v, new_o, new_bias


@dataclass(frozen=True)
class EditedCheckpoint(Checkpoint):
    """A checkpoint in which some tensors have been replaced by others of their shape."""

    replaced: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def load(self, names: Any, device: torch.device | str = "cpu", strict: bool = True) -> dict[str, torch.Tensor]:
        requested = list(names)
        edited = {name: self.replaced[name].to(device) for name in requested if name in self.replaced}
        return edited | super().load([name for name in requested if name not in edited], device, strict)
