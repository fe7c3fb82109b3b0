"""Readers of tensors in FP8 and FP4 with scales.

FP8 is one byte a weight. DeepSeek-V3 (2024, arXiv 2412.19437) stores a scale for each block of 128 x 128 as
NAME_scale_inv; others store one for each row or matrix as NAME_scale. MXFP4 is that of gpt-oss: NAME_blocks uint8 [E,
O, G, 16], 32 codes a group, and NAME_scales uint8 [E, O, G]. They represent the tensor NAME of all experts as
transformers has it, [E, 32 G, O].
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from squeeze.errors import FormatError, printable
from squeeze.quant.sources.source import Source

__all__ = ["FP4", "fp4", "fp8", "mxfp4", "powers", "scaled", "sides"]

_TYPES = ("F8_E4M3", "F8_E5M2")
_SUFFIXES = ("_scale_inv", "_scale")


def fp8(source: Source, described: Mapping[str, Any]) -> None:
    """Read FP8 folders; see Reader."""
    block = sides(source, described.get("weight_block_size") or [128, 128])
    files = source.checkpoint.files
    for name in files:
        info = source.checkpoint.info(name)
        if info.dtype not in _TYPES or name.endswith(_SUFFIXES):
            continue
        scales = next((name + suffix for suffix in _SUFFIXES if name + suffix in files), f"{name}_scale_inv")
        rows = source.shape(scales)[len(info.shape) - 2 :]
        by_row = rows in ((), (info.shape[-2],), (info.shape[-2], 1))
        source.add_view(name, info.shape, (name, scales), partial(_fp8_weight, name, scales, None if by_row else block))
        source.source_names |= {other for other in (name.removesuffix("weight") + "input_scale",) if other in files}


def sides(source: Source, block: Any) -> tuple[int, int]:
    """Return rows and columns of a block of weights with one scale. Raises FormatError if they are invalid."""
    if not (isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block)):
        raise FormatError(
            f"{source.checkpoint.folder}: expected rows and columns of a block, got {printable(repr(block))}"
        )
    return block[0], block[1]


def _fp8_weight(
    name: str, scales: str, block: tuple[int, int] | None, tensors: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    return scaled(scales, tensors[name].float(), powers(tensors[scales]), block)


_BLOCKS, _SCALES = "_blocks", "_scales"


def mxfp4(source: Source, described: Mapping[str, Any]) -> None:
    """Read MXFP4 folders; see Reader."""
    for blocks in source.checkpoint.files:
        if not blocks.endswith(_BLOCKS):
            continue
        name = blocks.removesuffix(_BLOCKS)
        shape, scales = source.shape(blocks), source.shape(name + _SCALES)
        if len(shape) < 3 or shape[:-1] != scales:
            raise FormatError(
                f"tensor '{printable(name + _SCALES)}': expected shape {list(shape[:-1])}, got {list(scales)}"
            )
        *experts, outputs, groups, size = shape
        names = blocks, name + _SCALES
        source.add_view(name, (*experts, groups * size * 2, outputs), names, partial(_mxfp4_weight, *names))


def _mxfp4_weight(blocks: str, scales: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    values = fp4(tensors[blocks]) * powers(tensors[scales])[..., None]
    return values.flatten(-2).mT.contiguous()


FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1 without its sign; OCP microscaling formats, 2023


def fp4(packed: torch.Tensor) -> torch.Tensor:
    """Decode e2m1 numbers, uint8 [..., N] with the first of two in the low bits, to float32 [..., 2 N]."""
    values = torch.tensor([*FP4, *(-value for value in FP4)], device=packed.device)
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    return values[codes.int()]


def powers(scales: torch.Tensor) -> torch.Tensor:
    """Return scales of any dtype as float32; bytes are exponents of 2 plus 127 (E8M0)."""
    return torch.exp2(scales.float() - 127) if scales.dtype == torch.uint8 else scales.float()


def scaled(name: str, values: torch.Tensor, scales: torch.Tensor, block: tuple[int, int] | None = None) -> torch.Tensor:
    """Multiply values by their scales, in place, and return them.

    Args:
        name: of the scales, for errors.
        values: float32 [..., O, I].
        scales: one; or with `block` one for each block [..., A, B], the last of which may be smaller; else one for each
            row [..., O], or for each of G equal groups in a row [..., O, G].
        block: rows and columns of a block.

    Raises:
        FormatError: the scales do not fit.
    """
    if scales.numel() == 1:
        return values.mul_(scales.float().reshape(()))
    grid = scales if scales.ndim == values.ndim else scales[..., None]
    rows, columns = values.shape[-2:]
    high, wide = block or (1, _size(columns, grid.shape[-1]))
    if not high or not wide or grid.shape != (*values.shape[:-2], -(-rows // high), -(-columns // wide)):
        expected = f"blocks of {high} x {wide}" if block else "rows or groups of equal size"
        raise FormatError(
            f"tensor '{printable(name)}': a grid of {list(scales.shape)} scales does not make {expected} of "
            f"{list(values.shape)} weights"
        )
    expanded = grid.float().repeat_interleave(wide, -1)[..., :columns]
    if high == 1:
        return values.mul_(expanded)
    for place in range(grid.shape[-2]):
        values[..., place * high : (place + 1) * high, :].mul_(expanded[..., place : place + 1, :])
    return values


def _size(length: int, groups: int) -> int:
    """Return the size of groups that divide a length; 0 if they do not."""
    return length // groups if groups and length % groups == 0 else 0
