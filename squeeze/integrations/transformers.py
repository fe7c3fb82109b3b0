"""Packed folders in transformers, and registration of all other stored forms.

After `import squeeze.integrations.transformers`,

    AutoModelForCausalLM.from_pretrained("my-model-packed")

loads what `squeeze pack`, `quantize`, `prune` and `factorize` wrote. loading.py loads quantised, sparse and factorised
weights. This module loads what `pack` coded losslessly.

Large weights stay coded in memory and are decoded just before use, into buffers that all modules share, so the model
computes with the original bits. An embedding decodes the segments of the rows it needs. A linear layer that is large
for the model (an output head) is applied some rows at a time. Only those of a layer's experts are decoded that tokens
reach. Small tensors, and large ones that may be resident, are decoded once. Gradients with respect to inputs work, but
decode into memory of their own. Pickled torch files and packed folders in other tools' formats are restored first
(restoring.py).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import nn
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from squeeze.checkpoint.config_json import check_description
from squeeze.checkpoint.stored import dtype_named
from squeeze.errors import FormatError, printable
from squeeze.integrations import compressed_tensors, loading, restoring
from squeeze.integrations.coded_layers import CodedEmbedding, CodedLinear
from squeeze.integrations.load_options import current, load_options
from squeeze.integrations.packed import Payloads, memory_of
from squeeze.packing.manifest import CONVERTED, METHOD, METHODS

__all__ = [
    "CodedEmbedding",
    "CodedLinear",
    "SqueezeConfig",
    "SqueezeQuantizer",
    "load_options",
    "memory_of",
]

loading.register()
restoring.register()
if find_spec("compressed_tensors"):
    compressed_tensors.register()


class SqueezeConfig(QuantizationConfigMixin):
    """The `quantization_config` of a packed folder. Options of loading are those of `load_options`.

    Args:
        dtype: Dtype of most weights, for models whose config names none.
        quantization: `quantization_config` of the original, if it was quantised in a format that transformers reads.
    """

    def __init__(
        self,
        dtype: str | None = None,
        quant_method: str = METHOD,
        quantization: dict[str, Any] | None = None,
        **ignored: Any,
    ):
        check_description(ignored)
        self.quant_method = quant_method  # type: ignore[assignment]
        self.dtype = dtype
        self.quantization = quantization


class SqueezeQuantizer(HfQuantizer):  # type: ignore[no-untyped-call]
    """A quantizer that loads payloads as uint8 parameters, and then decodes them or leaves them coded.

    If the packed model was quantised, transformers' own quantizer of that format runs as well, on decoded tensors.
    """

    requires_calibration = False
    takes_payloads = True

    def __init__(self, quantization_config: SqueezeConfig, **kwargs: Any):
        super().__init__(quantization_config, **kwargs)
        self.config = quantization_config
        self.theirs: Any = None
        if stored := quantization_config.quantization:
            method = stored.get("quant_method") if isinstance(stored, dict) else None
            if method not in CONVERTED:
                expected = " or ".join(CONVERTED)
                raise FormatError(f"expected {expected} in a packed folder, got {printable(repr(method))}")
            config: Any = AUTO_QUANTIZATION_CONFIG_MAPPING[method]
            self.theirs = AUTO_QUANTIZER_MAPPING[method](config.from_dict(stored), pre_quantized=True)

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        if self.theirs:
            self.theirs.validate_environment(*args, **kwargs)

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype is None or not dtype.is_floating_point:
            dtype = dtype_named(self.config.dtype, torch.get_default_dtype())
        return cast(torch.dtype, self.theirs.update_dtype(dtype)) if self.theirs else dtype

    def param_needs_quantization(self, model: nn.Module, param_name: str, **kwargs: Any) -> bool:
        return bool(self.theirs and self.theirs.param_needs_quantization(model, param_name, **kwargs))

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        self.payloads = Payloads(checkpoint_files or [], current())
        if self.theirs:
            self.theirs._process_model_before_weight_loading(model, checkpoint_files=checkpoint_files, **kwargs)

    def update_weight_conversions(self, weight_conversions: list[Any], model: nn.Module) -> list[Any]:
        """Place the payloads; transformers calls this last before it loads."""
        if self.theirs:
            weight_conversions = self.theirs.update_weight_conversions(weight_conversions, model)
        self.payloads.place(model, weight_conversions)
        return weight_conversions

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        self.payloads.settle(model)
        if self.theirs:
            self.theirs.postprocess_model(model)
        return model

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


for _method in METHODS:
    register_quantization_config(_method)(SqueezeConfig)
    register_quantizer(_method)(SqueezeQuantizer)
