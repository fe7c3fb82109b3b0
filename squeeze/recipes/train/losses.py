"""Losses of distillation: the divergence of next-token distributions, and how far a block is from the original's."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["agreement_of", "divergence", "divergence_of", "error_of"]

_ROWS = 16  # of logits


def agreement_of(student: torch.Tensor, teacher: torch.Tensor, x: torch.Tensor) -> float:
    """Return the cosine of what two blocks with outputs y' and y add to their input x: of y' - x and y - x."""
    own, expected = (output.float() - x for output in (student, teacher))
    return float(functional.cosine_similarity(own.flatten(), expected.flatten(), dim=0))


def error_of(student: torch.Tensor, teacher: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return |y' - y|^2 / |y - x|^2 for input x, the teacher's output y and the student's output y'."""
    error, size = (student.float() - teacher).square().sum(), (teacher.float() - x).square().sum()
    return error / size.clamp(min=1e-12)


def divergence(student: nn.Module, teacher: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return KL(teacher || student) on a sequence [1, L], in nats a token."""
    with torch.no_grad():
        wanted = teacher(ids, use_cache=False).logits[0]
    return divergence_of(student(ids, use_cache=False).logits[0], wanted)


def divergence_of(logits: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the mean of KL(softmax(wanted) || softmax(logits)) over rows, in nats; both are [L, V]."""
    return _Divergence.apply(logits, expected)  # type: ignore[no-any-return, no-untyped-call]


class _Divergence(torch.autograd.Function):
    """The mean of KL(softmax(wanted) || softmax(logits)) over rows [L, V], some rows at a time.

    That keeps temporaries in the cache, and stores only the gradient, softmax(logits) - softmax(wanted).
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        gradient, total = torch.empty_like(logits), torch.zeros((), device=logits.device)
        for first in range(0, len(logits), _ROWS):
            rows = slice(first, first + _ROWS)
            f, w = logits[rows].float(), wanted[rows].float()
            q, p = torch.softmax(f, -1), torch.softmax(w, -1)
            total += (p * (w - f)).sum() + _log_partition(f, q) - _log_partition(w, p)
            gradient[rows] = q.sub_(p)
        ctx.save_for_backward(gradient.div_(len(logits)))
        return total / len(logits)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * slopes[0].to(gradient.dtype), None


def _log_partition(logits: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """Return the sum over rows of log sum exp(logits), from logits and their softmax."""
    return (logits.amax(-1) - probabilities.amax(-1).log()).sum()
