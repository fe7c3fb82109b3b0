"""Improvement of a pruned matrix under its Hessian: better masks of N:M groups, then better values of the kept
weights."""

from math import comb

import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import combinations_of

__all__ = ["MAX_MASKS", "reconstruct", "refine"]

MAX_MASKS = 100  # most masks of a group; all are tried
_BLOCK = 128


def can_refine(pattern: Pattern) -> bool:
    return pattern.m > 0 and comb(pattern.m, pattern.n) <= MAX_MASKS


def refine(
    weight: torch.Tensor, hessian: torch.Tensor, values: torch.Tensor, pattern: Pattern, passes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give each N:M group its best mask and values with the others fixed, and return values and mask, both [O, I].

    Args:
        weight: W [O, I].
        hessian: H [I, I], positive definite.
        values: the pruned matrix [O, I] to start from.
        pattern: N:M.
        passes: passes over all groups.
    """
    values, inputs = values.clone(), weight.shape[1]
    mask = torch.zeros(values.shape, dtype=torch.bool, device=values.device)
    size = max(_BLOCK // pattern.m, 1) * pattern.m
    inverses = _inverses(hessian, pattern)
    for _ in range(passes):
        pull = (weight - values) @ hessian  # [O, I], half the negative gradient
        for first in range(0, inputs, size):
            last = min(first + size, inputs)
            local, before = pull[:, first:last].clone(), values[:, first:last].clone()
            for start in range(first, last, pattern.m):
                stop = min(start + pattern.m, last)
                group, behind = slice(start, stop), slice(stop - first, None)
                old = values[:, group].clone()
                right = local[:, start - first : stop - first] + old @ hessian[group, group]
                values[:, group], mask[:, group] = _best(right, inverses[start // pattern.m], pattern)
                local[:, behind].addmm_(values[:, group] - old, hessian[group, stop:last], alpha=-1)
            pull[:, last:].addmm_(values[:, first:last] - before, hessian[first:last, last:], alpha=-1)
    return values, mask


def _inverses(hessian: torch.Tensor, pattern: Pattern) -> list[torch.Tensor]:
    """Return for each group and each of its masks the inverse of the Hessian of the kept inputs, [C, M, M]."""
    inverses = []
    for start in range(0, len(hessian), pattern.m):
        block = hessian[start : start + pattern.m, start : start + pattern.m].double()
        keep = _masks(pattern, len(block)).to(block.device)
        pairs = keep[:, :, None] & keep[:, None, :]
        filled = torch.where(pairs, block, torch.diag_embed((~keep).double()))
        inverses.append(torch.where(pairs, torch.linalg.inv(filled), 0.0).to(hessian.dtype))
    return inverses


def _masks(pattern: Pattern, size: int) -> torch.Tensor:
    return combinations_of(min(pattern.n, size), size)


def _best(right: torch.Tensor, inverses: torch.Tensor, pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values and mask [O, M] that lower the error most, from the right-hand sides [O, M] of their
    equations."""
    solved = torch.einsum("om,cmn->ocn", right, inverses)
    best = (solved * right[:, None]).sum(-1).argmax(1)
    keep = _masks(pattern, right.shape[1]).to(right.device)[best]
    return solved[torch.arange(len(right), device=right.device), best], keep


_CLOSE = 1e-6  # squared residual at which conjugate gradients stop, relative to the first


def reconstruct(
    weight: torch.Tensor, mask: torch.Tensor, hessian: torch.Tensor, start: torch.Tensor | None = None, steps: int = 50
) -> torch.Tensor:
    """Return the values [O, I] that keep most of a layer's outputs, with the mask fixed.

    A row w of W becomes the q with the row's mask that minimises (w - q) H (w - q)^T. These are linear equations in the
    kept weights, solved for all rows at once by conjugate gradients. Every product is one of matrices, so the cost is a
    few tens of O I^2 multiplications; a factorisation for each row would cost O I^3 / 24.

    Args:
        weight: W [O, I].
        mask: bool [O, I].
        hessian: H [I, I], positive definite.
        start: values to start from; None for the masked weight.
        steps: most steps of conjugate gradients.
    """
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
