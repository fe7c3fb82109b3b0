"""Quantised folders of GPTQ and compressed-tensors as models that run, without the packages that wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.pretrained import SAFE, empty_model, load_config
from squeeze.errors import FormatError
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
    empty = empty_model(config)
    _check_whole(folder, empty, tensors)
    model: nn.Module = type(empty).from_pretrained(  # type: ignore[attr-defined]
        None, config=config, state_dict=tensors, dtype=kind, use_safetensors=True, **SAFE
    )
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


def _check_whole(folder: Path | str, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises FormatError where a model has more weights than there are tensors for."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    claimed = sum(value.numel() for name, value in model.named_parameters() if name not in tied)
    stored = sum(tensor.numel() for tensor in tensors.values())
    if claimed > stored:
        raise FormatError(f"{folder}: config.json describes a model of {claimed} weights, and the files hold {stored}")
