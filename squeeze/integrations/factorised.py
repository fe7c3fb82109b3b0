"""Factorised folders in transformers: after `import squeeze.integrations.transformers`,

    AutoModelForCausalLM.from_pretrained("my-model-factorised")

loads them. Linear layers (and GPT-2's Conv1D) become FactorLinear; what transformers holds otherwise, as experts merged
into one tensor, is multiplied out while it is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from squeeze.errors import FormatError
from squeeze.factor import METHOD, VERSION
from squeeze.factor.form import Form
from squeeze.factor.forms import LEAVES, modules_of, read_form
from squeeze.factor.linear import FactorLinear
from squeeze.packing import tensorfile
from squeeze.packing.load import torch_dtype

__all__ = ["FactorisedConfig", "FactorisedLoader"]


@register_quantization_config(METHOD)
class FactorisedConfig(QuantizationConfigMixin):
    """The `quantization_config` of a factorised folder: see docs/format.md."""

    def __init__(self, **described: Any):
        self.quant_method = METHOD  # type: ignore[assignment]
        self.described = {key: value for key, value in described.items() if key != "quant_method"}
        self.dtype = described.get("dtype")

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": METHOD, **self.described}


class _Expand(ConversionOps):
    """Tensors of a factorised weight, or of as many as are merged into one, to dense weights."""

    def __init__(self, hf_quantizer: HfQuantizer):
        self.hf_quantizer = hf_quantizer

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for pattern, tensors in input_dict.items():
            module, _, leaf = pattern.rpartition(".")
            found.setdefault(module, {})[leaf] = tensors if isinstance(tensors, list) else [tensors]
        dtype = kwargs["model"].dtype
        return {f"{module}.weight": _dense(module, leaves, dtype) for module, leaves in found.items()}


def _dense(module: str, leaves: dict[str, list[torch.Tensor]], dtype: torch.dtype) -> list[torch.Tensor]:
    """Raises FormatError where the weights merged here are of several forms: which, their order does not tell."""
    lengths = {len(tensors) for tensors in leaves.values()}
    if len(lengths) != 1 or (len(leaves) > 1 and "weight" in leaves):
        raise FormatError(f"{module}: some of its weights are stored in another form than the others")
    if "weight" in leaves:
        return leaves["weight"]
    each = ({leaf: tensors[i] for leaf, tensors in leaves.items()} for i in range(lengths.pop()))
    return [read_form(module, tensors).dequantize(dtype) for tensors in each]


@register_quantizer(METHOD)
class FactorisedLoader(HfQuantizer):  # type: ignore[no-untyped-call]
    """Gives every layer whose weight is factorised in the checkpoint the tensors that are stored for it."""

    requires_calibration = True
    serialized_names = {"weight": ["weight", *LEAVES]}  # noqa: RUF012

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype is None or not dtype.is_floating_point:
            named = getattr(torch, str(getattr(self.quantization_config, "dtype", None)), None)
            return named if isinstance(named, torch.dtype) else torch.get_default_dtype()
        return dtype

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        version = self.quantization_config.to_dict().get("version")
        if version != VERSION:
            raise FormatError(f"version {version!r} of squeeze's factorised folders is unknown: use a newer squeeze")
        stored = _stored(checkpoint_files or [])
        prefix = getattr(model, "base_model_prefix", "")
        for name, module in list(model.named_modules()):
            spellings = (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}."))
            found = next((stored[spelling] for spelling in spellings if spelling in stored), None)
            if found is not None and isinstance(module, (nn.Linear, Conv1D)):
                parent, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(parent), leaf, _layer(name, module, found))

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        model.requires_grad_(False)
        return model

    def get_load_operations(self) -> dict[str, type[ConversionOps]]:
        return {"dequantize": _Expand}

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


def _stored(files: list[str]) -> dict[str, dict[str, torch.Tensor]]:
    """What is stored of each factorised module, by leaf; only small tensors (masks, sizes) with their values."""
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for name in files:
        file = tensorfile.read(Path(name))
        for module, leaves in modules_of(file.by_name).items():
            for leaf in leaves:
                info = file.by_name[f"{module}.{leaf}"]
                dtype = torch_dtype(info.dtype, info.name)
                modules.setdefault(module, {})[leaf] = torch.empty(info.shape, dtype=dtype, device="meta")
    return modules


def _layer(name: str, module: nn.Module, stored: dict[str, torch.Tensor]) -> FactorLinear:
    """The shapes are checked against the network when the values are there: see FactorLinear.form."""
    weight, bias = module._parameters["weight"], module._parameters["bias"]
    assert weight is not None
    outputs, inputs = reversed(weight.shape) if isinstance(module, Conv1D) else weight.shape
    if not any(leaf.endswith("_codes") for leaf in stored):
        stored = {
            leaf: tensor.to(weight.dtype) if tensor.is_floating_point() else tensor for leaf, tensor in stored.items()
        }
    return FactorLinear(inputs, outputs, stored, None if bias is None else bias.data)


def forms_of(model: nn.Module) -> dict[str, Form]:
    """The factorised layers of a model."""
    return {name: module.form() for name, module in model.named_modules() if isinstance(module, FactorLinear)}
