"""The layout of GGUF's quantisation types: codes, scales and offsets in the bytes of a block.

The layouts follow the gguf package (`gguf.quants.dequantize`), which reads what is written here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from squeeze.quant.block_grid import BlockGrid
from squeeze.quant.lattice import LatticeGrid

__all__ = ["FIELDS", "Blocks"]


@dataclass(frozen=True)
class Blocks:
    """N blocks: codes uint8 [N, W], factors float32 [K, N], steps int16 [K, N, G]."""

    grid: BlockGrid
    codes: torch.Tensor
    factors: torch.Tensor
    steps: torch.Tensor | None


_Field = Callable[[Blocks], torch.Tensor]  # uint8 [N, bytes]


def _packed(values: torch.Tensor, bits: int, run: int) -> torch.Tensor:
    """Pack values [N, W] below 2^bits: a byte holds values that are `run` apart, the first in the lowest bits."""
    parts: torch.Tensor = values.to(torch.int16).unflatten(1, (-1, 8 // bits, run))
    shifts = torch.arange(0, 8, bits, dtype=torch.int16, device=values.device)[:, None]
    return (parts << shifts).sum(2).to(torch.uint8).flatten(1)


def _codes(bits: int, run: int, shift: int = 0) -> _Field:
    """Return a field of `bits` bits of each code, starting at bit `shift`."""
    return lambda block: _packed((block.codes >> shift) & ((1 << bits) - 1), bits, run)


def _factor(part: int) -> _Field:
    """Return a field with the half-precision number of scales (part 0) or offsets (part 1)."""
    return lambda block: block.factors[part, :, None].to(torch.float16).contiguous().view(torch.uint8)


def _exponent(block: Blocks) -> torch.Tensor:
    """Return the exponent of a power of two in one byte, 128 for 1."""
    exponents: torch.Tensor = torch.frexp(block.factors[0]).exponent + 127
    return exponents.to(torch.uint8)[:, None]


def _fp4(block: Blocks) -> torch.Tensor:
    """Return sign and magnitude of e2m1 in four bits."""
    table = torch.tensor([*range(15, 8, -1), *range(8)], device=block.codes.device)
    return _packed(table[block.codes.long()], 4, 16)


def _trits(first: int, run: int, count: int) -> _Field:
    """Return a field of codes 0 to 2: `count` codes in a byte, `run` apart.

    A byte is a fraction of 243 in 256ths, rounded up, whose most significant ternary digit is the first code.
    """

    def field(block: Blocks) -> torch.Tensor:
        parts: torch.Tensor = block.codes[:, first : first + run * count].unflatten(1, (count, run)).int()
        digits = torch.tensor([3 ** (4 - place) for place in range(count)], device=parts.device)[:, None]
        return (((parts * digits).sum(1) * 256 + 242) // 243).to(torch.uint8)

    return field


def _signed_codes(block: Blocks) -> torch.Tensor:
    return (block.codes.to(torch.int16) + int(block.grid.levels[0])).to(torch.int8).view(torch.uint8)


def _steps(block: Blocks) -> torch.Tensor:
    assert block.steps is not None
    return block.steps


def _bytes_of_steps(block: Blocks) -> torch.Tensor:
    return _steps(block)[0].to(torch.int8).view(torch.uint8)


def _nibbles_of_steps(block: Blocks) -> torch.Tensor:
    """Return scale and offset of each group in one byte."""
    scales, offsets = _steps(block).unbind(0)
    return (scales | offsets << 4).to(torch.uint8)


def _upper_bits_of_steps(block: Blocks) -> torch.Tensor:
    """Return the upper two bits of scales of 6 bits, 32 for 0, four in a byte."""
    return _packed(_steps(block)[0] + 32 >> 4, 2, 1)


def _lower_bits_of_steps(block: Blocks) -> torch.Tensor:
    """Return the lower four bits of scales of 6 bits, 32 for 0, two in a byte."""
    return _packed(_steps(block)[0] + 32 & 15, 4, 1)


def _points(bits: int, shift: int = 0) -> _Field:
    """Return a field of `bits` bits of the number of each point, starting at bit `shift`."""

    def field(block: Blocks) -> torch.Tensor:
        assert isinstance(block.grid, LatticeGrid)
        return _packed((block.grid.numbers(block.codes) >> shift) & ((1 << bits) - 1), bits, 1)

    return field


def _signs(block: Blocks) -> torch.Tensor:
    """Return a bit for each weight, 1 for negative ones."""
    return _packed(block.codes < len(block.grid.levels) // 2, 1, 1)


def _sign_numbers(block: Blocks) -> torch.Tensor:
    """Return the signs of the first 7 of each 8 weights as a number, int64 [N, W / 8]; the last follows from them."""
    negative: torch.Tensor = (block.codes < len(block.grid.levels) // 2).unflatten(1, (-1, 8))[..., :7].long()
    return (negative << torch.arange(7, device=negative.device)).sum(2)


def _little_endian(words: torch.Tensor, length: int) -> torch.Tensor:
    """Return numbers int64 [N, n] in `length` bytes each, uint8 [N, n, length]."""
    return (words[..., None] >> 8 * torch.arange(length, device=words.device) & 255).to(torch.uint8)


def _signs_with_steps(block: Blocks) -> torch.Tensor:
    """Return the signs of each 32 weights in 28 bits, and half of their odd scale in the upper 4, uint8 [N, 8, 4]."""
    signs = _sign_numbers(block).unflatten(1, (-1, 4)) << 7 * torch.arange(4, device=block.codes.device)
    return _little_endian(signs.sum(2) | (_steps(block)[0].long() >> 1) << 28, 4)


def _points_beside_signs(block: Blocks) -> torch.Tensor:
    """Return 4 numbers of points in a byte each, then their signs and scale in 4 bytes."""
    assert isinstance(block.grid, LatticeGrid)
    numbers = block.grid.numbers(block.codes).to(torch.uint8).unflatten(1, (-1, 4))
    return torch.cat([numbers, _signs_with_steps(block)], 2).flatten(1)


def _points_with_signs(block: Blocks) -> torch.Tensor:
    """Return numbers of points of 9 bits, with 7 bits of signs above them."""
    assert isinstance(block.grid, LatticeGrid)
    return _little_endian(block.grid.numbers(block.codes).long() | _sign_numbers(block) << 9, 2).flatten(1)


def _halves_of_odd_steps(block: Blocks) -> torch.Tensor:
    """Return odd scales below 32 in four bits each, two in a byte."""
    return _packed(_steps(block)[0] >> 1, 4, 1)


def _six_bits_each(block: Blocks) -> torch.Tensor:
    """Return 16 scales of 6 bits, 32 for 0: first the lower nibbles, two in a byte, then the upper bits, four in a
    byte."""
    scales = _steps(block)[0] + 32
    return torch.cat([_packed(scales & 15, 4, 8), _packed(scales >> 4, 2, 4)], 1)


def _six_bits_of_pairs(block: Blocks) -> torch.Tensor:
    """Return 8 scales and 8 offsets of 6 bits.

    The first four of each have a byte of their own, whose upper bits hold those of the last four; the lower nibbles of
    the last four follow.
    """
    (first, last), (first_offset, last_offset) = (part.split(4, 1) for part in _steps(block))
    own = [first | last >> 4 << 6, first_offset | last_offset >> 4 << 6]
    return torch.cat([*own, (last & 15) | (last_offset & 15) << 4], 1).to(torch.uint8)


FIELDS: Mapping[str, tuple[_Field, ...]] = {
    "q4_0": (_factor(0), _codes(4, 16)),
    "q4_1": (_factor(0), _factor(1), _codes(4, 16)),
    "q5_0": (_factor(0), _codes(1, 1, 4), _codes(4, 16)),
    "q5_1": (_factor(0), _factor(1), _codes(1, 1, 4), _codes(4, 16)),
    "q8_0": (_factor(0), _signed_codes),
    "iq4_nl": (_factor(0), _codes(4, 16)),
    "iq4_xs": (_factor(0), _upper_bits_of_steps, _lower_bits_of_steps, _codes(4, 16)),
    "iq2_xxs": (_factor(0), _points_beside_signs),
    "iq2_xs": (_factor(0), _points_with_signs, _halves_of_odd_steps),
    "iq2_s": (_factor(0), _points(8), _signs, _points(2, 8), _halves_of_odd_steps),
    "iq3_xxs": (_factor(0), _points(8), lambda block: _signs_with_steps(block).flatten(1)),
    "iq3_s": (_factor(0), _points(8), _points(1, 8), _signs, _halves_of_odd_steps),
    "q2_k": (_nibbles_of_steps, _codes(2, 32), _factor(0), _factor(1)),
    "q3_k": (_codes(1, 32, 2), _codes(2, 32), _six_bits_each, _factor(0)),
    "q4_k": (_factor(0), _factor(1), _six_bits_of_pairs, _codes(4, 32)),
    "q5_k": (_factor(0), _factor(1), _six_bits_of_pairs, _codes(1, 32, 4), _codes(4, 32)),
    "q6_k": (_codes(4, 64), _codes(2, 32, 4), _bytes_of_steps, _factor(0)),
    "tq1_0": (_trits(0, 32, 5), _trits(160, 16, 5), _trits(240, 4, 4), _factor(0)),
    "tq2_0": (_codes(2, 32), _factor(0)),
    "ggml_mxfp4": (_exponent, _fp4),
}
