"""Rounding of activations in a block during calibration, as in the served model."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from squeeze.engine import calibration

__all__ = ["Rounding", "Roundings", "ranges", "round_inputs", "rounding_inputs"]


class Rounding(Protocol):
    """A rounding of a matrix's inputs; `ranged` says whether it needs the largest magnitude among them."""

    @property
    def ranged(self) -> bool: ...

    def __call__(self, x: torch.Tensor, largest: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rounded values of x [..., I]."""
        ...


Roundings = Mapping[str, tuple[Rounding, torch.Tensor | None]]  # by module, with the largest magnitude if needed


def round_inputs(module: nn.Module, rounding: Rounding, largest: torch.Tensor | None) -> Any:
    """Make a module compute with rounded inputs. The returned handle has `remove`."""

    def hook(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return rounding(args[0], largest), *args[1:]

    return module.register_forward_pre_hook(hook)


@contextmanager
def rounding_inputs(block: nn.Module, roundings: Roundings) -> Iterator[None]:
    """Make modules of a block compute with rounded inputs in the `with` block."""
    hooks = [round_inputs(block.get_submodule(name), *how) for name, how in roundings.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def ranges(block: nn.Module, groups: Iterable[tuple[str, ...]], runs: Iterable[Any]) -> dict[str, torch.Tensor]:
    """Return the largest magnitude of each group's inputs, float32 [], by its first module.

    Args:
        block: the block.
        groups: modules that share inputs.
        runs: functions that run the block on one sequence each.
    """
    largest: dict[str, torch.Tensor] = {}
    for run in runs:
        for first, inputs in calibration.record(block, calibration.Stage(tuple(groups)), run).items():
            highest = inputs.abs().amax().float()
            largest[first] = torch.maximum(highest, largest.get(first, highest))
    return largest
