"""Quantised folders of the format `squeeze` in transformers: after `import squeeze.integrations.transformers`,

    AutoModelForCausalLM.from_pretrained("my-model-w4")

loads them; `load` takes those of GPTQ and compressed-tensors too, without other packages. Linear layers (and GPT-2's
Conv1D) become QuantLinear, whose weights stay quantised in memory. What transformers holds otherwise, as experts merged
into one tensor, is expanded while it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.quantizers.auto import register_quantization_config, register_quantizer

from squeeze.errors import FormatError
from squeeze.integrations.loading import Description, Expand, Leaves, Loader, by_module, named
from squeeze.quant.formats import read
from squeeze.quant.formats.own import METHOD, SqueezeFormat
from squeeze.quant.linear import QuantLinear

_FORMAT = SqueezeFormat()


@register_quantization_config(METHOD)
class QuantisedConfig(Description):
    """The `quantization_config` of a quantised folder."""

    method = METHOD


class _Expand(Expand):
    def weight(self, module: str, leaves: Leaves, dtype: torch.dtype) -> torch.Tensor:
        return _FORMAT.stored(module, named(module, leaves)).dequantize(dtype)


@register_quantizer(METHOD)
class QuantisedLoader(Loader):
    """Layers with quantised weights."""

    serialized_names = {"weight": ["weight", *_FORMAT.leaves]}  # noqa: RUF012
    expand = _Expand

    def check(self, described: dict[str, Any]) -> None:
        _FORMAT.spec(described)

    def modules_of(self, names: Iterable[str]) -> Mapping[str, Iterable[str]]:
        return by_module(names, _FORMAT.leaves, "codes")

    def layer(self, name: str, inputs: int, outputs: int, stored: Leaves, bias: torch.Tensor | None) -> nn.Module:
        if stored["codes"].shape[0] != outputs:
            raise FormatError(f"{name}: has {stored['codes'].shape[0]} output channels, but the model needs {outputs}")
        return QuantLinear(inputs, outputs, stored, bias)


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
