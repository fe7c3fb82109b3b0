"""Codes of a few bits: packed into bytes, and the Lloyd-Max points that they stand for.

The last dimension is cut into equal parts, and a byte holds one code of each part, so that unpacking is shifts and
masks of whole rows. With 4 bits, byte j of N/2 holds codes j and j + N/2, low bits first. Other widths are sums of bit
planes: 3 bits are a plane of 2 and a plane of 1. A byte holds five ternary codes.
"""

from functools import cache

import torch

__all__ = [
    "CURVED",
    "bit_planes",
    "curve",
    "lloyd_max",
    "pack",
    "pack_ternary",
    "packed_size",
    "unpack",
    "unpack_ternary",
]

TERNARY_IN_A_BYTE = 5  # codes of 0, 1, 2 in a byte: 3^5 <= 256


def bit_planes(bits: int) -> tuple[int, ...]:
    """Return the widths of the bit planes of a code, highest bits first. Each divides 8."""
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


def packed_size(count: int, bits: int) -> int:
    """Return the bytes that `count` codes of `bits` bits take."""
    return sum(-(-count * width // 8) for width in bit_planes(bits))


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 codes [..., N] below 2^bits to uint8 [..., packed_size(N, bits)], plane after plane."""
    rows, above = [], bits
    for width in bit_planes(bits):
        above -= width
        rows.append(_pack_plane(codes >> above & ((1 << width) - 1), width))
    return torch.cat(rows, -1)


def _pack_plane(codes: torch.Tensor, width: int) -> torch.Tensor:
    per_byte = 8 // width
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per_byte))
    rows = padded.unflatten(-1, (per_byte, -1))  # [..., per byte, bytes]
    packed: torch.Tensor = rows[..., 0, :].clone()
    for place in range(1, per_byte):
        packed |= rows[..., place, :] << (width * place)
    return packed


def unpack(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Unpack to uint8 [..., count], the inverse of `pack`."""
    codes, first, above = None, 0, bits
    for width in bit_planes(bits):
        size, per_byte, above = -(-count * width // 8), 8 // width, above - width
        row, first = packed[..., first : first + size], first + size
        fields = [row >> (width * place) & ((1 << width) - 1) for place in range(per_byte)]
        plane = torch.cat(fields, -1)[..., :count] << above
        codes = plane if codes is None else codes | plane
    assert codes is not None
    return codes


def pack_ternary(codes: torch.Tensor) -> torch.Tensor:
    """Pack uint8 codes [..., N] of 0, 1, 2 to [..., ceil(N / 5)], the first part lowest in base 3."""
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % TERNARY_IN_A_BYTE))
    rows = padded.unflatten(-1, (TERNARY_IN_A_BYTE, -1))
    packed = torch.zeros_like(rows[..., 0, :])
    for place in reversed(range(TERNARY_IN_A_BYTE)):
        packed = packed * 3 + rows[..., place, :]
    return packed


def unpack_ternary(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Unpack to uint8 [..., count], the inverse of `pack_ternary`."""
    rows = [packed // 3**place % 3 for place in range(TERNARY_IN_A_BYTE)]
    return torch.cat(rows, -1)[..., :count]


CURVED = 4  # the most bits of points that `curve` fits
_TERMS = 8


@cache
def lloyd_max(bits: int) -> torch.Tensor:
    """Return the points [2^bits], ascending, with the least mean square error for a normal variable (Max 1960, Lloyd
    1982).
    """
    points: torch.Tensor = torch.special.ndtri((torch.arange(1 << bits, dtype=torch.float64) + 0.5) / (1 << bits))
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
    for _ in range(2000):
        edges = (points[1:] + points[:-1]) / 2
        inner_density, inner_mass = normal.log_prob(edges).exp(), normal.cdf(edges)
        zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        density, mass = torch.cat([zero, inner_density, zero]), torch.cat([zero, inner_mass, one])
        points = (density[:-1] - density[1:]) / (mass[1:] - mass[:-1])
    return points.to(torch.float32)


@cache
def curve(bits: int) -> torch.Tensor:
    """Return the coefficients [8] of x, x^3, x^5, ... of the odd polynomial through the Lloyd-Max points of `bits`
    bits.

    x is code / middle - 1 with middle = (2^bits - 1) / 2; `bits` is at most CURVED. The error is about 2^-22 in
    float32. Vectorised loops evaluate it, and scalar ones look points up.
    """
    count, middle = 1 << bits, ((1 << bits) - 1) / 2
    x = torch.arange(count // 2, count, dtype=torch.float64) / middle - 1
    powers = x[:, None] ** (2 * torch.arange(count // 2) + 1)
    found = torch.linalg.solve(powers, lloyd_max(bits)[count // 2 :].double())
    return torch.nn.functional.pad(found, (0, _TERMS - len(found))).to(torch.float32)
