"""Quantised weights as a stored form: the layers of our own format, and dense weights of every format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.stored import Leaves, Stored, StoredForm, named
from squeeze.errors import FormatError
from squeeze.quant.embedding import QuantEmbedding, quantised_embedding, tied_layer
from squeeze.quant.formats import read
from squeeze.quant.formats.squeeze import METHOD, SqueezeFormat
from squeeze.quant.linear import QuantLinear
from squeeze.quant.rotate import check_still

__all__ = ["QuantizedForm"]

_FORMAT = SqueezeFormat()


class QuantizedForm(StoredForm):
    """The form of folders in the format `squeeze`; `open` also reads folders of GPTQ and compressed-tensors."""

    method = METHOD
    leaves = _FORMAT.leaves
    mark = "codes"

    def check(self, described: Mapping[str, Any]) -> None:
        _FORMAT.spec(described)

    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        if not isinstance(checkpoint.config.get("quantization_config"), dict):
            return None
        check_still(checkpoint.config["quantization_config"], checkpoint.folder)
        quantized = read(checkpoint.folder)
        form, spec = quantized.format, quantized.spec
        modules = {
            module: [leaf for leaf in form.leaves if f"{module}.{leaf}" in quantized.tensors]
            for module in quantized.modules
        }

        def weight(module: str, tensors: dict[str, torch.Tensor]) -> QuantizedTensor:
            return form.weight(module, tensors, spec)

        return Stored(modules, spec.dtype, weight)

    def weight(self, module: str, leaves: Leaves) -> QuantizedTensor:
        return _FORMAT.stored(module, named(module, leaves))

    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        outputs, inputs = shape
        if leaves["codes"].shape[0] != outputs:
            raise FormatError(f"{module}: expected {outputs} output channels, got {leaves['codes'].shape[0]}")
        return QuantLinear(inputs, outputs, leaves, bias, module)

    def embedding(self, module: str, table: nn.Embedding, leaves: Leaves) -> nn.Module | None:
        return quantised_embedding(module, table, leaves)

    def settle(self, model: nn.Module) -> None:
        for name, module in list(model.named_modules()):
            if isinstance(module, QuantEmbedding):
                parts = name.split(".")
                owners = (model.get_submodule(".".join(parts[:count])) for count in range(len(parts) - 1, -1, -1))
                initialise: Any = next((one._init_weights for one in owners if hasattr(one, "_init_weights")), None)
                if initialise:
                    module.compute_buffers(initialise)

    def tied(self, table: nn.Module, layer: nn.Module) -> nn.Module:
        assert isinstance(table, QuantEmbedding)
        return tied_layer(table, layer)
