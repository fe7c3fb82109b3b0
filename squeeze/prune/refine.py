"""Improves a pruned matrix under its Hessian: the best mask and weights of each group of N:M, all others as they are.

Each step lowers tr((W - Q) H (W - Q)^T) or leaves it: a group of M weights has C(M, N) masks, and for each of them the
best weights are a product with a small inverse that all rows share. Cyclic minimisation, as quant/refine.py has it for
codes, over masks.
"""

from math import comb

import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import combinations_of

__all__ = ["MAX_MASKS", "reconstruct", "refine"]

MAX_MASKS = 100  # of a group, all of which are tried
_BLOCK = 128


def can_refine(pattern: Pattern) -> bool:
    return pattern.of > 0 and comb(pattern.of, pattern.kept) <= MAX_MASKS


def refine(
    weight: torch.Tensor, hessian: torch.Tensor, values: torch.Tensor, pattern: Pattern, passes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Better values and their mask, both [O, I]; weight, values: [O, I]; hessian: positive definite [I, I]."""
    values, inputs = values.clone(), weight.shape[1]
    mask = torch.zeros(values.shape, dtype=torch.bool, device=values.device)
    size = max(_BLOCK // pattern.of, 1) * pattern.of
    inverses = _inverses(hessian, pattern)
    for _ in range(passes):
        pull = (weight - values) @ hessian  # [O, I], half the negative gradient
        for first in range(0, inputs, size):
            last = min(first + size, inputs)
            local, before = pull[:, first:last].clone(), values[:, first:last].clone()
            for start in range(first, last, pattern.of):
                stop = min(start + pattern.of, last)
                group, behind = slice(start, stop), slice(stop - first, None)
                old = values[:, group].clone()
                right = local[:, start - first : stop - first] + old @ hessian[group, group]
                values[:, group], mask[:, group] = _best(right, inverses[start // pattern.of], pattern)
                local[:, behind].addmm_(values[:, group] - old, hessian[group, stop:last], alpha=-1)
            pull[:, last:].addmm_(values[:, first:last] - before, hessian[first:last, last:], alpha=-1)
    return values, mask


def _inverses(hessian: torch.Tensor, pattern: Pattern) -> list[torch.Tensor]:
    """For each group and each of its masks the inverse of what the mask leaves of the Hessian, [C, M, M]."""
    inverses = []
    for start in range(0, len(hessian), pattern.of):
        block = hessian[start : start + pattern.of, start : start + pattern.of].double()
        keep = _masks(pattern, len(block)).to(block.device)
        pairs = keep[:, :, None] & keep[:, None, :]
        filled = torch.where(pairs, block, torch.diag_embed((~keep).double()))
        inverses.append(torch.where(pairs, torch.linalg.inv(filled), 0.0).to(hessian.dtype))
    return inverses


def _masks(pattern: Pattern, size: int) -> torch.Tensor:
    return combinations_of(min(pattern.kept, size), size)


def _best(right: torch.Tensor, inverses: torch.Tensor, pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and mask [O, M] that lower the error most, by the right-hand sides [O, M] of their equations."""
    solved = torch.einsum("om,cmn->ocn", right, inverses)
    best = (solved * right[:, None]).sum(-1).argmax(1)
    keep = _masks(pattern, right.shape[1]).to(right.device)[best]
    return solved[torch.arange(len(right), device=right.device), best], keep


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
