"""Folders of compressed-tensors of every scheme for weights, read as quant/formats/compressed_tensors.py has them.

Shapes are held against the description when a folder is opened. What is done to inputs is of no use here.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from squeeze.errors import FormatError, printable
from squeeze.quant.formats.common import understood
from squeeze.quant.formats.compressed_tensors import CompressedTensorsFormat
from squeeze.quant.formats.spec import Grid
from squeeze.quant.formats.transforms import check_still
from squeeze.quant.sources.integers import modules_of, read
from squeeze.quant.sources.source import Source

__all__ = ["compressed_tensors"]

_FORM = CompressedTensorsFormat()
_INPUTS = ("input_scale", "input_zero_point", "input_global_scale", "k_scale", "v_scale")


def compressed_tensors(source: Source, described: Mapping[str, Any]) -> None:
    """As Reader."""
    check_still(described, source.checkpoint.folder)
    spec = _FORM.spec(_of_weights(described))
    for module, names in modules_of(source, _FORM).items():
        shape = _shape(source, module)
        _check_scales(source, module, shape, spec.of(module))
        source.put(f"{module}.weight", shape, names, partial(read, _FORM, spec, module, False))
    source.used |= {name for name in source.checkpoint.files if name.rpartition(".")[2] in _INPUTS}


def _of_weights(described: Mapping[str, Any]) -> dict[str, Any]:
    """The description without what it says of activations."""
    with understood("the quantization_config of compressed-tensors"):
        groups = {name: {**group, "input_activations": None} for name, group in described["config_groups"].items()}
    return {**described, "config_groups": groups}


def _shape(source: Source, module: str) -> tuple[int, int]:
    """Of a weight, whichever way it is stored."""
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
        raise FormatError(f"{printable(module)}: is not a matrix")
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
