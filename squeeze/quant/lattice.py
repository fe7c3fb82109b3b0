"""The types iq2_xxs to iq3_s of GGUF: magnitudes of 8 or 4 weights are a point of a table, with a sign for each weight.

A point's weights are rounded together: GPTQ spreads the error of a whole point, and refinement exchanges points. Let U
be the factor of the inverse Hessian. The error e = (w - q) U_pp^-1 of the weights p is spread to later ones by e U_pr.
With one weight to a point that is GPTQ; vectors of weights are GPTVQ's (van Baalen et al. 2024, arXiv 2402.15319).
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from squeeze.quant.block_grid import BlockGrid, BlockParams, half, inverse
from squeeze.quant.columns import Levels
from squeeze.quant.grid import QParams

__all__ = ["LatticeGrid", "descend", "point_order", "sweep"]

_SHARES = (1.05, 0.98, 0.92, 0.86, 0.8, 0.74, 0.66, 0.56)  # ranges tried, as shares of the whole one
_NEAREST = {1: 6, 2: 3}  # points whose error is computed with the correlations of their weights; each of one, or two
_TURNS = 3  # weights whose sign is turned so that an even number is negative
_ROWS = 1 << 16  # points compared with the table at once


@dataclass(frozen=True)
class LatticeGrid(BlockGrid):
    """A type whose weights are points of a table. Steps are odd.

    Attributes:
        dims: weights that are rounded together: those of one point, or of two that share their signs.
        unit: what the package's table is divided by.
        even: whether an even number of `dims` weights is negative, so that a file stores no sign for the last one.
        point: weights of a point; 0 for `dims`.
    """

    dims: int = 4
    unit: int = 1
    even: bool = False
    point: int = 0

    @property
    def length(self) -> int:
        """The number of weights of a point."""
        return self.point or self.dims

    @cached_property
    def points(self) -> torch.Tensor:
        """The magnitudes of the points, float32 [N, length], by the number that a file stores."""
        from gguf import GGMLQuantizationType, quants  # the tables are needed for few types only

        kind = quants._type_traits[GGMLQuantizationType[self.name.upper()]]
        kind.init_grid()  # type: ignore[no-untyped-call]
        assert kind.grid is not None
        return torch.from_numpy(kind.grid.reshape(-1, self.length).copy()) / self.unit

    @cached_property
    def _numbers(self) -> torch.Tensor:
        """The number of each point by its magnitudes as digits, int16."""
        places = self._magnitudes(self.points)
        found = torch.full((self._base**self.length,), -1, dtype=torch.int16)
        found[self._joined(places)] = torch.arange(len(places), dtype=torch.int16)
        return found

    @property
    def _base(self) -> int:
        return len(self.levels) // 2

    def _magnitudes(self, values: torch.Tensor) -> torch.Tensor:
        """Return the numbers of positive levels, int64."""
        positive = torch.tensor(self.levels[self._base :], device=values.device)
        return torch.bucketize(values, (positive[1:] + positive[:-1]) / 2)

    def _joined(self, places: torch.Tensor) -> torch.Tensor:
        return (places * self._base ** torch.arange(self.length, device=places.device)).sum(-1)

    def numbers(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the number of each point [..., n / length] of codes uint8 [..., n], int16."""
        level = self._level(codes).abs().unflatten(-1, (-1, self.length))
        return self._numbers.to(codes.device)[self._joined(self._magnitudes(level))]

    def nearest(self, values: torch.Tensor, metric: torch.Tensor) -> torch.Tensor:
        """Return signed points [N, dims] near to values [N, dims].

        Args:
            values: weights over their scales.
            metric: M [dims, dims], of the squared error (v - q) M (v - q)^T.
        """
        found = torch.empty_like(values)
        for rows in torch.arange(len(values), device=values.device).split(_ROWS):
            tried = self._tried(values[rows], metric.diagonal())
            error = values[rows, None] - tried
            least = ((error @ metric) * error).sum(2).argmin(1)
            found[rows] = tried[torch.arange(len(rows), device=values.device), least]
        return found

    def _tried(self, values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return signed points [N, K, dims] near to values [N, dims], by errors weighted with weights [dims]."""
        signs = torch.where(values < 0, -1.0, 1.0)
        if not self.even:
            return self._near(values.abs(), weights) * signs[:, None]
        cheapest = (values.abs() * weights).topk(_TURNS, 1, largest=False).indices
        is_odd, found = signs.prod(1, keepdim=True) < 0, []
        for place in cheapest.split(1, 1):
            turned = torch.where(is_odd, signs.scatter_add(1, place, -2 * signs.gather(1, place)), signs)
            found.append(self._near(values * turned, weights) * turned[:, None])
        return torch.cat(found, 1)

    def _near(self, values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return points [N, K, dims] near to values [N, dims], of which few are negative; every pair of two points."""
        points, near = self.points.to(values.device), []
        for own, mine in zip(weights.split(self.length), values.split(self.length, 1), strict=True):
            score = mine * own @ points.T - points.square() @ own / 2
            near.append(points[score.topk(_NEAREST[self.dims // self.length], 1).indices])
        if len(near) == 1:
            return near[0]
        first, second = near
        return torch.cat([first.repeat_interleave(second.shape[1], 1), second.repeat(1, first.shape[1], 1)], 2)

    def codes_of(self, signed: torch.Tensor) -> torch.Tensor:
        """Return the codes of levels, uint8."""
        levels = torch.tensor(self.levels, device=signed.device)
        return torch.bucketize(signed, (levels[1:] + levels[:-1]) / 2).to(torch.uint8)

    def _fit(self, weight: torch.Tensor, importance: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        shared = torch.ones(weight.shape[-2:]) if importance is None else importance.float().reshape(weight.shape[-2:])
        best, most = (torch.zeros(weight.shape[:-1], device=weight.device) for _ in range(2))
        largest = weight.abs().amax(-1)
        shared = shared.to(weight.device) + 1e-30
        for share in (*_SHARES, self.levels[-1]):  # the last for equal weights: all are at level 1
            level = self._rounded(weight * inverse(largest * share / self.levels[-1])[..., None], shared)
            match, size = (shared * weight * level).sum(-1), (shared * level.square()).sum(-1)
            scale = match * inverse(size)
            gain = match * scale
            best, most = torch.where(gain > most, scale, best), torch.maximum(gain, most)
        assert self.steps
        odd = tuple(map(float, range(self.steps[0], self.steps[1] + 1, 2)))
        level = self._rounded(weight * inverse(best)[..., None], shared)
        blocks, bends = (
            one.unflatten(-1, (-1, self.groups)) for one in (best, (shared * level.square()).sum(-1) + 1e-30)
        )
        factor = half(self._scales(blocks, bends, odd))
        return factor[None], self._whole((blocks * inverse(factor)[..., None])[None]).flatten(-2)

    def _rounded(self, values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the nearest levels to values [O, G, n], with errors weighted by weights [G, n] within a point."""
        points, own = values.unflatten(-1, (-1, self.length)), weights.unflatten(-1, (-1, self.length))
        table, squares = self.points.to(values.device), self.points.to(values.device).square() / 2
        found = torch.empty_like(points)
        for group in range(points.shape[1]):
            for place in range(points.shape[2]):
                mine = own[group, place]
                score = points[:, group, place].abs() * mine @ table.T - squares @ mine
                found[:, group, place] = table[score.argmax(1)]
        return torch.where(points < 0, -found, found).flatten(-2)

    def _nearest(self, weight: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None) -> torch.Tensor:
        values = (weight * inverse(scale)[..., None]).reshape(-1, self.dims)
        signed = self.nearest(values, torch.eye(self.dims, device=weight.device))
        return self.codes_of(signed).reshape(weight.shape)

    def levels_of(self, params: QParams) -> Levels | None:  # type: ignore[override]
        return None

    def _whole(self, values: torch.Tensor) -> torch.Tensor:
        assert self.steps
        low, high = self.steps
        odd: torch.Tensor = 2 * ((values - 1) / 2).round() + 1
        return odd.clamp(low, high)


def point_order(diagonal: torch.Tensor, dims: int) -> torch.Tensor:
    """Return the order [I] of inputs with the largest points first, by the diagonal of the Hessian [I]."""
    first = diagonal.unflatten(0, (-1, dims)).sum(1).argsort(descending=True, stable=True) * dims
    order: torch.Tensor = first[:, None] + torch.arange(dims, device=diagonal.device)
    return order.flatten()


def sweep(
    grid: LatticeGrid,
    weight: torch.Tensor,
    order: torch.Tensor,
    upper: torch.Tensor,
    params: BlockParams,
    block: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round all points in an order, as GPTQ does; see columns.sweep.

    Args:
        grid: the grid.
        weight: W [O, I].
        order: numbers of inputs [I], with those of a point in turn.
        upper: the factor of the inverse Hessian [I, I], in the same order.
        params: parameters [O, G].
        block: inputs between two updates of all later ones.

    Returns:
        Codes uint8 [O, I], and the weights [O, I] as they were when they were rounded.
    """
    work, dims = weight[:, order], grid.dims
    codes, groups = torch.zeros_like(work, dtype=torch.uint8), (order // grid.size).tolist()
    block = -(-block // dims) * dims
    for first in range(0, len(order), block):
        last = min(first + block, len(order))
        errors = torch.zeros((len(work), last - first), dtype=work.dtype, device=work.device)
        for j in range(first, last, dims):
            span = slice(j, j + dims)
            root = torch.linalg.solve_triangular(
                upper[span, span], torch.eye(dims, dtype=work.dtype, device=work.device), upper=True
            )
            scale = params.scale[0, :, groups[j], None].to(work.dtype)
            signed = grid.nearest((work[:, span] * inverse(scale)).float(), (root @ root.T).float())
            codes[:, span] = grid.codes_of(signed)
            error = (work[:, span] - signed.to(work.dtype) * scale) @ root
            errors[:, j - first : j - first + dims] = error
            work[:, j + dims : last] -= error @ upper[span, j + dims : last]
        work[:, last:].addmm_(errors, upper[first:last, last:], alpha=-1)
    back = order.argsort()
    return codes[:, back].contiguous(), work[:, back]


def descend(
    grid: LatticeGrid,
    weight: torch.Tensor,
    hessian: torch.Tensor,
    codes: torch.Tensor,
    params: BlockParams,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Exchange every point for the best near one with the others fixed, in one pass; see refine.py.

    Args:
        grid: the grid.
        weight: W [O, I].
        hessian: H [I, I].
        codes: uint8 [O, I].
        params: parameters [O, G].
        mask: bool [O, I], the codes that may change; None for all.
    """
    codes, dims = codes.clone(), grid.dims
    values = grid.decode(codes.unflatten(1, (-1, grid.size)), params).flatten(1).to(hessian.dtype)
    pull = (weight - values) @ hessian  # [O, I], half the negative gradient
    for j in range(0, weight.shape[1], dims):
        span = slice(j, j + dims)
        own = hessian[span, span]
        scale = params.scale[0, :, j // grid.size, None].to(hessian.dtype)
        ridge = 1e-6 * own.diagonal().mean() + 1e-30
        eye = torch.eye(dims, dtype=own.dtype, device=own.device)
        wanted = values[:, span] + torch.linalg.solve(own + ridge * eye, pull[:, span].T).T
        signed = grid.nearest((wanted * inverse(scale)).float(), own.float())
        move = signed.to(hessian.dtype) * scale - values[:, span]
        better = ((2 * pull[:, span] - move @ own) * move).sum(1) > 0
        if mask is not None:
            better &= mask[:, span].all(1)
        move[~better] = 0
        codes[:, span] = torch.where(better[:, None], grid.codes_of(signed), codes[:, span])
        values[:, span] += move
        pull -= move @ hessian[span]
    return codes
