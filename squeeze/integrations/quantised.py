"""Quantised folders of GPTQ and compressed-tensors as models that run, without the packages that wrote them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from squeeze.checkpoint.pretrained import load_config
from squeeze.quant.formats import read
from squeeze.quant.linear import QuantLinear

__all__ = ["load"]


def load(folder: Path | str, dtype: torch.dtype | None = None) -> nn.Module:
    """A causal language model from a quantised folder of any of quant.formats.FORMATS, with QuantLinear layers.

    dtype: to compute in; None for the folder's own. The dense weights are all in memory for a moment. Raises
    FormatError where the folder is not quantised or damaged.
    """
    checkpoint = read(folder)
    config = load_config(folder)
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
