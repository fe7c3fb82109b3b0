"""Factorised weights as a stored form: layers that multiply by the factors, and dense weights."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.stored import Leaves, Stored, StoredForm, dtype_named
from squeeze.errors import FormatError, printable
from squeeze.factor import METHOD, VERSION
from squeeze.factor.form import Form
from squeeze.factor.forms import LEAVES, basis_of, modules_of, read_form
from squeeze.factor.linear import FactorLinear, join

__all__ = ["FactorizedForm"]


class FactorizedForm(StoredForm):
    """Folders that `squeeze factorize` wrote. A layer checks shapes once the values are there: FactorLinear.form."""

    method = METHOD
    leaves = LEAVES
    mark = ""  # a module may have any of the leaves

    def check(self, described: Mapping[str, Any]) -> None:
        version = described.get("version")
        if version != VERSION:
            words = f"version {printable(repr(version))} of squeeze's factorised folders"
            raise FormatError(f"{words} is unknown: use a newer squeeze")

    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        config = checkpoint.config.get("quantization_config")
        if not isinstance(config, dict) or config.get("quant_method") != METHOD:
            return None
        self.check(config)
        dtype = dtype_named(config.get("dtype"))

        def weight(module: str, tensors: dict[str, torch.Tensor]) -> Form:
            leaves = {name.removeprefix(f"{module}."): tensor for name, tensor in tensors.items()}
            if owner := basis_of(module, leaves):
                if f"{owner}.base" not in checkpoint.files:
                    raise FormatError(f"{module}: there is no module {owner} that has its basis")
                leaves["base"] = checkpoint.load([f"{owner}.base"])[f"{owner}.base"]
            return read_form(module, leaves)

        return Stored(self.modules_of(checkpoint.files), dtype, weight)

    def weight(self, module: str, leaves: Leaves) -> Form:
        return read_form(module, leaves)

    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        return FactorLinear(shape[1], shape[0], leaves, bias, module)

    def modules_of(self, names: Iterable[str]) -> dict[str, list[str]]:
        return modules_of(names)

    def float_type(self, leaves: Leaves, weight: torch.Tensor) -> torch.dtype | None:
        return None if any(leaf.endswith("_codes") for leaf in leaves) else weight.dtype

    def settle(self, model: nn.Module) -> None:
        join(model)
