"""MXFP4 as gpt-oss is published: NAME_blocks uint8 [E, O, G, 16], 32 codes a group, and NAME_scales uint8 [E, O, G].

They stand for the tensor NAME of all experts as transformers holds it, [E, 32 G, O].
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from squeeze.checkpoint.narrow import fp4, powers
from squeeze.errors import FormatError, printable
from squeeze.quant.sources.source import Source

__all__ = ["mxfp4"]

_BLOCKS, _SCALES = "_blocks", "_scales"


def mxfp4(source: Source, described: Mapping[str, Any]) -> None:
    """As Reader."""
    for blocks in source.checkpoint.files:
        if not blocks.endswith(_BLOCKS):
            continue
        name = blocks.removesuffix(_BLOCKS)
        shape, scales = source.shape(blocks), source.shape(name + _SCALES)
        if len(shape) < 3 or shape[:-1] != scales:
            raise FormatError(
                f"tensor '{printable(name + _SCALES)}' has shape {list(scales)}, and the blocks have {list(shape)}"
            )
        *experts, outputs, groups, size = shape
        names = blocks, name + _SCALES
        source.put(name, (*experts, groups * size * 2, outputs), names, partial(_weight, *names))


def _weight(blocks: str, scales: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    values = fp4(tensors[blocks]) * powers(tensors[scales])[..., None]
    return values.flatten(-2).mT.contiguous()
