"""Folders of compressed-tensors of every scheme for weights: what they are is read off the tensors of each module.

weight_packed int32: integers (`pack-quantized`); weight_packed uint8 [O, I / 2]: FP4, with scales of FP8 and one of the
matrix (`nvfp4-pack-quantized`) or powers of two (`mxfp4-pack-quantized`); a weight of one byte with weight_scale:
8 bits (`int-quantized`, `float-quantized`, `naive-quantized`). Scales of inputs are of no use here.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from squeeze.checkpoint.narrow import fp4, powers, scaled
from squeeze.errors import FormatError, printable
from squeeze.quant.formats.compressed_groups import PACKED
from squeeze.quant.formats.compressed_tensors import CompressedTensorsFormat
from squeeze.quant.sources.fp8 import sides
from squeeze.quant.sources.integers import put_all
from squeeze.quant.sources.source import Source

__all__ = ["compressed_tensors"]

_FORM = CompressedTensorsFormat()
_INPUTS = ("input_scale", "input_zero_point", "input_global_scale")
_BYTES = ("I8", "F8_E4M3", "F8_E5M2")


def compressed_tensors(source: Source, described: Mapping[str, Any]) -> None:
    """As Reader."""
    files = source.checkpoint.files
    block = sides(source, next(_blocks(described), [128, 128]))
    if any(name.endswith(".weight_packed") and source.checkpoint.info(name).dtype == "I32" for name in files):
        put_all(source, _FORM, _FORM.spec({**described, **_of_integers(described), "format": PACKED}))
    for name in files:
        module, _, leaf = name.rpartition(".")
        dtype = source.checkpoint.info(name).dtype
        if leaf == "weight_packed" and dtype == "U8":
            _put_fp4(source, module)
        elif leaf == "weight" and dtype in _BYTES:
            _put_bytes(source, module, block)
        elif leaf in _INPUTS:
            source.used.add(name)


def _of_integers(described: Mapping[str, Any]) -> dict[str, Any]:
    """The groups whose weights are packed integers."""
    groups = described.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise FormatError("the quantization_config of compressed-tensors has no config_groups")
    kinds = {name: group.get("format") or described.get("format") for name, group in groups.items()}
    return {"config_groups": {name: group for name, group in groups.items() if kinds[name] == PACKED} or groups}


def _blocks(described: Mapping[str, Any]) -> Iterator[Any]:
    """Sides of blocks that a group names."""
    groups = described.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and weights.get("block_structure"):
            yield weights["block_structure"]


def _put_fp4(source: Source, module: str) -> None:
    packed, scales, factor = (f"{module}.{leaf}" for leaf in ("weight_packed", "weight_scale", "weight_global_scale"))
    outputs, half = source.shape(packed)
    names = [packed, scales, *([factor] if factor in source.checkpoint.files else [])]
    _check_groups(scales, source.shape(scales), (outputs, 2 * half))
    source.put(f"{module}.weight", (outputs, 2 * half), names, partial(_fp4, names))


def _fp4(names: list[str], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    scales = powers(tensors[names[1]])
    if len(names) > 2:
        scales = scales / tensors[names[2]].float()
    return scaled(names[1], fp4(tensors[names[0]]), scales)


def _put_bytes(source: Source, module: str, block: tuple[int, int]) -> None:
    weight, scales, zeros = (f"{module}.{leaf}" for leaf in ("weight", "weight_scale", "weight_zero_point"))
    names = [weight, scales, *([zeros] if zeros in source.checkpoint.files else [])]
    shape, grid = source.shape(weight), source.shape(scales)
    by_block = len(grid) == 2 and grid[0] != shape[0]
    source.put(weight, shape, names, partial(_bytes, names, block if by_block else None))


def _bytes(names: list[str], block: tuple[int, int] | None, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    values, scales = tensors[names[0]].float(), powers(tensors[names[1]])
    if len(names) > 2:
        values -= scaled(names[2], torch.ones_like(values), tensors[names[2]].float(), block)
    return scaled(names[1], values, scales, block)


def _check_groups(name: str, scales: tuple[int, ...], shape: tuple[int, int]) -> None:
    if len(scales) != 2 or scales[0] != shape[0] or not scales[1] or shape[1] % scales[1]:
        raise FormatError(f"tensor '{printable(name)}': {list(scales)} scales do not make groups of {list(shape)}")
