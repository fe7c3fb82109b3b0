"""Formats in which quantised checkpoints are stored: each turns a QuantizedTensor into named tensors, and back."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from squeeze.quant.formats.spec import QuantizationSpec
from squeeze.quant.tensor import QuantizedTensor

__all__ = ["FORMATS", "Format", "QuantizationSpec"]


class Format(Protocol):
    """How one format stores weights. Modules are named as in the checkpoint: "model.layers.0.mlp.up_proj"."""

    name: str

    def check(self, spec: QuantizationSpec) -> None:
        """Raises FormatError, which says what of `spec` this format cannot hold."""

    def tensors(self, name: str, weight: QuantizedTensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """What is stored for the weight of module `name`, scales in `dtype`. Raises FormatError where it cannot be."""

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor], spec: QuantizationSpec) -> QuantizedTensor:
        """The inverse of `tensors`. Raises FormatError where tensors are missing or contradict `spec`."""

    def config(self, spec: QuantizationSpec) -> dict[str, Any]:
        """The `quantization_config` in config.json that describes `spec`."""

    def spec(self, config: Mapping[str, Any]) -> QuantizationSpec:
        """The inverse of `config`, for files of other writers too. Raises FormatError."""


FORMATS: dict[str, Format] = {}
