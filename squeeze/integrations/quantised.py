"""Quantised folders of the format `squeeze` in transformers: after `import squeeze.integrations.transformers`,

    AutoModelForCausalLM.from_pretrained("my-model-w4")

loads them; `load` takes those of GPTQ and compressed-tensors too, without other packages. Linear layers (and GPT-2's
Conv1D) become QuantLinear, whose weights stay quantised in memory. What transformers holds otherwise, as experts merged
into one tensor, is expanded while it is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import ConversionOps
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from squeeze.errors import FormatError
from squeeze.packing import tensorfile
from squeeze.packing.load import torch_dtype
from squeeze.quant.formats import read
from squeeze.quant.formats.own import METHOD, SqueezeFormat
from squeeze.quant.linear import QuantLinear

_FORMAT = SqueezeFormat()


@register_quantization_config(METHOD)
class QuantisedConfig(QuantizationConfigMixin):
    """The `quantization_config` of a quantised folder: see docs/format.md."""

    def __init__(self, **described: Any):
        self.quant_method = METHOD  # type: ignore[assignment]
        self.described = {key: value for key, value in described.items() if key != "quant_method"}
        self.dtype = described.get("dtype")

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": METHOD, **self.described}


class Expand(ConversionOps):
    """Tensors of a quantised weight, or of as many as are merged into one, to dense weights."""

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
        return {f"{module}.weight": self._dense(module, leaves, dtype) for module, leaves in found.items()}

    def _dense(self, module: str, leaves: dict[str, list[torch.Tensor]], dtype: torch.dtype) -> list[torch.Tensor]:
        """Raises FormatError where only some of the weights merged are quantised: which, their order does not tell."""
        lengths = {len(tensors) for tensors in leaves.values()}
        if len(lengths) != 1 or (len(leaves) > 1 and "weight" in leaves):
            raise FormatError(f"{module}: some of its weights are stored in another way than the others")
        if "weight" in leaves:
            return leaves["weight"]
        weights = []
        for number in range(lengths.pop()):
            tensors = {f"{module}.{leaf}": values[number] for leaf, values in leaves.items()}
            weights.append(self.weight(module, tensors, dtype))
        return weights

    def weight(self, module: str, tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """The dense weight that one module's tensors stand for."""
        return _FORMAT.stored(module, tensors).dequantize(dtype)


@register_quantizer(METHOD)
class QuantisedLoader(HfQuantizer):  # type: ignore[no-untyped-call]
    """Gives every layer whose weight is quantised in the checkpoint the buffers that are stored for it."""

    requires_calibration = True
    serialized_names = {"weight": ["weight", *_FORMAT.leaves]}  # noqa: RUF012
    expand: type[Expand] = Expand

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype is None or not dtype.is_floating_point:
            named = getattr(torch, str(getattr(self.quantization_config, "dtype", None)), None)
            return named if isinstance(named, torch.dtype) else torch.get_default_dtype()
        return dtype

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        self.check()
        stored = self.stored(checkpoint_files or [])
        prefix = getattr(model, "base_model_prefix", "")
        for name, module in list(model.named_modules()):
            spellings = (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}."))
            found = next((stored[spelling] for spelling in spellings if spelling in stored), None)
            if found is not None and isinstance(module, (nn.Linear, Conv1D)):
                parent, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(parent), leaf, self.layer(name, module, found))

    def check(self) -> None:
        """Raises FormatError for a description that this version cannot read."""
        _FORMAT.spec(self.quantization_config.to_dict())

    def stored(self, files: list[str]) -> dict[str, dict[str, torch.Tensor]]:
        """What is stored of each quantised module, by leaf, as tensors without values."""
        return _stored(files)

    def layer(self, name: str, module: nn.Module, stored: dict[str, torch.Tensor]) -> nn.Module:
        """What takes a module's place. Raises FormatError where what is stored is not for it."""
        return _layer(name, module, stored)

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        model.requires_grad_(False)
        return model

    def get_load_operations(self) -> dict[str, type[ConversionOps]]:
        return {"dequantize": self.expand}

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


def load(folder: Path | str, dtype: torch.dtype | None = None) -> nn.Module:
    """A causal language model from a quantised folder of any of quant.formats.FORMATS, with QuantLinear layers.

    dtype: to compute in; None for the folder's own. The dense weights are all in memory for a moment. Raises
    FormatError where the folder is not quantised or damaged.
    """
    checkpoint = read(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    del config.quantization_config
    kind = dtype or config.dtype or checkpoint.spec.dtype
    tensors = dict(checkpoint.dense(kind))
    with torch.device("meta"):
        architecture = type(AutoModelForCausalLM.from_config(config))  # type: ignore[no-untyped-call]
    model: nn.Module = architecture.from_pretrained(None, config=config, state_dict=tensors, dtype=kind)
    del tensors
    for name in checkpoint.modules:
        parent, _, leaf = name.rpartition(".")
        try:
            module = model.get_submodule(name)
        except AttributeError:  # merged into something else, and dense
            continue
        if type(module) is nn.Linear:
            setattr(model.get_submodule(parent), leaf, QuantLinear.of(checkpoint.weight(name), module.bias))
    return model.eval()


def _stored(files: list[str]) -> dict[str, dict[str, torch.Tensor]]:
    """What is stored of each quantised module, by leaf, as tensors without values."""
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for name in files:
        for tensor in tensorfile.read(Path(name)).tensors:
            module, _, leaf = tensor.name.rpartition(".")
            if leaf in _FORMAT.leaves:
                dtype = torch_dtype(tensor.dtype, tensor.name)
                modules.setdefault(module, {})[leaf] = torch.empty(tensor.shape, dtype=dtype, device="meta")
    return {module: leaves for module, leaves in modules.items() if "codes" in leaves}


def _layer(name: str, module: nn.Module, stored: dict[str, torch.Tensor]) -> QuantLinear:
    """Raises FormatError where what is stored is not for this layer."""
    weight, bias = module._parameters["weight"], module._parameters["bias"]
    assert weight is not None
    outputs, inputs = reversed(weight.shape) if isinstance(module, Conv1D) else weight.shape
    if stored["codes"].shape[0] != outputs:
        raise FormatError(f"{name}: has {stored['codes'].shape[0]} output channels, but the model needs {outputs}")
    return QuantLinear(inputs, outputs, stored, None if bias is None else bias.data)
