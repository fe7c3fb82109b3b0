"""AWQ folders as AutoAWQ writes them (its GEMM version), read as quant/formats/awq.py has them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from squeeze.errors import FormatError, printable
from squeeze.quant.formats.awq import AWQFormat
from squeeze.quant.sources.integers import modules_of, read
from squeeze.quant.sources.source import Source

__all__ = ["awq"]

_FORM = AWQFormat()


def awq(source: Source, described: Mapping[str, Any]) -> None:
    """As Reader. What the tensors say of groups counts, as some folders describe them otherwise."""
    spec = _FORM.spec(described)
    for module, names in modules_of(source, _FORM).items():
        shapes = [source.shape(f"{module}.{leaf}") for leaf in _FORM.leaves]
        if any(len(shape) != 2 for shape in shapes):
            raise FormatError(f"{printable(module)}: its codes, zero points and scales are no matrices")
        (inputs, words), (groups, outputs) = shapes[0], shapes[2]
        if outputs != 8 * words or not groups or inputs % groups or shapes[1] != (groups, words):
            raise FormatError(f"{printable(module)}: {groups} groups do not make {inputs} inputs x {8 * words}")
        own = replace(spec, group_size=inputs // groups)
        source.put(f"{module}.weight", (outputs, inputs), names, partial(read, _FORM, own, module, False))
