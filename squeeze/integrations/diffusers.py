"""Packed models in diffusers. After `import squeeze.integrations.diffusers`,

    FluxTransformer2DModel.from_pretrained("pipeline-packed", subfolder="transformer")
    DiffusionPipeline.from_pretrained("pipeline-packed")

load models that `squeeze pack` wrote, alone or in their pipeline, whose text encoders are loaded by transformers.

Large weights of linear layers and embeddings stay coded in memory and are decoded just before use. All others, such as
those of convolutions, are decoded once.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

import torch
from diffusers.models import modeling_utils
from diffusers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from diffusers.quantizers.base import DiffusersQuantizer
from diffusers.quantizers.quantization_config import QuantizationConfigMixin
from torch import nn

import squeeze.integrations.transformers  # noqa: F401  for the text encoders
from squeeze.checkpoint.config_json import check_description
from squeeze.checkpoint.stored import dtype_named
from squeeze.integrations.load_options import current, load_options
from squeeze.integrations.packed import Payloads, memory_of
from squeeze.integrations.restoring import within_folder
from squeeze.packing.manifest import METHOD

__all__ = ["SqueezeConfig", "SqueezeQuantizer", "load_options", "memory_of"]


class _Method(StrEnum):
    """A quantisation method's name with a `value`, which diffusers reads."""

    SQUEEZE = METHOD


class SqueezeConfig(QuantizationConfigMixin):
    """The `quantization_config` of a packed model of diffusers. Options of loading are those of `load_options`.

    Args:
        dtype: Dtype of most weights, if the caller names none.
    """

    def __init__(self, dtype: str | None = None, **ignored: Any):
        check_description(ignored)
        self.quant_method = _Method.SQUEEZE  # type: ignore[assignment]
        self.dtype = dtype

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields that diffusers prints; its own base class lacks this method."""
        return self.to_dict()


class SqueezeQuantizer(DiffusersQuantizer):
    """A quantizer that loads payloads as uint8 parameters, and then decodes them or leaves them coded."""

    use_keep_in_fp32_modules = True

    def __init__(self, quantization_config: SqueezeConfig, **kwargs: Any):
        super().__init__(quantization_config, **kwargs)
        self.config = quantization_config

    def update_torch_dtype(self, torch_dtype: torch.dtype | None) -> torch.dtype:
        self.dtype = torch_dtype or dtype_named(self.config.dtype, torch.get_default_dtype())
        return self.dtype

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: list[str]) -> list[str]:
        """Note the files that diffusers reads, which it passes only to this method."""
        self.payloads = Payloads([str(file) for file in checkpoint_files], current())
        return loaded_keys

    def _process_model_before_weight_loading(
        self, model: nn.Module, keep_in_fp32_modules: list[str] | None = None, **kwargs: Any
    ) -> None:
        kept = {rf"(^|\.){re.escape(name)}(\.|$)": torch.float32 for name in keep_in_fp32_modules or ()}
        self.payloads.place(model, (), kept | {"": self.dtype})

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        self.payloads.settle(model)
        return model

    @property
    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


_shards = modeling_utils._get_checkpoint_shard_files  # type: ignore[attr-defined]
modeling_utils._get_checkpoint_shard_files = within_folder(_shards)  # type: ignore[attr-defined]
AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = SqueezeConfig
AUTO_QUANTIZER_MAPPING[METHOD] = SqueezeQuantizer
