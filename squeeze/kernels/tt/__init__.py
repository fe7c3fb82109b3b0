"""Products with tensor-train (TT) matrices, and with tensor rings (Oseledets 2011; Novikov et al. 2015).

`reference_multiply` defines them, with any number of cores. On a GPU a Triton kernel multiplies by two or three cores
of a train if it is faster.
"""

from collections.abc import Sequence
from functools import cache, partial
from math import inf, prod

import torch

from squeeze.kernels import choices

__all__ = ["cost", "multiply", "reference_multiply", "rows_to_expand"]


def multiply(x: torch.Tensor, cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """Multiply activations x [T, i1 i2 ..] by a TT-matrix to [T, o1 o2 ..], without forming the dense matrix.

    cores: tensors [R_k, o_k, i_k, R_k+1].
    """
    if x.device.type == "cpu" or len(cores) not in (2, 3) or cores[0].shape[0] != 1 or torch.is_grad_enabled():
        return reference_multiply(x, cores)
    from squeeze.kernels.tt import kernel  # triton is optional

    if not kernel.fits(len(x), cores):
        return reference_multiply(x, cores)
    products = {"torch": partial(reference_multiply, x, cores), "kernel": partial(kernel.multiply, x, cores)}
    weight = f"tensor train {' by '.join('x'.join(map(str, core.shape)) for core in cores)}"
    return products[choices.fastest(x, weight, products, "kernel", "torch")]()


def cost(shapes: Sequence[Sequence[int]], from_left: bool) -> int:
    """Count the multiplications for a row of x.

    Args:
        shapes: shapes of the cores, [R, o, i, S] each.
        from_left: whether the cores are contracted from the first one on, else from the last one.
    """
    cores = list(shapes) if from_left else [(s, o, i, r) for r, o, i, s in reversed(shapes)]
    total, done, ring = 0, 1, cores[0][0]
    for number, (rank, outputs, inputs, after) in enumerate(cores):
        remaining = prod(core[2] for core in cores[number + 1 :])
        total += (ring if number else 1) * done * remaining * rank * inputs * outputs * after
        done *= outputs
    return total


@cache
def rows_to_expand(shapes: tuple[tuple[int, ...], ...]) -> float:
    """Return the number of rows of x from which forming the dense matrix and multiplying by it is cheaper.

    shapes: shapes of the cores, [R, o, i, S] each. The result is infinite if the cores are always cheaper.
    """
    total, done = 0, prod(shapes[0])
    for rank, outputs, inputs, after in shapes[1:]:
        done = done * outputs * inputs * after
        total, done = total + done, done // rank
    dense = prod(core[1] * core[2] for core in shapes)
    saved = min(cost(shapes, True), cost(shapes, False)) - dense  # a row
    return total // saved + 1 if saved > 0 else inf


def reference_multiply(x: torch.Tensor, cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """Multiply as `multiply` does, in plain torch: the definition. Cores are contracted from the cheaper end."""
    shapes = [core.shape for core in cores]
    if cost(shapes, True) <= cost(shapes, False):
        return _from_left(x, cores)
    sizes = [core.shape[2] for core in cores]
    order = list(range(len(sizes), 0, -1))
    reversed_x = x.view(-1, *sizes).permute(0, *order).reshape(x.shape)
    y = _from_left(reversed_x, [core.permute(3, 1, 2, 0) for core in reversed(cores)])
    return y.view(-1, *(core.shape[1] for core in reversed(cores))).permute(0, *order).reshape(len(x), -1)


def _from_left(x: torch.Tensor, cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """Multiply by the cores from the first one on."""
    first = cores[0]
    ring, outputs, inputs, _ = first.shape
    y = torch.einsum("tij,aoir->taojr", x.view(len(x), inputs, -1), first)  # [T, ring, done, left, R]
    for core in cores[1:]:
        _, o, i, after = core.shape
        y = y.reshape(len(x), ring, outputs, i, -1, core.shape[0])
        y = torch.einsum("tapijr,rois->tapojs", y, core).reshape(len(x), ring, outputs * o, -1, after)
        outputs *= o
    return torch.einsum("tapja->tp", y)
