"""bitsandbytes folders of 4 bits, read as quant/formats/bitsandbytes.py has them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from squeeze.quant.formats.bitsandbytes import BitsAndBytesFormat, shape_of
from squeeze.quant.sources.integers import modules_of, read
from squeeze.quant.sources.source import Source

__all__ = ["bitsandbytes"]

_FORM = BitsAndBytesFormat()


def bitsandbytes(source: Source, described: Mapping[str, Any]) -> None:
    """As Reader."""
    spec, state = _FORM.spec(described), _FORM.leaves[0]
    for module, names in modules_of(source, _FORM).items():
        said = source.checkpoint.load([f"{module}.{state}"], strict=False)
        shape = shape_of(module, said[f"{module}.{state}"])
        source.put(f"{module}.weight", shape, names, partial(read, _FORM, spec, module, False))
