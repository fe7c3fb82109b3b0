"""Inputs of a block's matrices rounded while it is calibrated, as they will be where the model is served."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from squeeze.engine import calibration
from squeeze.engine.calibration import Stage

__all__ = ["RoundedInputs", "Rounding", "round_inputs"]


class Rounding(Protocol):
    """What is done to the inputs of a matrix. ranged: whether that takes the largest magnitude among them."""

    @property
    def ranged(self) -> bool: ...

    def __call__(self, x: torch.Tensor, largest: torch.Tensor | None = None) -> torch.Tensor:
        """x [..., I] as its rounded values."""
        ...


def round_inputs(module: nn.Module, rounding: Rounding, largest: torch.Tensor | None) -> Any:
    """From here on a module computes with rounded inputs; what is returned has `remove`."""

    def hook(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return rounding(args[0], largest), *args[1:]

    return module.register_forward_pre_hook(hook)


class RoundedInputs:
    """Of one block: `begin` with each stage, whose modules then compute with rounded inputs. of: what is done to a
    module's inputs, by its name in the block."""

    def __init__(self, block: nn.Module, of: Callable[[str], Rounding | None]) -> None:
        self.block, self.of = block, of
        self.largest: dict[str, torch.Tensor] = {}  # by the first module of a group
        self._hooks: list[Any] = []

    def begin(self, stage: Stage, hidden: Iterable[torch.Tensor], run: Callable[[torch.Tensor], object]) -> None:
        """hidden: the block's inputs, read only where ranges are needed; run: runs the block on one of them."""
        ranged = [group for group in stage.groups if (rounding := self.of(group[0])) and rounding.ranged]
        for x in hidden if ranged else ():
            for first, seen in calibration.record(self.block, ranged, lambda: run(x)).items():  # noqa: B023
                highest = seen.abs().amax().float()
                self.largest[first] = torch.maximum(highest, self.largest.get(first, highest))
        for group in stage.groups:
            for name in group:
                if rounding := self.of(name):
                    module = self.block.get_submodule(name)
                    self._hooks.append(round_inputs(module, rounding, self.largest.get(group[0])))

    def rounded(self, first: str, x: torch.Tensor) -> torch.Tensor:
        """x [T, I], what a group's first module is given, as it computes with it."""
        rounding = self.of(first)
        return x if rounding is None else rounding(x, self.largest.get(first))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
