"""Small unsigned integers in bytes, laid out so that unpacking is shifts and masks of whole rows.

The last dimension is cut into equal parts, and a byte holds one code of each part: with 4 bits, byte j of N/2
holds codes j and j + N/2, low bits first. Widths that are no power of two are the sum of planes that are
(3 bits: a plane of 2 and a plane of 1). Ternary codes stand five in a byte.
"""

import torch

__all__ = ["bit_planes", "pack", "pack_ternary", "packed_size", "unpack", "unpack_ternary"]

TERNARY_IN_A_BYTE = 5  # codes of 0, 1, 2 in a byte: 3^5 <= 256


def bit_planes(bits: int) -> tuple[int, ...]:
    """Widths of the bit planes of a code, highest bits first; each divides 8."""
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take."""
    return sum(-(-count * width // 8) for width in bit_planes(bits))


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 codes [..., N] below 2^bits to uint8 [..., packed_size(N, bits)], plane after plane."""
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
    """The inverse of `pack`: uint8 [..., count]."""
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
    """uint8 codes [..., N] of 0, 1, 2 to [..., ceil(N / 5)], the first part of N lowest in base 3."""
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % TERNARY_IN_A_BYTE))
    rows = padded.unflatten(-1, (TERNARY_IN_A_BYTE, -1))
    packed = torch.zeros_like(rows[..., 0, :])
    for place in reversed(range(TERNARY_IN_A_BYTE)):
        packed = packed * 3 + rows[..., place, :]
    return packed


def unpack_ternary(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The inverse of `pack_ternary`: uint8 [..., count]."""
    rows = [packed // 3**place % 3 for place in range(TERNARY_IN_A_BYTE)]
    return torch.cat(rows, -1)[..., :count]
