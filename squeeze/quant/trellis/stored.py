"""Trellis codes as a stored form: how a folder says that it has them, and layers that multiply by them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.stored import Leaves, Stored, StoredForm, dtype_named
from squeeze.engine.pipeline import Writer
from squeeze.errors import FormatError, printable
from squeeze.quant.trellis.linear import TrellisLinear
from squeeze.quant.trellis.tensor import LEAVES, TrellisTensor, read, tensors_of

__all__ = ["METHOD", "TrellisForm", "make_writer"]

METHOD = "squeeze-trellis"  # of the quantization_config
_VERSION = 1


class TrellisForm(StoredForm):
    """Folders of the method trellis in the format `squeeze`."""

    method = METHOD
    leaves = LEAVES
    mark = "trellis_codes"

    def check(self, described: Mapping[str, Any]) -> None:
        if described.get("version") != _VERSION:
            version = printable(repr(described.get("version")))
            raise FormatError(f"version {version} of trellis codes is unknown: use a newer squeeze")

    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        described = checkpoint.config.get("quantization_config")
        if not isinstance(described, dict) or described.get("quant_method") != METHOD:
            return None
        self.check(described)
        dtype = dtype_named(described.get("dtype"))

        def weight(module: str, tensors: dict[str, torch.Tensor]) -> TrellisTensor:
            return read(module, {name.removeprefix(f"{module}."): t for name, t in tensors.items()})

        return Stored(self.modules_of(checkpoint.files), dtype, weight)

    def weight(self, module: str, leaves: Leaves) -> TrellisTensor:
        return read(module, leaves)

    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        outputs, inputs = shape
        for leaf, wanted in (("trellis_codes", inputs), ("trellis_scales", outputs)):
            if leaf not in leaves or len(leaves[leaf]) != wanted:
                raise FormatError(f"{module}: its {leaf} are not those of {outputs} outputs and {inputs} inputs")
        return TrellisLinear(inputs, outputs, leaves, bias, module)


def make_writer(dtype: torch.dtype) -> Writer:
    """dtype: of the dense weights."""

    def tensors(module: str, tensor: TrellisTensor, transposed: bool) -> dict[str, torch.Tensor]:
        return tensors_of(module, tensor)

    def config(left: list[str]) -> dict[str, Any]:
        named = str(dtype).removeprefix("torch.")
        return {"quantization_config": {"quant_method": METHOD, "version": _VERSION, "ignored": left, "dtype": named}}

    return Writer("squeeze", tensors, config)
