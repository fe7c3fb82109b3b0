"""Products with TT-matrices of any number of cores, in plain torch: the definition, and the order of contraction."""

from collections.abc import Sequence
from functools import cache
from math import inf, prod

import torch

__all__ = ["cost", "multiply", "rows_to_expand"]


def cost(shapes: Sequence[Sequence[int]], from_left: bool) -> int:
    """Multiplications a row of x for cores [R, o, i, S], taken from one end or the other."""
    cores = list(shapes) if from_left else [(s, o, i, r) for r, o, i, s in reversed(shapes)]
    total, done, ring = 0, 1, cores[0][0]
    for number, (rank, outputs, inputs, after) in enumerate(cores):
        remaining = prod(core[2] for core in cores[number + 1 :])
        total += (ring if number else 1) * done * remaining * rank * inputs * outputs * after
        done *= outputs
    return total


@cache
def rows_to_expand(shapes: tuple[tuple[int, ...], ...]) -> float:
    """Of x: from how many on the dense matrix of cores [R, o, i, S], with what it takes to form it, needs fewer
    multiplications than the cores do."""
    total, done = 0, prod(shapes[0])
    for rank, outputs, inputs, after in shapes[1:]:
        done = done * outputs * inputs * after
        total, done = total + done, done // rank
    dense = prod(core[1] * core[2] for core in shapes)
    saved = min(cost(shapes, True), cost(shapes, False)) - dense  # a row
    return total // saved + 1 if saved > 0 else inf


def multiply(x: torch.Tensor, cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """x [T, i1 i2 ..] by cores [R_k, o_k, i_k, R_k+1] -> [T, o1 o2 ..], core after core from the cheaper end."""
    shapes = [core.shape for core in cores]
    if cost(shapes, True) <= cost(shapes, False):
        return _from_left(x, cores)
    sizes = [core.shape[2] for core in cores]
    order = list(range(len(sizes), 0, -1))
    turned = x.view(-1, *sizes).permute(0, *order).reshape(x.shape)
    y = _from_left(turned, [core.permute(3, 1, 2, 0) for core in reversed(cores)])
    return y.view(-1, *(core.shape[1] for core in reversed(cores))).permute(0, *order).reshape(len(x), -1)


def _from_left(x: torch.Tensor, cores: Sequence[torch.Tensor]) -> torch.Tensor:
    first = cores[0]
    ring, outputs, inputs, _ = first.shape
    y = torch.einsum("tij,aoir->taojr", x.view(len(x), inputs, -1), first)  # [T, ring, done, left, R]
    for core in cores[1:]:
        _, o, i, after = core.shape
        y = y.reshape(len(x), ring, outputs, i, -1, core.shape[0])
        y = torch.einsum("tapijr,rois->tapojs", y, core).reshape(len(x), ring, outputs * o, -1, after)
        outputs *= o
    return torch.einsum("tapja->tp", y)
