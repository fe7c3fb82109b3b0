"""Products with block low-rank matrices: Monarch's in Triton on a GPU where it is faster, torch for all else.

reference.py defines them.

BLAST has no kernel: every row of blocks needs the inner products with all of the shared factor, so programs that keep
these to themselves make them again and again (4 % of the roofline of an H100, on paper), while torch makes them once.
"""

from functools import partial

import torch

from squeeze.kernels import choices
from squeeze.kernels.blr import reference

__all__ = ["blast", "monarch"]

_MOST = 1 << 31  # numbers in x or in the product: the kernel counts them in 32 bits


def monarch(x: torch.Tensor, outer: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """x [T, Q i], outer [P, o, Q R], inner [Q, P R, i] -> [T, P o]."""
    most = len(x) * max(x.shape[1], outer.shape[0] * outer.shape[1])
    if x.device.type == "cpu" or torch.is_grad_enabled() or most >= _MOST:
        return reference.monarch(x, outer, inner)
    from squeeze.kernels.blr import kernel  # triton is optional

    ways = {"torch": partial(reference.monarch, x, outer, inner), "kernel": partial(kernel.monarch, x, outer, inner)}
    what = f"Monarch {'x'.join(map(str, outer.shape))} by {'x'.join(map(str, inner.shape))}"
    return ways[choices.fastest(x, what, ways, "kernel", "torch")]()


def blast(x: torch.Tensor, bases: torch.Tensor, mix: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """x [T, Q i], bases [P, o, R], mix [P, Q, R], inputs [Q, R, i] -> [T, P o]."""
    return reference.blast(x, bases, mix, inputs)
