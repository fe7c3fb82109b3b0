"""FP8 with scales: a tensor of one byte a weight, and beside it the grid of its scales.

DeepSeek-V3 (2024, arXiv 2412.19437) stores a scale for each block of 128 x 128 as NAME_scale_inv; others one for each
row or matrix as NAME_scale.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from squeeze.checkpoint.narrow import powers, scaled
from squeeze.errors import FormatError, printable
from squeeze.quant.sources.source import Source

__all__ = ["fp8", "sides"]

_TYPES = ("F8_E4M3", "F8_E5M2")
_SUFFIXES = ("_scale_inv", "_scale")


def fp8(source: Source, described: Mapping[str, Any]) -> None:
    """As Reader."""
    block = sides(source, described.get("weight_block_size") or [128, 128])
    files = source.checkpoint.files
    for name in files:
        info = source.checkpoint.info(name)
        if info.dtype not in _TYPES or name.endswith(_SUFFIXES):
            continue
        scales = next((name + suffix for suffix in _SUFFIXES if name + suffix in files), f"{name}_scale_inv")
        rows = source.shape(scales)[len(info.shape) - 2 :]
        by_row = rows in ((), (info.shape[-2],), (info.shape[-2], 1))
        source.put(name, info.shape, (name, scales), partial(_weight, name, scales, None if by_row else block))
        source.used |= {other for other in (name.removesuffix("weight") + "input_scale",) if other in files}


def sides(source: Source, block: Any) -> tuple[int, int]:
    """Of a block of weights with one scale. Raises FormatError where they are none."""
    if not (isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block)):
        raise FormatError(f"{source.checkpoint.folder}: {printable(repr(block))} are no sides of a block of weights")
    return block[0], block[1]


def _weight(name: str, scales: str, block: tuple[int, int] | None, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return scaled(scales, tensors[name].float(), powers(tensors[scales]), block)
