"""Products with block low-rank matrices: Monarch (Dao et al. 2022) and BLAST (Lee et al. 2024).

`reference_monarch` and `blast` define them. On a GPU a Triton kernel multiplies by Monarch matrices if it is faster.
BLAST has no kernel: each row of blocks needs the inner products with the whole shared factor, which torch computes
once. Programs would compute them again and again, and reach 4 % of an H100's roofline by calculation.
"""

from functools import partial

import torch

from squeeze.kernels import choices

__all__ = ["blast", "monarch", "reference_monarch"]

_MAX_NUMBERS = 1 << 31  # in x and in the product: the kernel computes offsets in 32 bits


def monarch(x: torch.Tensor, outer: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """Multiply activations by a Monarch matrix, with the faster of torch and Triton on a GPU.

    Args:
        x: activations [T, Q i].
        outer: left blocks [P, o, Q R].
        inner: right blocks [Q, P R, i].

    Returns:
        The product [T, P o].
    """
    numbers = len(x) * max(x.shape[1], outer.shape[0] * outer.shape[1])
    if x.device.type == "cpu" or torch.is_grad_enabled() or numbers >= _MAX_NUMBERS:
        return reference_monarch(x, outer, inner)
    from squeeze.kernels.blr import kernel  # triton is optional

    products = {
        "torch": partial(reference_monarch, x, outer, inner),
        "kernel": partial(kernel.monarch, x, outer, inner),
    }
    weight = f"Monarch {'x'.join(map(str, outer.shape))} by {'x'.join(map(str, inner.shape))}"
    return products[choices.fastest(x, weight, products, "kernel", "torch")]()


def reference_monarch(x: torch.Tensor, outer: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """Multiply as `monarch` does, in plain torch: the definition."""
    (p, o, _), (q, pr, i) = outer.shape, inner.shape
    z = torch.bmm(x.view(-1, q, i).transpose(0, 1), inner.transpose(1, 2))  # [Q, T, P R]
    z = z.view(q, len(x), p, pr // p).permute(2, 1, 0, 3).reshape(p, len(x), -1)  # [P, T, Q R]
    return torch.bmm(z, outer.transpose(1, 2)).transpose(0, 1).reshape(len(x), p * o)


def blast(x: torch.Tensor, bases: torch.Tensor, mix: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Multiply activations by a BLAST matrix, in plain torch.

    Args:
        x: activations [T, Q i].
        bases: left factors of the rows of blocks [P, o, R].
        mix: the diagonal that couples each pair of factors [P, Q, R].
        inputs: right factors of the columns of blocks [Q, R, i].

    Returns:
        The product [T, P o].
    """
    q, _, i = inputs.shape
    z = torch.bmm(x.view(-1, q, i).transpose(0, 1), inputs.transpose(1, 2))  # [Q, T, R]
    y = torch.einsum("pqr,qtr->ptr", mix, z)
    return torch.bmm(y, bases.transpose(1, 2)).transpose(0, 1).reshape(len(x), -1)
