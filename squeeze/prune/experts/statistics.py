"""Statistics of a layer's experts on the calibration tokens: how the router uses them, and how alike they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from squeeze.engine.experts import Experts

__all__ = ["LayerStatistics", "gathered", "watched"]

Watch = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


@dataclass
class LayerStatistics:
    """Sums over the calibration tokens of a layer with E experts.

    Attributes:
        count: tokens that the router sends to each expert [E].
        weight: sum of the router's weights of these tokens [E].
        activation: sum of the weight times the norm of the expert's output [E].
        likeness: sum over tokens of expert i, at most `pairs` of each, of the cosine between its output and that of
            expert j [E, E].
        compared: these tokens of each expert [E].
    """

    count: torch.Tensor
    weight: torch.Tensor
    activation: torch.Tensor
    likeness: torch.Tensor
    compared: torch.Tensor

    @classmethod
    def empty(cls, experts: int) -> "LayerStatistics":
        """Return sums of no tokens."""
        count, weight, activation, compared = (torch.zeros(experts, dtype=torch.float64) for _ in range(4))
        return cls(count, weight, activation, torch.zeros(experts, experts, dtype=torch.float64), compared)

    @property
    def saliency(self) -> torch.Tensor:
        """The mean of weight times norm of the output over an expert's own tokens [E]; 0 without tokens."""
        return self.activation / self.count.clamp(min=1)


def gathered(module: Experts, run: Callable[[], object], pairs: int = 0) -> LayerStatistics:
    """Return the statistics of a layer's experts while `run` runs the block on the calibration set.

    Args:
        module: the experts.
        run: runs the block on all sequences.
        pairs: tokens of each expert on which its output is compared with those of all others; 0 for no comparison.
    """
    sums = LayerStatistics.empty(len(module.experts))

    def watch(number: int, token: torch.Tensor, weight: torch.Tensor, inner: torch.Tensor, out: torch.Tensor) -> None:
        sums.count[number] += len(token)
        sums.weight[number] += weight.double().sum().cpu()
        sums.activation[number] += (weight * out.norm(dim=-1)).double().sum().cpu()
        if missing := min(len(token), pairs - int(sums.compared[number])):
            x, own = shown["hidden"][token[:missing]], out[:missing]
            for other, expert in enumerate(module.experts):
                y = own if other == number else module.run(expert, x)[1]
                sums.likeness[number, other] += torch.cosine_similarity(own, y, dim=-1).double().sum().cpu()
            sums.compared[number] += missing

    shown: dict[str, torch.Tensor] = {}
    hook = module.register_forward_pre_hook(lambda _, args: shown.update(hidden=args[0]))
    try:
        with watched(module, watch):
            run()
    finally:
        hook.remove()
    return sums


@contextmanager
def watched(module: Experts, watch: Watch) -> Iterator[None]:
    """Let a function see what each expert computes in the `with` block; see Experts.watch."""
    module.watch = watch
    try:
        yield
    finally:
        module.watch = None
