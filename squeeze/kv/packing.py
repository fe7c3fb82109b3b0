"""Small unsigned integers in bytes, laid out so that unpacking is shifts and masks of whole rows.

The last dimension is cut into equal parts, and a byte holds one code of each part: with 4 bits, byte j of N/2
holds codes j and j + N/2, low bits first. Widths that are no power of two are the sum of planes that are
(3 bits: a plane of 2 and a plane of 1). Ternary codes stand five in a byte.
"""

import torch

__all__ = ["pack", "pack_ternary", "packed_size", "planes", "unpack", "unpack_ternary"]

TRITS = 5  # codes of 0, 1, 2 in a byte: 3^5 <= 256


def planes(bits: int) -> tuple[int, ...]:
    """Widths of the planes of a code, highest bits first; each divides 8."""
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take."""
    return sum(-(-count * width // 8) for width in planes(bits))


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 codes [..., N] below 2^bits to uint8 [..., packed_size(N, bits)], plane after plane."""
    rows, above = [], bits
    for width in planes(bits):
        above -= width
        rows.append(_pack_plane(codes >> above & ((1 << width) - 1), width))
    return torch.cat(rows, -1)


def _pack_plane(codes: torch.Tensor, width: int) -> torch.Tensor:
    per_byte = 8 // width
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per_byte))
    parts = padded.unflatten(-1, (per_byte, -1))  # [..., per byte, bytes]
    packed = parts[..., 0, :].clone()
    for part in range(1, per_byte):
        packed |= parts[..., part, :] << (width * part)
    return packed


def unpack(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The inverse of `pack`: uint8 [..., count]."""
    codes, at, above = None, 0, bits
    for width in planes(bits):
        size, per_byte, above = -(-count * width // 8), 8 // width, above - width
        row, at = packed[..., at : at + size], at + size
        parts = [row >> (width * part) & ((1 << width) - 1) for part in range(per_byte)]
        plane = torch.cat(parts, -1)[..., :count] << above
        codes = plane if codes is None else codes | plane
    assert codes is not None
    return codes


def pack_ternary(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes [..., N] of 0, 1, 2 to [..., ceil(N / 5)], the first part of N lowest in base 3."""
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % TRITS))
    parts = padded.unflatten(-1, (TRITS, -1))
    packed = torch.zeros_like(parts[..., 0, :])
    for part in reversed(range(TRITS)):
        packed = packed * 3 + parts[..., part, :]
    return packed


def unpack_ternary(packed: torch.Tensor, count: int) -> torch.Tensor:
    parts = [packed // 3**part % 3 for part in range(TRITS)]
    return torch.cat(parts, -1)[..., :count]
