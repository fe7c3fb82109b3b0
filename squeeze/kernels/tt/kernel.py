"""Products with TT-matrices of two cores in Triton: for each rank, x [i1, i2] times core 2, then core 1, in registers.

A third core is contracted first by torch, which leaves a product with two cores. Each program writes the sums over its
ranks to a place of its own, and torch adds them in a fixed order.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

_RANKS = 8  # of a program
_LARGEST = 128  # a side that fits a tile
_MOST_PROGRAMS = (1 << 16) - 1  # of the second dimension of a grid
_MOST_SUMS = 1 << 28  # float32
_SHARED = 227 << 10  # bytes that a program of an H100 may have
_FOUR_WARPS = 1 << 13  # bytes of a tile: they have no registers for more


@triton.jit  # type: ignore[untyped-decorator]
def _two(  # type: ignore[no-untyped-def]
    out, x, first, second, rows, ranks, o1, i1, o2, i2,
    R: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Multiply x [T, i1, i2] by first [R, o1, i1] and second [R, o2, i2] to out [parts, T, o1, o2].

    A, B, C, D: o1, i1, o2, i2 rounded up to powers of two.
    """
    split, t = tl.program_id(0), tl.program_id(1).to(tl.int64)
    a, b, c, d = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C), tl.arange(0, D)
    xs = tl.load(x + (t * i1 + b[:, None]) * i2 + d, mask=(b < i1)[:, None] & (d < i2), other=0)
    y = tl.zeros((A, C), tl.float32)
    for r in range(split * R, tl.minimum(split * R + R, ranks)):
        core = tl.load(second + (r * o2 + c[:, None]) * i2 + d, mask=(c < o2)[:, None] & (d < i2), other=0)
        z = tl.dot(xs, tl.trans(core), input_precision="ieee")  # [i1, o2]
        core = tl.load(first + (r * o1 + a[:, None]) * i1 + b, mask=(a < o1)[:, None] & (b < i1), other=0)
        y += tl.dot(core, z.to(core.dtype), input_precision="ieee")
    offset = ((split * rows + t) * o1 + a[:, None]) * o2 + c
    tl.store(out + offset, y, mask=(a < o1)[:, None] & (c < o2))


def fits(rows: int, cores: Sequence[torch.Tensor]) -> bool:
    """Return whether the sides of two or three cores fit the tiles of a program, and the rows the grid and memory."""
    (_, o1, i1, _), (ranks, o2, i2, after) = cores[0].shape, cores[1].shape
    sides = o1, i1, o2, i2 * after
    programs = rows * (cores[2].shape[1] if len(cores) > 2 else 1)
    sums = triton.cdiv(ranks, _RANKS) * programs * o1 * o2
    small = max(sides) <= _LARGEST and programs <= _MOST_PROGRAMS and sums <= _MOST_SUMS
    return small and bool(_stages(_powers(sides), cores[0]))


def _powers(sides: tuple[int, ...]) -> tuple[int, ...]:
    """Round sides up to powers of two, 16 at least, the smallest tile of a tensor core."""
    return tuple(max(16, triton.next_power_of_2(side)) for side in sides)


def _stages(powers: tuple[int, ...], core: torch.Tensor) -> int:
    """Return how many pipeline stages (cores of one rank each) fit shared memory with x and the intermediate product.

    The result is 3, 2, or 0 if not even two stages fit.
    """
    a, b, c, d = powers
    room = _SHARED
    if core.device.type == "cuda":
        found = torch.cuda.get_device_properties(core.device)
        room = int(getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block))  # AMD's have no more
    return next((n for n in (3, 2) if (n * (a * b + c * d) + b * (c + d)) * core.itemsize <= room), 0)


def multiply(x: torch.Tensor, cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """Multiply as `reference_multiply` does, for cores that `fits` accepts."""
    first, second = cores[0][0].permute(2, 0, 1).contiguous(), cores[1]
    (_, o1, i1), (ranks, o2, i2, after) = first.shape, second.shape
    rows = len(x)
    if len(cores) == 2:
        return _launch(x, first, second[..., 0]).view(rows, -1).to(x.dtype)
    o3 = cores[2].shape[1]
    z = torch.einsum("tabj,soj->toabs", x.view(rows, i1, i2, -1), cores[2][..., 0])  # core 3: [S, o3, i3]
    wide = second.reshape(ranks, o2, i2 * after)
    y = _launch(z.reshape(rows * o3, -1), first, wide)
    return y.view(rows, o3, o1 * o2).transpose(1, 2).reshape(rows, -1).to(x.dtype)


def _launch(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Multiply by two cores, [R, o1, i1] and [R, o2, i2], to float32 [T, o1, o2]."""
    (ranks, o1, i1), (_, o2, i2) = first.shape, second.shape
    splits = triton.cdiv(ranks, _RANKS)
    out = torch.empty((splits, len(x), o1, o2), dtype=torch.float32, device=x.device)
    powers = _powers((o1, i1, o2, i2))
    large = max(powers[0] * powers[1], powers[2] * powers[3]) * first.itemsize > _FOUR_WARPS
    options = {"num_stages": max(_stages(powers, first), 2), "num_warps": 8 if large else 4}
    arguments = (out, x.contiguous(), first, second.contiguous(), len(x), ranks, o1, i1, o2, i2)
    with torch.cuda.device_of(out):
        _two[(splits, len(x))](*arguments, R=_RANKS, **dict(zip("ABCD", powers, strict=True)), **options)
    return out.sum(0)
