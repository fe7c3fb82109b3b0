"""Folders that `squeeze pack` wrote, in diffusers: after `import squeeze.integrations.diffusers`,

    FluxTransformer2DModel.from_pretrained("pipeline-packed", subfolder="transformer")
    DiffusionPipeline.from_pretrained("pipeline-packed")

load packed models, alone or in their pipeline, whose text encoders are transformers'. Large weights of linear layers
and embeddings stay coded in memory, and are decoded just before they are used; all others, such as those of
convolutions, are decoded once.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

import torch
from diffusers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from diffusers.quantizers.base import DiffusersQuantizer
from diffusers.quantizers.quantization_config import QuantizationConfigMixin
from torch import nn

import squeeze.integrations.transformers  # noqa: F401  for the text encoders
from squeeze.checkpoint.stored import dtype_named
from squeeze.integrations.packed import LARGE_SHARE, PRODUCTS, Payloads, memory_of
from squeeze.options.option import size_of
from squeeze.packing.folder import METHOD

__all__ = ["SqueezeConfig", "SqueezeQuantizer", "memory_of"]


class _Method(StrEnum):
    """Diffusers asks methods for their value."""

    SQUEEZE = METHOD


class SqueezeConfig(QuantizationConfigMixin):
    """The `quantization_config` of a packed model of diffusers.

    dtype: that of most weights, for whoever names none. large_share: a linear weight of more than 1 / large_share of
    the model's bytes is decoded some rows at a time; 0 decodes every one whole. resident: bytes, or a text such as
    "2G", of large weights that are decoded once and kept. product: "exact", or "fused", which multiplies weights while
    it decodes them, in float32. base_folder: of differences (`squeeze pack --base`), the base, packed or not, which is
    looked for beside the folder where none is named. check: every weight that stays coded is decoded once when the
    model is loaded, and compared with its checksum; False leaves that out, for a folder that `squeeze verify` has just
    been through.
    """

    def __init__(
        self,
        dtype: str | None = None,
        large_share: int = LARGE_SHARE,
        resident: int | str = 0,
        product: str = PRODUCTS[0],
        base_folder: str | None = None,
        check: bool = True,
        **ignored: Any,
    ):
        self.quant_method = _Method.SQUEEZE  # type: ignore[assignment]
        self.dtype = dtype
        self.large_share = large_share
        self.resident = size_of(resident) if isinstance(resident, str) else resident
        self.product = product
        self.base_folder = base_folder
        self.check = check

    def to_diff_dict(self) -> dict[str, Any]:
        """Diffusers prints a config by this, which its own base class lacks."""
        return self.to_dict()


class SqueezeQuantizer(DiffusersQuantizer):
    """Loads payloads as uint8 parameters under the names of their tensors, then decodes them or lets them be."""

    use_keep_in_fp32_modules = True

    def __init__(self, quantization_config: SqueezeConfig, **kwargs: Any):
        super().__init__(quantization_config, **kwargs)
        self.config = quantization_config

    def update_torch_dtype(self, torch_dtype: torch.dtype | None) -> torch.dtype:
        self.dtype = torch_dtype or dtype_named(self.config.dtype, torch.get_default_dtype())
        return self.dtype

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: list[str]) -> list[str]:
        """Diffusers tells here, and nowhere else, which files it reads."""
        config, files = self.config, [str(file) for file in checkpoint_files]
        options = config.large_share, config.resident, config.product, config.base_folder
        self.payloads = Payloads(files, *options, check=config.check)
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


AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = SqueezeConfig
AUTO_QUANTIZER_MAPPING[METHOD] = SqueezeQuantizer
