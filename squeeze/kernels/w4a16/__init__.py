"""Products of activations with packed integer weights (w4a16: 4-bit weights, 16-bit activations).

`reference_matmul` defines them. On a GPU the tile of the Triton kernel, or the product with the dequantised weight in
its place, is the fastest of those measured there (choices.py). Codes of 5, 6 and 7 bits are always dequantised. The
CPU's product is cpu.py's.
"""

from __future__ import annotations

from functools import cache, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from squeeze.kernels import choices, dequant
from squeeze.kernels.dequant import Packed
from squeeze.kernels.split_k import Tile

if TYPE_CHECKING:
    from squeeze.kernels.w4a16.blocks import Blocks
    from squeeze.kernels.w4a16.slices import Slices

    AnyTile = Tile | Slices | Blocks

__all__ = ["matmul", "reference_matmul"]

_KERNEL_ROWS = 64  # more rows than these go to the dense product if nothing is measured
_MEASURED_ROWS = 256  # more go there without a measurement: the kernel would decode the weight again and again
_BITS = (2, 3, 4, 8)  # of codes that the kernel decodes
DENSE = "dense"


def matmul(x: torch.Tensor, weight: Packed) -> torch.Tensor:
    """Multiply activations x [R, I] by the weight, x @ weight^T, to [R, O] in the dtype of x, on a GPU."""
    return _multiply(x, weight, _choice(x, weight))


def reference_matmul(x: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Multiply as `matmul` does, in float32 and rounded once: the definition."""
    return (x.to(torch.float32) @ dequant.reference_dequantize(packed, torch.float32).T).to(x.dtype)


def _choice(x: torch.Tensor, weight: Packed) -> AnyTile | None:
    """Return the tile of the fastest kernel, or None for the dense product."""
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
    """Describe a product for choices.py; its rows are rounded up to a power of two."""
    rows = choices.power_of_two(len(x))
    dtype = str(x.dtype).removeprefix("torch.")
    group = f"groups of {weight.group_size}{', zero points' * (weight.zeros is not None)}"
    about = f"w4a16 {weight.outputs}x{weight.inputs}, {weight.bits} bits, {group}, {dtype}"
    return f"{about}, {rows} row{'s' * (rows > 1)}"


_Key = tuple[tuple[int, int], int, int]


def _key(weight: Packed) -> _Key:
    return (weight.outputs, weight.inputs), weight.group_size, weight.bits


@cache
def _kernel() -> ModuleType:
    from squeeze.kernels.w4a16 import kernel  # triton is optional

    return kernel


@lru_cache(maxsize=1024)
def _tiles(rows: int, key: _Key, device: torch.device, dtype: torch.dtype) -> dict[str, AnyTile | None]:
    """Return the tiles to choose from, by name; None stands for the dense product."""
    kernel, (shape, group_size, bits) = _kernel(), key
    early, processors = kernel.slices.may_start_early(device), kernel.processors_of(device)
    sliced = kernel.slices.fits(bits, group_size, shape[1], dtype)
    return {**kernel.tiles(rows, shape, group_size, processors, sliced, early), DENSE: None}


def _multiply(x: torch.Tensor, weight: Packed, tile: AnyTile | None) -> torch.Tensor:
    """Multiply by the kernel with a tile, or by the dequantised weight if that is None."""
    if tile is None:
        return torch.nn.functional.linear(x, dequant.dequantize(weight, x.dtype))
    product: torch.Tensor = _kernel().matmul(x, weight, tile)
    return product
