"""Readers of two formats of compressed-tensors that it no longer decompresses: sparse-24-bitmask and marlin-24.

The layouts are those of compressed-tensors 0.9 to 0.12 (Apache-2.0), which wrote them; marlin-24 is that of
Sparse-Marlin (Frantar et al. 2024, arXiv 2408.11743), whose metadata is in the order of CUTLASS's interleaved sparse
operands.
"""

from collections.abc import Mapping
from functools import cache

import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.errors import FormatError
from squeeze.quant.formats.common import expect, take

__all__ = ["bitmask", "marlin"]

_TILE = 16
_ROWS = 64  # of metadata that are interleaved together


def bitmask(name: str, tensors: Mapping[str, torch.Tensor]) -> SparseTensor:
    """A weight [O, I] of sparse-24-bitmask: compressed [O, I / 2], the values row by row; bitmask uint8
    [O, ceil(I / 8)], a bit a weight, the first in the lowest bit; shape int64 [2, 1].

    Raises FormatError where tensors are missing or contradict each other.
    """
    values, bits = take(name, tensors, "compressed"), take(name, tensors, "bitmask", torch.uint8)
    shape = take(name, tensors, "shape").flatten().tolist()
    if len(shape) != 2 or min(shape) < 1:
        raise FormatError(f"{name}: is not a matrix")
    outputs, inputs = int(shape[0]), int(shape[1])
    expect(name, "bitmask", bits, outputs, -(-inputs // 8))
    mask = (bits[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1).bool().reshape(outputs, -1)[:, :inputs]
    if int(mask.sum()) != values.numel():
        raise FormatError(f"{name}: {int(mask.sum())} bits are set, but there are {values.numel()} values")
    dense = torch.zeros((outputs, inputs), dtype=values.dtype)
    dense.view(torch.uint8 if values.element_size() == 1 else values.dtype)[mask] = values.flatten().view(
        torch.uint8 if values.element_size() == 1 else values.dtype
    )
    return SparseTensor(dense, mask.contiguous(), Pattern())


def marlin(name: str, tensors: Mapping[str, torch.Tensor], bits: int = 4) -> SparseTensor:
    """A weight [O, I] of marlin-24, on a symmetric grid of 4 or 8 bits: weight_packed int32 [I / 32, O * bits / 2],
    tiles of 16 kept inputs by 16 outputs in the order in which a warp of Sparse-Marlin loads them; meta int16
    [I / 32, 2 O], where values lie; scale_packed float16 [G, O].

    Raises FormatError where tensors are missing or contradict each other.
    """
    if bits not in (4, 8):
        raise FormatError(f"{name}: marlin-24 has 4 or 8 bits, not {bits}")
    packed, meta = take(name, tensors, "weight_packed", torch.int32), take(name, tensors, "meta", torch.int16)
    scales = take(name, tensors, "scale_packed")
    if packed.ndim != 2 or scales.ndim != 2:
        raise FormatError(f"{name}: is not a matrix")
    half, outputs = _TILE * packed.shape[0], scales.shape[1]
    inputs = 2 * half
    expect(name, "weight_packed", packed, half // _TILE, outputs * _TILE * bits // 32)
    if outputs % _ROWS or inputs % 32 or meta.numel() != outputs * inputs // 16 or half % scales.shape[0]:
        raise FormatError(f"{name}: tensors of marlin-24 do not fit each other")
    order, by_group, by_row = _orders(bits)
    fields = 32 // bits
    codes = torch.stack([packed >> bits * i & (1 << bits) - 1 for i in range(fields)], -1).reshape(-1, len(order))
    tiles = torch.empty_like(codes)
    tiles[:, order] = codes
    values = tiles.reshape(half // _TILE, outputs // _TILE, _TILE, _TILE).transpose(1, 2).reshape(half, outputs).T
    positions = _places(meta, outputs, inputs)  # [O, I / 2]
    mask = torch.zeros((outputs, inputs), dtype=torch.bool).scatter_(1, positions, True)
    full = torch.full((outputs, inputs), 1 << bits - 1, dtype=torch.uint8)
    full.scatter_(1, positions, values.to(torch.uint8))
    of_scales = by_group if scales.shape[0] > 1 else by_row
    laid = scales.reshape(-1, len(of_scales))
    ordered = torch.empty_like(laid)
    ordered[:, of_scales] = laid
    scales_in_order = ordered.reshape(scales.shape).T.contiguous()[None]
    return SparseTensor(QuantizedTensor(full, scales_in_order, None, bits, inputs // scales.shape[0]), mask, Pattern())


@cache
def _orders(bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which value of 4 tiles stands at each place of them, and which scale at each of 64, for groups and for rows."""
    thread = torch.arange(32)
    column = thread // 4
    row = torch.stack([2 * (thread % 4) + i for i in (0, 1, 8, 9)], 1)  # of the tile
    base = 256 * (column // 2) + 8 * (column % 2)
    of_tile = (base[:, None, None] + 16 * row[:, None, :] + torch.tensor([0, 4])[None, :, None]).reshape(32, 1, 8)
    order = (of_tile + torch.arange(4)[None, :, None]).reshape(-1)
    within = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7] if bits == 4 else [0, 2, 1, 3])
    order = order.reshape(-1, len(within))[:, within].reshape(-1)
    eight = torch.arange(0, 64, 8)[:, None]
    by_group = (eight + torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])).reshape(-1)
    return order, by_group, (eight + torch.arange(8)).reshape(-1)


def _places(meta: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """int64 [O, I / 2]: the input of each value kept, from metadata in CUTLASS's order, four groups in 16 bits."""
    columns = inputs // 16
    words = meta.reshape(-1)[meta_order(outputs, columns)].reshape(outputs, columns).to(torch.int64) & 0xFFFF
    positions = words[:, :, None] >> 2 * torch.arange(8) & 3
    group = torch.arange(inputs // 2) // 2
    return positions.reshape(outputs, -1) + 4 * group


def meta_order(rows: int, columns: int) -> torch.Tensor:
    """int64 [rows * columns]: where CUTLASS puts each 16-bit word of metadata [rows, columns]: rows are interleaved in
    sets of 64, the corners of every 2 x 2 block exchanged, and pairs of columns stored one after the other."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    first = row // _ROWS * _ROWS
    moved = first + row % 2 * 2 + row % 8 // 4 + row % 4 // 2 * 32 + row % _ROWS // 8 * 4
    up = (moved % 2 == 0) & (column % 2 == 1)
    down = (moved % 2 == 1) & (column % 2 == 0)
    shift = up.long() - down.long()
    moved, column = moved + shift, column - shift
    return (column // 2 * rows * 2 + moved * 2 + column % 2).reshape(-1)
