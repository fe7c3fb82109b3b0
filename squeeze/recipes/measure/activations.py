"""`squeeze eval --activations`: a model computes with inputs of its matrices rounded to a grid, as a simulation.

A spec is a grid with parameters: `int8`, `int4,group=128`, `fp6-e3m2`, `int4,outliers=32`. Outlier columns are inputs
that stay as they are (QUIK, Ashkboos et al. 2023, arXiv 2310.09259). They are those that the stored weight keeps exact,
and the given number with the largest magnitude in the first window.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.linear import StoredLinear
from squeeze.engine.experts import Layout
from squeeze.engine.stacks import find_blocks, is_linear
from squeeze.errors import OptionError, SqueezeError, printable
from squeeze.quant.activations import ACTIVATIONS, TOPS, ActivationGrid, are_rounded

__all__ = ["ActivationSpec", "round_activations"]

_OWN = {"mxfp4": ACTIVATIONS["mxfp4"], "nvfp4": ACTIVATIONS["nvfp4"]}  # with groups and scales of their own
_KINDS = tuple(kind for kind in TOPS if kind != "fp4")


@dataclass(frozen=True)
class ActivationSpec:
    """A grid of activations, with the number of columns that stay as they are."""

    name: str
    grid: ActivationGrid
    outliers: int = 0

    @classmethod
    def parse(cls, text: str) -> "ActivationSpec":
        """Read a spec. Raises OptionError if it is invalid."""
        name, *rest = text.split(",")
        if name not in (*_KINDS, *_OWN):
            raise OptionError(f"activations {printable(repr(name))}: choose from {', '.join((*_KINDS, *_OWN))}")
        numbers = {"group": -1, "outliers": 0}
        for item in rest:
            key, _, value = item.partition("=")
            if key not in numbers or not value.isdecimal() or len(value) > 6 or not int(value):
                raise OptionError(f"activations {printable(repr(item))}: expected group=N or outliers=N, N at least 1")
            numbers[key] = int(value)
        if name in _OWN and numbers["group"] != -1:
            raise OptionError(f"activations {name} have groups of their own: leave out group")
        return cls(text, _OWN.get(name) or ActivationGrid(name, numbers["group"]), numbers["outliers"])


def round_activations(model: nn.Module, folder: Checkpoint | None, spec: ActivationSpec) -> int:
    """Make all matrices in a model's blocks compute with rounded inputs, and return their number.

    Args:
        model: The loaded model.
        folder: Its folder; None for a GGUF file.
        spec: The grid.

    Raises:
        SqueezeError: If the model rounds its activations already, has experts in one tensor, or a matrix does not fit
            the groups.
    """
    described = folder.config.get("quantization_config") if folder else None
    if are_rounded(described):
        raise SqueezeError(
            f"{folder.folder if folder else ''}: its activations are rounded already: leave out `activations`"
        )
    inside = tuple(f"{name}." for name in find_blocks(model))
    found = {name: module for name, module in model.named_modules() if name.startswith(inside)}
    if merged := [name for name, module in found.items() if Layout.of(module)]:
        raise SqueezeError(
            f"the inputs of experts in one tensor, {merged[0]}, are not rounded: leave out `activations`"
        )
    matrices = {name: one for name, one in found.items() if isinstance(one, StoredLinear) or is_linear(one)}
    size = spec.grid.group_size
    for name, module in matrices.items():
        if size > 0 and _inputs(module) % size:
            raise SqueezeError(f"{name} has {_inputs(module)} inputs, which groups of {size} do not divide")
        module.register_forward_pre_hook(_Rounding(spec, _outliers_of(module)))
    if not matrices:
        raise SqueezeError("no matrix of the model's blocks has inputs to round: leave out `activations`")
    return len(matrices)


class _Rounding:
    """A hook that rounds the inputs of one matrix, except for outlier columns, which its first inputs choose."""

    def __init__(self, spec: ActivationSpec, kept: torch.Tensor | None) -> None:
        self.spec, self.kept, self.is_chosen = spec, kept, spec.outliers == 0

    def __call__(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        x = args[0]
        if not self.is_chosen:
            largest = x.detach().abs().reshape(-1, x.shape[-1]).amax(0)
            if self.kept is not None:
                largest[self.kept] = -1.0
            chosen = largest.topk(min(self.spec.outliers, len(largest))).indices
            self.kept = chosen if self.kept is None else torch.cat([self.kept.to(chosen.device), chosen]).unique()
            self.is_chosen = True
        largest_of_all = x.detach().abs().amax() if self.spec.grid.ranged else None
        if self.kept is None:
            return self.spec.grid(x, largest_of_all), *args[1:]
        kept = self.kept.to(x.device)
        rounded = self.spec.grid(x.index_fill(-1, kept, 0.0), largest_of_all)
        return rounded.index_copy(-1, kept, x.index_select(-1, kept)), *args[1:]


def _inputs(module: nn.Module) -> int:
    known = getattr(module, "in_features", None)
    return int(known) if known is not None else int(module.get_parameter("weight").shape[0])


def _outliers_of(module: nn.Module) -> torch.Tensor | None:
    """Return the columns that a stored weight keeps exact, int64 [K], or None."""
    columns = getattr(module, "outlier_inputs", None)
    return columns.long() if isinstance(columns, torch.Tensor) and columns.numel() else None
