"""Loading of quantised folders of GPTQ, AWQ and compressed-tensors without the packages that wrote them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import SAFE, empty_model, load_config
from squeeze.checkpoint.renaming import model_modules
from squeeze.engine.expert_names import is_expert
from squeeze.engine.experts import Experts, Layout
from squeeze.engine.rounding import round_inputs
from squeeze.errors import FormatError, printable
from squeeze.integrations.conversions import places, unmerged
from squeeze.quant.activations import ACTIVATIONS
from squeeze.quant.formats import FORMATS, read
from squeeze.quant.formats.compressed_tensors import METHOD as COMPRESSED
from squeeze.quant.formats.reading import QuantizedCheckpoint
from squeeze.quant.kv_scales import check_scheme, round_cache
from squeeze.quant.linear import QuantLinear
from squeeze.quant.rotate import check_still
from squeeze.quant.sources import floats

__all__ = ["load", "place"]


def load(folder: Path | str, dtype: torch.dtype | None = None) -> nn.Module:
    """Load a causal language model from a quantised folder.

    Formats in quant.formats.FORMATS get QuantLinear layers, with rounded inputs if the folder says so; those in
    quant.sources.READERS get dense layers. Experts are dense, or one module a matrix (engine/experts.py) if their
    inputs are rounded. All dense weights are in memory for a moment.

    Raises FormatError if the folder is not quantised or damaged.
    """
    config = load_config(folder)
    described = config.quantization_config
    del config.quantization_config
    method = described.get("quant_method")
    if method == COMPRESSED:
        check_still(described, folder)
    source = floats(Checkpoint.open(folder))
    kind = dtype or config.dtype or source.float_type()
    tensors = {name: _as(kind, source.load([name], strict=False)[name]) for name in source.files}
    empty = empty_model(config)
    for fused in unmerged(empty, tensors):
        fused.restore(tensors)
    _check_whole(folder, empty, tensors)
    loaded: Any = type(empty).from_pretrained(  # type: ignore[attr-defined]
        None, config=config, state_dict=tensors, dtype=kind, use_safetensors=True, output_loading_info=True, **SAFE
    )
    del tensors
    model: nn.Module = loaded[0]
    if missing := loaded[1]["missing_keys"]:
        raise FormatError(f"{folder}: the checkpoint has no tensor for {printable(repr(min(missing)))}")
    if any(form.describes(described) for form in FORMATS.values()):
        place(model, folder)
    return model.eval()


def place(model: nn.Module, folder: Path | str) -> None:
    """Replace layers of a model with dense weights by quantised ones, and round inputs and KV cache, as a folder
    says."""
    stored, checkpoint = read(folder), Checkpoint.open(folder)
    _place(model, stored)
    _place_experts(model, stored)
    described = checkpoint.config["quantization_config"]
    if described.get("quant_method") == COMPRESSED and check_scheme(described):
        round_cache(model, checkpoint)


def _place(model: nn.Module, checkpoint: QuantizedCheckpoint) -> None:
    """Replace linear layers by layers that hold codes."""
    for name, place in model_modules(model, checkpoint.modules).items():  # others are merged, and dense
        module = model.get_submodule(place)
        if type(module) is nn.Linear:
            weight, activations = checkpoint.weight(name), checkpoint.spec.of(name).activations
            layer = QuantLinear.of(weight, module.bias)
            if activations is not None:
                round_inputs(layer, ACTIVATIONS[activations], weight.input_range)
            model.set_submodule(place, layer.to(module.weight.device))


def _place_experts(model: nn.Module, checkpoint: QuantizedCheckpoint) -> None:
    """Split experts whose inputs are rounded into modules, and round those inputs."""
    unknown: list[str] = []
    rounded = [name for name in checkpoint.modules if checkpoint.spec.of(name).activations is not None]
    for path, inside in places(model, [name for name in rounded if is_expert(name)]).items():
        fused = model.get_submodule(path)
        if (layout := Layout.of(fused)) is None:
            unknown.append(path)
            continue
        experts = Experts.filled(fused, layout)
        model.set_submodule(path, experts)
        for name, place in inside.items():
            weight, rounding = checkpoint.weight(name), ACTIVATIONS[str(checkpoint.spec.of(name).activations)]
            round_inputs(experts.get_submodule(place), rounding, weight.input_range)
    if unknown:
        warnings.warn(f"{printable(unknown[0])}: the inputs of its experts are not rounded", stacklevel=2)


def _as(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _check_whole(folder: Path | str, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise FormatError if a model has more weights than its files hold."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    claimed = sum(value.numel() for name, value in model.named_parameters() if name not in tied)
    stored = sum(tensor.numel() for tensor in tensors.values())
    if claimed > stored:
        raise FormatError(f"{folder}: config.json describes a model of {claimed} weights, and the files hold {stored}")
