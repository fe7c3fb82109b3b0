"""Inputs of a block's matrices rounded while it is calibrated, as they will be where the model is served."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from squeeze.engine import calibration

__all__ = ["Rounding", "Roundings", "ranges", "round_inputs", "rounding_inputs"]


class Rounding(Protocol):
    """What is done to the inputs of a matrix. ranged: whether that takes the largest magnitude among them."""

    @property
    def ranged(self) -> bool: ...

    def __call__(self, x: torch.Tensor, largest: torch.Tensor | None = None) -> torch.Tensor:
        """x [..., I] as its rounded values."""
        ...


Roundings = Mapping[str, tuple[Rounding, torch.Tensor | None]]  # by module, with the largest magnitude where needed


def round_inputs(module: nn.Module, rounding: Rounding, largest: torch.Tensor | None) -> Any:
    """From here on a module computes with rounded inputs; what is returned has `remove`."""

    def hook(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return rounding(args[0], largest), *args[1:]

    return module.register_forward_pre_hook(hook)


@contextmanager
def rounding_inputs(block: nn.Module, roundings: Roundings) -> Iterator[None]:
    """Modules of a block compute with rounded inputs meanwhile."""
    hooks = [round_inputs(block.get_submodule(name), *how) for name, how in roundings.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def ranges(block: nn.Module, groups: Iterable[tuple[str, ...]], runs: Iterable[Any]) -> dict[str, torch.Tensor]:
    """The largest magnitude, float32 [], of the inputs of each group, by its first module. runs: functions that run the
    block, each on a sequence."""
    largest: dict[str, torch.Tensor] = {}
    for run in runs:
        for first, seen in calibration.record(block, groups, run).items():
            highest = seen.abs().amax().float()
            largest[first] = torch.maximum(highest, largest.get(first, highest))
    return largest
