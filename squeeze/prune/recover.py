"""Layer-wise reconstruction: with the mask as it is, the weights kept that give back most of a layer's outputs.

A row w of W becomes the q with the row's mask that minimises (w - q) H (w - q)^T: linear equations in the weights kept,
which conjugate gradients solve for all rows at once. Every product is one of matrices, so it costs a few tens of times
O I^2 multiplications, where a factorisation for each row would cost O I^3 / 24.
"""

import torch

__all__ = ["reconstruct"]

_CLOSE = 1e-6  # of a row's first residual, squared


def reconstruct(
    weight: torch.Tensor, mask: torch.Tensor, hessian: torch.Tensor, start: torch.Tensor | None = None, steps: int = 50
) -> torch.Tensor:
    """Values [O, I], 0 outside the mask bool [O, I]. weight: [O, I]; hessian: positive definite [I, I]; start: values
    to begin with (the weight under the mask); steps: of conjugate gradients at most."""
    values = (weight if start is None else start).masked_fill(~mask, 0)
    scale = hessian.diagonal()  # Jacobi's preconditioner
    residual = ((weight - values) @ hessian).masked_fill(~mask, 0)
    along = residual / scale
    energy = (residual * along).sum(1)
    enough = _CLOSE * energy.clamp(min=1e-30)
    for _ in range(steps):
        product = (along @ hessian).masked_fill(~mask, 0)
        length = energy / (along * product).sum(1).clamp(min=1e-30)
        values = values + length[:, None] * along
        residual = residual - length[:, None] * product
        conditioned = residual / scale
        after = (residual * conditioned).sum(1)
        if bool((after <= enough).all()):
            break
        along = conditioned + (after / energy.clamp(min=1e-30))[:, None] * along
        energy = after
    return values
