"""Readers of folders in formats that squeeze writes, too: GPTQ, AWQ, bitsandbytes, compressed-tensors and our own.

quant/formats has the formats. Shapes are compared with the description when a folder is opened.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from squeeze.checkpoint.pretrained import dense_model
from squeeze.checkpoint.renaming import transposed
from squeeze.errors import FormatError, printable
from squeeze.quant.formats.awq import AWQFormat
from squeeze.quant.formats.bitsandbytes import BitsAndBytesFormat, shape_of
from squeeze.quant.formats.common import understood
from squeeze.quant.formats.compressed_tensors import CompressedTensorsFormat
from squeeze.quant.formats.registry import Format, format_of
from squeeze.quant.formats.spec import Grid, QuantizationSpec
from squeeze.quant.rotate import check_still
from squeeze.quant.sources.source import Source

__all__ = ["awq", "bitsandbytes", "compressed_tensors", "integers", "modules_of", "read"]


def integers(source: Source, described: Mapping[str, Any]) -> None:
    """Read folders of GPTQ and of the format squeeze; see Reader."""
    form = format_of(described)
    spec, leaves = form.spec(described), modules_of(source, form)
    small = {name for names in leaves.values() for name in names if name.endswith(".grid")}
    said = source.checkpoint.load(small, strict=False)
    turned = transposed(dense_model(source.checkpoint.folder), leaves) if form.transposed else set()
    for module, names in leaves.items():
        shape = next((tuple(said[name].flatten()[:2].tolist()) for name in names if name in said), None)
        sizes = shape or _gptq_shape(source, module, spec)
        reading = partial(read, form, spec, module, module in turned)
        source.add_view(f"{module}.weight", reversed(sizes) if module in turned else sizes, names, reading)


def modules_of(source: Source, form: Format) -> dict[str, list[str]]:
    """Return the names of the tensors of each quantised module."""
    files, mark = source.checkpoint.files, f".{form.leaves[0]}"
    modules = [name.removesuffix(mark) for name in files if name.endswith(mark)]
    return {module: [name for leaf in form.leaves if (name := f"{module}.{leaf}") in files] for module in modules}


def _gptq_shape(source: Source, module: str, spec: QuantizationSpec) -> tuple[int, int]:
    words, outputs = source.shape(f"{module}.qweight")
    return outputs, words * 32 // spec.of(module).bits


def read(
    form: Format, spec: QuantizationSpec, module: str, turned: bool, tensors: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """Return the dequantised weight of a module, transposed if `turned`."""
    weight = form.weight(module, tensors, spec).dequantize()
    return weight.T.contiguous() if turned else weight


_AWQ = AWQFormat()


def awq(source: Source, described: Mapping[str, Any]) -> None:
    """Read AWQ folders; see Reader. Group sizes are taken from the tensors, since some folders describe them
    wrongly."""
    spec = _AWQ.spec(described)
    for module, names in modules_of(source, _AWQ).items():
        shapes = [source.shape(f"{module}.{leaf}") for leaf in _AWQ.leaves]
        if any(len(shape) != 2 for shape in shapes):
            raise FormatError(f"{printable(module)}: expected matrices of codes, zero points and scales")
        (inputs, words), (groups, outputs) = shapes[0], shapes[2]
        if outputs != 8 * words or not groups or inputs % groups or shapes[1] != (groups, words):
            raise FormatError(f"{printable(module)}: {groups} groups do not make {inputs} inputs x {8 * words}")
        own = replace(spec, group_size=inputs // groups)
        source.add_view(f"{module}.weight", (outputs, inputs), names, partial(read, _AWQ, own, module, False))


_BITSANDBYTES = BitsAndBytesFormat()


def bitsandbytes(source: Source, described: Mapping[str, Any]) -> None:
    """Read bitsandbytes folders of 4 bits; see Reader."""
    spec, state = _BITSANDBYTES.spec(described), _BITSANDBYTES.leaves[0]
    for module, names in modules_of(source, _BITSANDBYTES).items():
        said = source.checkpoint.load([f"{module}.{state}"], strict=False)
        shape = shape_of(module, said[f"{module}.{state}"])
        source.add_view(f"{module}.weight", shape, names, partial(read, _BITSANDBYTES, spec, module, False))


_COMPRESSED = CompressedTensorsFormat()
_INPUT_LEAVES = ("input_scale", "input_zero_point", "input_global_scale", "k_scale", "v_scale")


def compressed_tensors(source: Source, described: Mapping[str, Any]) -> None:
    """Read folders of compressed-tensors; see Reader. Roundings of activations are ignored."""
    check_still(described, source.checkpoint.folder)
    spec = _COMPRESSED.spec(_of_weights(described))
    for module, names in modules_of(source, _COMPRESSED).items():
        shape = _shape(source, module)
        _check_scales(source, module, shape, spec.of(module))
        source.add_view(f"{module}.weight", shape, names, partial(read, _COMPRESSED, spec, module, False))
    source.source_names |= {name for name in source.checkpoint.files if name.rpartition(".")[2] in _INPUT_LEAVES}


def _of_weights(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description without the grids of activations."""
    with understood("the quantization_config of compressed-tensors"):
        groups = {name: {**group, "input_activations": None} for name, group in described["config_groups"].items()}
    return {**described, "config_groups": groups}


def _shape(source: Source, module: str) -> tuple[int, int]:
    """Return the shape of a module's weight in any layout."""
    packed = f"{module}.weight_packed"
    if packed not in source.checkpoint.files:
        shape = source.shape(f"{module}.weight")
    elif source.checkpoint.info(packed).dtype == "U8":
        shape = source.shape(packed)
        shape = (*shape[:-1], 2 * shape[-1])
    else:
        source.shape(name := f"{module}.weight_shape")
        shape = tuple(source.checkpoint.load([name], strict=False)[name].flatten().tolist())
    if len(shape) != 2:
        raise FormatError(f"{printable(module)}: expected a matrix")
    return shape


def _check_scales(source: Source, module: str, shape: tuple[int, int], grid: Grid) -> None:
    name = f"{module}.weight_scale"
    (outputs, inputs), found = shape, source.shape(name)
    rows = 1 if grid.rows == -1 else -(-outputs // grid.rows)
    wanted = rows, -(-inputs // grid.inputs(inputs))
    if found != wanted and not (grid.rows == -1 and found in ((), (1,))):
        raise FormatError(
            f"tensor '{printable(name)}': {list(found)} scales do not make groups of {list(shape)}: {list(wanted)} do"
        )
