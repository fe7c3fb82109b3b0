"""The fit of kept experts: their last matrices are moved so that the layer computes what it computed before.

Tokens of experts that were left out go to others, and the router's weights change. The residual of the layer's output
is divided among a token's experts by the squares of their weights. Ridge regression of an expert's part on the inputs
of its last matrix gives the change of that matrix. All experts change together, round by round.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from squeeze.engine.experts import Experts
from squeeze.prune.experts.statistics import watched

__all__ = ["Difference", "fitted", "outputs_of"]

_Entry = tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]  # an expert, its tokens, their weights, and inner values


@dataclass
class _Sums:
    """Second moments of the inner values of an expert [I, I], and their products with residuals [H, I]."""

    inner: torch.Tensor
    residual: torch.Tensor


@dataclass
class Difference:
    """The squared error of a layer's outputs, and their squared size."""

    error: float = 0.0
    size: float = 0.0

    def add(self, before: torch.Tensor, after: torch.Tensor) -> None:
        """Add the outputs of a sequence."""
        self.error += float((after - before).double().square().sum())
        self.size += float(before.double().square().sum())

    @property
    def relative(self) -> float:
        """The error as a share of the size."""
        return self.error / max(self.size, 1e-30)


@contextmanager
def outputs_of(module: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Yield the list to which the module's outputs are added in the `with` block."""
    found: list[torch.Tensor] = []
    hook = module.register_forward_hook(lambda _, args, out: found.append(out))
    try:
        yield found
    finally:
        hook.remove()


def fitted(
    before: Experts, after: Experts, pairs: Callable[[], Iterator[Callable[[bool], object]]], damping: float
) -> dict[tuple[int, str], torch.Tensor]:
    """Return new last matrices of the kept experts.

    Args:
        before: all experts of the layer.
        after: the kept ones, behind their router.
        pairs: yields, for each sequence, a function that runs the block with all experts (True) or the kept ones.
        damping: of the regression, as a share of the mean square of its inputs.
    """
    sums: dict[int, _Sums] = {}
    entries: list[_Entry] = []

    def watch(number: int, token: torch.Tensor, weight: torch.Tensor, inner: torch.Tensor, out: torch.Tensor) -> None:
        entries.append((number, token, weight, inner))

    with watched(after, watch), outputs_of(before) as wanted, outputs_of(after) as found:
        for run in pairs():
            for values in (wanted, found, entries):
                values.clear()
            run(True)
            run(False)
            _add(sums, wanted[0] - found[0], entries)
    changed = {}
    for number, one in sums.items():
        matrix = after.experts[number].get_parameter("down_proj.weight")
        diagonal = one.inner.diagonal()
        diagonal += damping * diagonal.mean().clamp(min=1e-12)
        change = torch.linalg.solve(one.inner, one.residual.T, left=True).T
        changed[number, "down_proj.weight"] = matrix + change
    return changed


def _add(sums: dict[int, _Sums], residual: torch.Tensor, entries: list[_Entry]) -> None:
    """Add the tokens of a sequence, residual [T, H]."""
    squares = residual.new_zeros(len(residual))
    for _, token, weight, _ in entries:
        squares.index_add_(0, token, weight.square().to(squares.dtype))
    for number, token, weight, inner in entries:
        part = (weight.square() / squares[token].clamp(min=1e-20))[:, None] * residual[token]
        scaled = weight[:, None] * inner
        if number not in sums:
            width, out = inner.shape[1], residual.shape[1]
            sums[number] = _Sums(residual.new_zeros((width, width)), residual.new_zeros((out, width)))
        sums[number].inner.addmm_(scaled.T, scaled)
        sums[number].residual.addmm_(part.T, scaled)
