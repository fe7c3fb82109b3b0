"""Pruned folders in transformers: after `import squeeze.integrations.transformers`,

    AutoModelForCausalLM.from_pretrained("my-model-24")

loads what `squeeze prune` wrote. Linear layers (and GPT-2's Conv1D) become Sparse24Linear. What transformers holds
otherwise, as experts merged into one tensor, is expanded while it is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from squeeze.errors import FormatError
from squeeze.integrations.quantised import Expand, QuantisedLoader
from squeeze.packing import tensorfile
from squeeze.packing.load import torch_dtype
from squeeze.prune.linear import Sparse24Linear
from squeeze.prune.sparse24 import METHOD, SparseFormat

_FORMAT = SparseFormat()


@register_quantization_config(METHOD)
class SparseConfig(QuantizationConfigMixin):
    """The `quantization_config` of a pruned folder: see docs/format.md."""

    def __init__(self, **described: Any):
        self.quant_method = METHOD  # type: ignore[assignment]
        self.described = {key: value for key, value in described.items() if key != "quant_method"}
        self.dtype = described.get("dtype")

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": METHOD, **self.described}


class _ExpandSparse(Expand):
    def weight(self, module: str, tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        return _FORMAT.weight(module, tensors).dequantize(dtype)


@register_quantizer(METHOD)
class SparseLoader(QuantisedLoader):
    """Gives every layer whose weight is sparse in the checkpoint the buffers that are stored for it."""

    serialized_names = {"weight": ["weight", *_FORMAT.leaves]}  # noqa: RUF012
    expand = _ExpandSparse

    def check(self) -> None:
        _FORMAT.check(self.quantization_config.to_dict())

    def stored(self, files: list[str]) -> dict[str, dict[str, torch.Tensor]]:
        modules: dict[str, dict[str, torch.Tensor]] = {}
        for name in files:
            for tensor in tensorfile.read(Path(name)).tensors:
                module, _, leaf = tensor.name.rpartition(".")
                if leaf in _FORMAT.leaves:
                    dtype = torch_dtype(tensor.dtype, tensor.name)
                    modules.setdefault(module, {})[leaf] = torch.empty(tensor.shape, dtype=dtype, device="meta")
        return {module: leaves for module, leaves in modules.items() if "sparse_mask" in leaves}

    def layer(self, name: str, module: nn.Module, stored: dict[str, torch.Tensor]) -> nn.Module:
        weight, bias = module._parameters["weight"], module._parameters["bias"]
        assert weight is not None
        outputs, inputs = reversed(weight.shape) if isinstance(module, Conv1D) else weight.shape
        if "sparse_values" not in stored or "sparse_grid" not in stored:
            raise FormatError(f"{name}: parts of its sparse weight are missing")
        return Sparse24Linear(inputs, outputs, stored, None if bias is None else bias.data)
