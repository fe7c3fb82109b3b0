"""Folders that squeeze wrote, in transformers: after `import squeeze.integrations.transformers`,

    AutoModelForCausalLM.from_pretrained("my-model-packed")

loads what `squeeze pack`, `quantize`, `prune` and `factorize` wrote. What is quantised, sparse or factorised is
loading.py's, one class for every form in forms.py. Here is what is coded without loss, which any tensor may be, in
folders of every form: that is no form of a weight. Large weights stay
coded in memory; each is decoded just before it is used, into buffers that all
modules share, so the model computes with the very bits of the original. An
embedding decodes the segments that hold the rows asked for, and a linear layer
that is large beside the model (an output head) is applied some rows at a time.
Small tensors, and those in modules that are neither, are decoded once. For
inference: gradients with respect to inputs work, but decode into fresh memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from squeeze.checkpoint.stored import dtype_named
from squeeze.integrations import loading
from squeeze.integrations.coded import CodedEmbedding, CodedLinear
from squeeze.integrations.packed import LARGE_SHARE, Payloads, memory_of
from squeeze.packing.folder import METHOD

__all__ = [
    "CodedEmbedding",
    "CodedLinear",
    "SqueezeConfig",
    "SqueezeQuantizer",
    "memory_of",
]

loading.register()


@register_quantization_config(METHOD)
class SqueezeConfig(QuantizationConfigMixin):
    """The `quantization_config` of a packed folder.

    dtype: that of most weights, for models whose config names none. large_share: a linear weight of more
    than 1 / large_share of the model's bytes is decoded some rows at a time; 0 decodes every one whole.
    """

    def __init__(self, dtype: str | None = None, large_share: int = LARGE_SHARE, **ignored: Any):
        self.quant_method = METHOD  # type: ignore[assignment]
        self.dtype = dtype
        self.large_share = large_share


@register_quantizer(METHOD)
class SqueezeQuantizer(HfQuantizer):  # type: ignore[no-untyped-call]
    """Loads payloads as uint8 parameters under the names of their tensors, then decodes them or lets them be."""

    requires_calibration = False

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype is None or not dtype.is_floating_point:
            return dtype_named(getattr(self.quantization_config, "dtype", None), torch.get_default_dtype())
        return dtype

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        share = getattr(self.quantization_config, "large_share", LARGE_SHARE)
        self.payloads = Payloads(checkpoint_files or [], share)

    def update_weight_conversions(self, weight_conversions: list[Any], model: nn.Module) -> list[Any]:
        """Transformers asks for this last before it loads."""
        conversions = super().update_weight_conversions(weight_conversions, model)  # type: ignore[no-untyped-call]
        self.payloads.place(model, conversions)
        return list(conversions)

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        self.payloads.settle(model)
        return model

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False
