"""Pruned folders in transformers: after `import squeeze.integrations.transformers`,

    AutoModelForCausalLM.from_pretrained("my-model-24")

loads what `squeeze prune` wrote. Linear layers (and GPT-2's Conv1D) become Sparse24Linear. What transformers holds
otherwise, as experts merged into one tensor, is expanded while it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer

from squeeze.errors import FormatError
from squeeze.integrations.loading import Description, Expand, Leaves, Loader, by_module, named
from squeeze.prune.linear import Sparse24Linear
from squeeze.prune.sparse24 import METHOD, SparseFormat

_FORMAT = SparseFormat()


@register_quantization_config(METHOD)
class SparseConfig(Description):
    """The `quantization_config` of a pruned folder."""

    method = METHOD


class _Expand(Expand):
    def weight(self, module: str, leaves: Leaves, dtype: torch.dtype) -> torch.Tensor:
        return _FORMAT.weight(module, named(module, leaves)).dequantize(dtype)


@register_quantizer(METHOD)
class SparseLoader(Loader):
    """Layers with sparse weights."""

    serialized_names = {"weight": ["weight", *_FORMAT.leaves]}  # noqa: RUF012
    expand = _Expand

    def check(self, described: dict[str, Any]) -> None:
        _FORMAT.check(described)

    def modules_of(self, names: Iterable[str]) -> Mapping[str, Iterable[str]]:
        return by_module(names, _FORMAT.leaves, "sparse_mask")

    def layer(self, name: str, inputs: int, outputs: int, stored: Leaves, bias: torch.Tensor | None) -> nn.Module:
        if "sparse_values" not in stored or "sparse_grid" not in stored:
            raise FormatError(f"{name}: parts of its sparse weight are missing")
        return Sparse24Linear(inputs, outputs, stored, bias)
