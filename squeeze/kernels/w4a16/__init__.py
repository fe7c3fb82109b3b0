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

    Ways = Tile | Slices | Blocks

__all__ = ["matmul"]

_KERNEL_ROWS = 64  # more rows than these go to the dense product, where nothing is measured
_MEASURED_ROWS = 256  # more go there without a measurement: the kernel would decode the weight as often again
_BITS = (2, 3, 4, 8)  # of codes that the kernel decodes
DENSE = "dense"


def matmul(x: torch.Tensor, weight: Packed) -> torch.Tensor:
    """x [R, I] @ weight [O, I]^T -> [R, O] in the dtype of x, on a GPU; on the CPU see quant/linear.py."""
    return _multiply(x, weight, _choice(x, weight))


def _choice(x: torch.Tensor, weight: Packed) -> Ways | None:
    """The tile of the kernel that multiplies; None for the dense product."""
    measured = x.device.type == "cuda"
    if not len(x) or len(x) > (_MEASURED_ROWS if measured else _KERNEL_ROWS) or not _has_kernel(x, weight):
        return None
    tiles = _tiles(choices.power_of_two(len(x)), _key(weight), x.device, x.dtype)
    usual = next(iter(tiles))
    if not measured:
        return tiles[usual]
    default = usual if len(x) <= _KERNEL_ROWS else DENSE
    name = choices.of_device(x.device).of(
        shape_of(x, weight),
        list(tiles),
        lambda name: _multiply(x, weight, tiles[name]),
        default,
        choices.close_to(lambda: _multiply(x, weight, None)),
    )
    return tiles[name]


def _has_kernel(x: torch.Tensor, weight: Packed) -> bool:
    return weight.codebook is None and weight.global_scale is None and weight.bits in _BITS


def shape_of(x: torch.Tensor, weight: Packed) -> str:
    """What is chosen for, in words; numbers of rows count up to the next power of two."""
    rows = choices.power_of_two(len(x))
    dtype = str(x.dtype).removeprefix("torch.")
    group = f"groups of {weight.group_size}{', zero points' * (weight.zeros is not None)}"
    about = f"w4a16 {weight.outputs}x{weight.inputs}, {weight.bits} bits, {group}, {dtype}"
    return f"{about}, {rows} row{'s' * (rows > 1)}"


_Key = tuple[tuple[int, int], int, int]


def _key(weight: Packed) -> _Key:
    return (weight.outputs, weight.inputs), weight.group_size, weight.bits


@lru_cache(maxsize=1024)
def _tiles(rows: int, key: _Key, device: torch.device, dtype: torch.dtype) -> dict[str, Ways | None]:
    """By name; None stands for the dense product."""
    from squeeze.kernels.w4a16 import kernel, slices  # triton is optional

    shape, group_size, bits = key
    early, processors = slices.may_be_early(device), kernel.processors_of(device)
    sliced = slices.fits(bits, group_size, shape[1], dtype)
    return {**kernel.tiles(rows, shape, group_size, processors, sliced, early), DENSE: None}


def _multiply(x: torch.Tensor, weight: Packed, tile: Ways | None) -> torch.Tensor:
    if tile is None:
        return torch.nn.functional.linear(x, dequant.dequantize(weight, x.dtype))
    from squeeze.kernels.w4a16 import kernel

    return kernel.matmul(x, weight, tile)
