"""Products of activations with packed integer weights: Triton on a GPU, numba on the CPU. reference.py defines them.

On a GPU the tile of the kernel, or the dense product of the expanded weight in its place, is the one that is fastest
there: see choices.py. Codes of 5, 6 and 7 bits always go to the dense product. Those of 4 bits are reshuffled
(order.py) where that is faster: a weight has one order at a time, for all numbers of rows.
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING

import torch

from squeeze.kernels import choices, dequant
from squeeze.kernels.dequant import Packed
from squeeze.kernels.split_k import Tile
from squeeze.kernels.w4a16 import order
from squeeze.kernels.w4a16.order import Ordered

if TYPE_CHECKING:
    from squeeze.kernels.w4a16.blocks import Blocks
    from squeeze.kernels.w4a16.panels import Panels
    from squeeze.kernels.w4a16.slices import Slices

    Ways = Tile | Slices | Blocks | Panels

__all__ = ["arranged", "expanded", "matmul", "way_of"]

_KERNEL_ROWS = 64  # more rows than these go to the dense product, where nothing is measured
_MEASURED_ROWS = 256  # more go there without a measurement: the kernel would decode the weight as often again
_BITS = (2, 3, 4, 8)  # of codes that the kernel decodes
_ORDER_ROWS = (1, 16, 64)  # by which an order is chosen
DENSE, STORED, RESHUFFLED = "dense", "as stored", "reshuffled"


def matmul(x: torch.Tensor, weight: Packed | Ordered) -> torch.Tensor:
    """x [R, I] @ weight [O, I]^T -> [R, O] in the dtype of x, on a GPU; on the CPU see quant/linear.py."""
    return _multiply(x, weight, _choice(x, weight)[1])


def way_of(x: torch.Tensor, weight: Packed | Ordered) -> str:
    """What multiplies these, by its name."""
    return _choice(x, weight)[0]


def arranged(packed: Packed, dtype: torch.dtype) -> Packed | Ordered:
    """A weight in the order in which products with activations of a dtype are faster where it lies: as it is stored, or
    reshuffled where that is faster for two of 1, 16 and 64 rows. That is measured once for a shape, and both orders are
    in memory meanwhile. Where nothing can be measured, it stays as it is."""
    if not _can_measure(packed.words) or not order.fits(packed, dtype):
        return packed
    device = packed.words.device

    @cache  # what is timed begins with these at hand
    def activations(rows: int) -> torch.Tensor:
        source = torch.Generator(device).manual_seed(1)
        return torch.randn(rows, packed.inputs, generator=source, device=device).to(dtype)

    @cache
    def weight(name: str) -> Packed | Ordered:
        return packed if name == STORED else _reshuffled(packed)

    def product(rows: int, name: str) -> torch.Tensor:
        return matmul(activations(rows), weight(name))

    def right(rows: int) -> torch.Tensor:
        return _multiply(activations(rows), packed, None)

    votes = [
        choices.of_device(device).of(
            f"{_about(packed, dtype)}, {rows} row{'s' * (rows > 1)}, order",
            [STORED, RESHUFFLED],
            partial(product, rows),
            STORED,
            choices.close_to(partial(right, rows)),
        )
        for rows in _ORDER_ROWS
    ]
    if votes.count(RESHUFFLED) <= len(votes) // 2:
        return packed
    weight.cache_clear()  # which is of the stream that measured
    return _reshuffled(packed)


def _can_measure(tensor: torch.Tensor) -> bool:
    """Whether it lies on a GPU, and nothing is traced or recorded, which would keep what is made for that alone."""
    if tensor.device.type != "cuda" or torch.compiler.is_compiling():
        return False
    return not torch.cuda.is_current_stream_capturing()


def _reshuffled(packed: Packed) -> Ordered:
    return Ordered.of(packed)


def expanded(weight: Packed | Ordered, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The weight [O, I], as dequant.dequantize has it."""
    if isinstance(weight, Packed):
        return dequant.dequantize(weight, dtype)
    if weight.words.device.type == "cpu":
        return dequant.dequantize(weight.stored(), dtype)
    from squeeze.kernels.w4a16 import panels

    return panels.dequantize(weight, dtype)


def _choice(x: torch.Tensor, weight: Packed | Ordered) -> tuple[str, Ways | None]:
    """The name of what multiplies, and its tile."""
    measured = x.device.type == "cuda"
    if not len(x) or len(x) > (_MEASURED_ROWS if measured else _KERNEL_ROWS) or not _has_kernel(x, weight):
        return DENSE, None
    tiles = _tiles(choices.power_of_two(len(x)), _key(weight), x.device, x.dtype)
    usual = next(iter(tiles))
    if not measured:
        return usual, tiles[usual]
    default = usual if len(x) <= _KERNEL_ROWS else DENSE
    name = choices.of_device(x.device).of(
        shape_of(x, weight),
        list(tiles),
        lambda name: _multiply(x, weight, tiles[name]),
        default,
        choices.close_to(lambda: _multiply(x, weight, None)),
    )
    return name, tiles[name]


def _has_kernel(x: torch.Tensor, weight: Packed | Ordered) -> bool:
    if isinstance(weight, Ordered):
        return x.dtype in order.DTYPES
    return weight.codebook is None and weight.global_scale is None and weight.bits in _BITS


def shape_of(x: torch.Tensor, weight: Packed | Ordered) -> str:
    """What is chosen for, in words; numbers of rows count up to the next power of two."""
    rows = choices.power_of_two(len(x))
    ordered = f", {RESHUFFLED}" * isinstance(weight, Ordered)
    return f"{_about(weight, x.dtype)}{ordered}, {rows} row{'s' * (rows > 1)}"


def _about(weight: Packed | Ordered, dtype: torch.dtype) -> str:
    group = f"groups of {weight.group_size}{', zero points' * (weight.zeros is not None)}"
    return f"w4a16 {weight.outputs}x{weight.inputs}, {weight.bits} bits, {group}, {str(dtype).removeprefix('torch.')}"


_Key = tuple[tuple[int, int], int, int, bool]


def _key(weight: Packed | Ordered) -> _Key:
    return (weight.outputs, weight.inputs), weight.group_size, weight.bits, isinstance(weight, Ordered)


@lru_cache(maxsize=1024)
def _tiles(rows: int, key: _Key, device: torch.device, dtype: torch.dtype) -> dict[str, Ways | None]:
    """By name; None stands for the dense product."""
    from squeeze.kernels.w4a16 import kernel, panels, slices  # triton is optional

    shape, group_size, bits, is_ordered = key
    early, processors = slices.may_be_early(device), kernel.processors_of(device)
    if is_ordered:
        return {**panels.panels(rows, shape, processors, early), DENSE: None}
    sliced = slices.fits(bits, group_size, shape[1], dtype)
    return {**kernel.tiles(rows, shape, group_size, processors, sliced, early), DENSE: None}


def _multiply(x: torch.Tensor, weight: Packed | Ordered, tile: Ways | None) -> torch.Tensor:
    if tile is None:
        return torch.nn.functional.linear(x, expanded(weight, x.dtype))
    from squeeze.kernels.w4a16 import kernel

    return kernel.matmul(x, weight, tile)
