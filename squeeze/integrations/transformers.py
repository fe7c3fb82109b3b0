"""Folders that squeeze wrote, in transformers: after `import squeeze.integrations.transformers`,

    AutoModelForCausalLM.from_pretrained("my-model-packed")

loads what `squeeze pack`, `quantize`, `prune` and `factorize` wrote. What is quantised, sparse or factorised is
loading.py's, one class for every form in forms.py. Here is what is coded without loss, which any tensor may be, in
folders of every form: that is no form of a weight. Large weights stay
coded in memory; each is decoded just before it is used, into buffers that all
modules share, so the model computes with the very bits of the original. An
embedding decodes the segments that hold the rows asked for, a linear layer
that is large beside the model (an output head) is applied some rows at a time,
and of a layer's experts those are decoded that tokens reach. Small tensors, and
those in other modules, are decoded once, and so are large ones that may be
resident. For inference: gradients with respect to inputs work, but decode into
fresh memory. Files of torch's, as pytorch_model.bin, and folders in quantised
forms of others are restored to be loaded (restoring.py).
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
from squeeze.integrations.coded import CodedEmbedding, CodedLinear
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
    """The `quantization_config` of a packed folder.

    How the caller wants it loaded is not in it: see `load_options`.

    Args:
        dtype: the type of most weights, for models whose config names none.
        quantization: the `quantization_config` of the original, if that was quantised in a form that transformers
            itself reads.
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
    """Loads payloads as uint8 parameters under the names of their tensors, then decodes them or lets them be.

    Where what was packed was quantised, transformers' own quantizer of that form is asked besides, and is given what
    payloads stand for.
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
        """Transformers asks for this last before it loads."""
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
