"""Products of activations with packed integer weights: Triton on a GPU, numba on the CPU. reference.py defines them.

On a GPU the tile of the kernel, or the dense product of the expanded weight in its place, is the one that is fastest
there: see choices.py. Codes of 5, 6 and 7 bits always go to the dense product.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from squeeze.kernels import choices, dequant
from squeeze.kernels.dequant import Packed
from squeeze.kernels.split_k import Tile

if TYPE_CHECKING:
    from squeeze.kernels.w4a16.blocks import Blocks
    from squeeze.kernels.w4a16.slices import Slices

__all__ = ["matmul"]

_KERNEL_ROWS = 64  # more rows than these go to the dense product, where nothing is measured
_MEASURED_ROWS = 256  # more go there without a measurement: the kernel would decode the weight as often again
_BITS = (2, 3, 4, 8)  # of codes that the kernel decodes
DENSE = "dense"


def matmul(x: torch.Tensor, packed: Packed) -> torch.Tensor:
    """x [R, I] @ weight [O, I]^T -> [R, O] in the dtype of x, on a GPU; on the CPU see quant/linear.py."""
    measured = x.device.type == "cuda"
    plain = packed.codebook is None and packed.global_scale is None and packed.bits in _BITS
    if not plain or not len(x):
        return _multiply(x, packed, None)
    if len(x) > (_MEASURED_ROWS if measured else _KERNEL_ROWS):
        return _multiply(x, packed, None)
    shape = packed.outputs, packed.inputs
    tiles = _tiles(choices.power_of_two(len(x)), shape, packed.group_size, x.device, packed.bits, x.dtype)
    usual = next(iter(tiles))
    if not measured:
        return _multiply(x, packed, tiles[usual])
    default = usual if len(x) <= _KERNEL_ROWS else DENSE
    name = choices.of_device(x.device).of(
        shape_of(x, packed),
        list(tiles),
        lambda name: _multiply(x, packed, tiles[name]),
        default,
        choices.close_to(lambda: _multiply(x, packed, None)),
    )
    return _multiply(x, packed, tiles[name])


def shape_of(x: torch.Tensor, packed: Packed) -> str:
    """What is chosen for, in words; numbers of rows count up to the next power of two."""
    rows, dtype = choices.power_of_two(len(x)), str(x.dtype).removeprefix("torch.")
    group = f"groups of {packed.group_size}{', zero points' * (packed.zeros is not None)}"
    return f"w4a16 {packed.outputs}x{packed.inputs}, {packed.bits} bits, {group}, {dtype}, {rows} row{'s' * (rows > 1)}"


@lru_cache(maxsize=1024)
def _tiles(
    rows: int, shape: tuple[int, int], group_size: int, device: torch.device, bits: int, dtype: torch.dtype
) -> dict[str, Tile | Slices | Blocks | None]:
    """By name; None stands for the dense product."""
    from squeeze.kernels.w4a16 import kernel, slices  # triton is optional

    sliced = slices.fits(bits, group_size, shape[1], dtype)
    early = slices.may_be_early(device)
    found = kernel.tiles(rows, shape, group_size, kernel.processors_of(device), sliced, early)
    return {**found, DENSE: None}


def _multiply(x: torch.Tensor, packed: Packed, tile: Tile | Slices | Blocks | None) -> torch.Tensor:
    if tile is None:
        return torch.nn.functional.linear(x, dequant.dequantize(packed, x.dtype))
    from squeeze.kernels.w4a16 import kernel

    return kernel.matmul(x, packed, tile)
