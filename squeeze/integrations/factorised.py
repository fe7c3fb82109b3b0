"""Factorised folders in transformers: after `import squeeze.integrations.transformers`,

    AutoModelForCausalLM.from_pretrained("my-model-factorised")

loads them. Linear layers (and GPT-2's Conv1D) become FactorLinear; what transformers holds otherwise, as experts merged
into one tensor, is multiplied out while it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer

from squeeze.errors import FormatError
from squeeze.factor import METHOD, VERSION
from squeeze.factor.form import Form
from squeeze.factor.forms import LEAVES, modules_of, read_form
from squeeze.factor.linear import FactorLinear, join
from squeeze.integrations.loading import Description, Expand, Leaves, Loader

__all__ = ["FactorisedConfig", "FactorisedLoader", "forms_of"]


@register_quantization_config(METHOD)
class FactorisedConfig(Description):
    """The `quantization_config` of a factorised folder."""

    method = METHOD


class _Expand(Expand):
    def weight(self, module: str, leaves: Leaves, dtype: torch.dtype) -> torch.Tensor:
        return read_form(module, leaves).dequantize(dtype)


@register_quantizer(METHOD)
class FactorisedLoader(Loader):
    """Layers with factors; their shapes are checked when the values are there: see FactorLinear.form."""

    serialized_names = {"weight": ["weight", *LEAVES]}  # noqa: RUF012
    expand = _Expand

    def check(self, described: dict[str, Any]) -> None:
        version = described.get("version")
        if version != VERSION:
            raise FormatError(f"version {version!r} of squeeze's factorised folders is unknown: use a newer squeeze")

    def modules_of(self, names: Iterable[str]) -> Mapping[str, Iterable[str]]:
        return modules_of(names)

    def float_type(self, stored: Leaves, weight: torch.Tensor) -> torch.dtype | None:
        return None if any(leaf.endswith("_codes") for leaf in stored) else weight.dtype

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        join(model)
        return super()._process_model_after_weight_loading(model, **kwargs)

    def layer(self, name: str, inputs: int, outputs: int, stored: Leaves, bias: torch.Tensor | None) -> nn.Module:
        return FactorLinear(inputs, outputs, stored, bias)


def forms_of(model: nn.Module) -> dict[str, Form]:
    """The factorised layers of a model."""
    return {name: module.form() for name, module in model.named_modules() if isinstance(module, FactorLinear)}
