"""Folders of formats that squeeze writes, too: GPTQ and our own; and what readers of others of these share."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from squeeze.checkpoint.pretrained import dense_model
from squeeze.checkpoint.renaming import transposed
from squeeze.quant.formats.registry import Format, format_of
from squeeze.quant.formats.spec import QuantizationSpec
from squeeze.quant.sources.source import Source

__all__ = ["integers", "modules_of", "read"]


def integers(source: Source, described: Mapping[str, Any]) -> None:
    """As Reader."""
    form = format_of(described)
    spec, leaves = form.spec(described), modules_of(source, form)
    small = {name for names in leaves.values() for name in names if name.endswith(".grid")}
    said = source.checkpoint.load(small, strict=False)
    turned = transposed(dense_model(source.checkpoint.folder), leaves) if form.transposed else set()
    for module, names in leaves.items():
        shape = next((tuple(said[name].flatten()[:2].tolist()) for name in names if name in said), None)
        sizes = shape or _gptq_shape(source, module, spec)
        reading = partial(read, form, spec, module, module in turned)
        source.put(f"{module}.weight", reversed(sizes) if module in turned else sizes, names, reading)


def modules_of(source: Source, form: Format) -> dict[str, list[str]]:
    """By module, the names of its tensors."""
    files, mark = source.checkpoint.files, f".{form.leaves[0]}"
    modules = [name.removesuffix(mark) for name in files if name.endswith(mark)]
    return {module: [name for leaf in form.leaves if (name := f"{module}.{leaf}") in files] for module in modules}


def _gptq_shape(source: Source, module: str, spec: QuantizationSpec) -> tuple[int, int]:
    words, outputs = source.shape(f"{module}.qweight")
    return outputs, words * 32 // spec.of(module).bits


def read(
    form: Format, spec: QuantizationSpec, module: str, turned: bool, tensors: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """The floats of a module's weight; turned: transposed."""
    weight = form.weight(module, tensors, spec).dequantize()
    return weight.T.contiguous() if turned else weight
