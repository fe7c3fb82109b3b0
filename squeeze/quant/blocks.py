"""The quantisation types of GGUF: their grids, and the layout of codes, scales and offsets in the bytes of a block.

The layouts follow the gguf package (`gguf.quants.dequantize`), which reads what is written here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.quant.block_grid import BlockGrid, BlockParams
from squeeze.quant.lattice import LatticeGrid

__all__ = ["FALLBACKS", "GRIDS", "BlockTensor", "grid_of", "outer_type", "type_for", "type_of"]

_OURS = "ggml_"  # prefix of grids whose GGUF type has the name of another grid
_E2M1 = (-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12)
_IQ3_S = (1, 3, 5, 7, 9, 11, 13, 15)
_IQ2_S = (8, 25, 43)
_EIGHTH = 8  # iq2_s multiplies its levels by steps of a quarter, from an eighth on: here steps are odd numbers
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _range(low: int, high: int) -> tuple[float, ...]:
    return tuple(map(float, range(low, high + 1)))


def _signed(levels: tuple[int, ...], unit: int = 1) -> tuple[float, ...]:
    return tuple(sign * level / unit for sign, row in ((-1, levels[::-1]), (1, levels)) for level in row)


GRIDS: Mapping[str, BlockGrid] = {
    grid.name: grid
    for grid in (
        BlockGrid("q4_0", _range(-8, 7), 4, 32, 18),
        BlockGrid("q4_1", _range(0, 15), 4, 32, 20, offsets=True),
        BlockGrid("q5_0", _range(-16, 15), 5, 32, 22),
        BlockGrid("q5_1", _range(0, 31), 5, 32, 24, offsets=True),
        BlockGrid("q8_0", _range(-127, 127), 8, 32, 34),
        BlockGrid("iq4_nl", tuple(map(float, _IQ4_NL)), 4, 32, 18),
        BlockGrid("iq4_xs", tuple(map(float, _IQ4_NL)), 4, 32, 136, 8, False, (-32, 31)),
        LatticeGrid("iq2_s", _signed(_IQ2_S, _EIGHTH), 2, 16, 82, 16, False, (1, 31), dims=8, unit=_EIGHTH),
        LatticeGrid("iq3_s", _signed(_IQ3_S), 3, 32, 110, 8, False, (1, 31)),
        BlockGrid("q2_k", _range(0, 3), 2, 16, 84, 16, True, (0, 15)),
        BlockGrid("q3_k", _range(-4, 3), 3, 16, 110, 16, False, (-32, 31)),
        BlockGrid("q4_k", _range(0, 15), 4, 32, 144, 8, True, (0, 63)),
        BlockGrid("q5_k", _range(0, 31), 5, 32, 176, 8, True, (0, 63)),
        BlockGrid("q6_k", _range(-32, 31), 6, 16, 210, 16, False, (-128, 127)),
        BlockGrid("tq1_0", _range(-1, 1), 2, 256, 54),
        BlockGrid("tq2_0", _range(-1, 1), 2, 256, 66),
        BlockGrid("ggml_mxfp4", tuple(map(float, _E2M1)), 4, 32, 17, powers=True),
    )
}
# The types that llama.cpp uses instead if rows are not whole blocks of 256.
FALLBACKS = dict.fromkeys(("q2_k", "q3_k", "tq1_0", "tq2_0"), "q4_0") | {
    **{"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "iq4_xs": "iq4_nl"},
    **{"iq2_s": "iq4_nl", "iq3_s": "iq4_nl"},
}


def grid_of(type: str) -> str:
    """Return the name in GRIDS of a GGUF type."""
    return _OURS + type if _OURS + type in GRIDS else type


def type_of(grid: str) -> str:
    """Return the GGUF type of a grid in GRIDS."""
    return grid.removeprefix(_OURS)


def type_for(requested: str, inputs: int) -> str | None:
    """Return the type that llama.cpp gives a matrix: the requested one or its fallback, None if neither fits."""
    for name in (requested, FALLBACKS.get(requested)):
        if name is not None and inputs % GRIDS[name].width == 0:
            return name
    return None


def outer_type(requested: str, inputs: int, output: bool, mixture: str | None = None) -> str | None:
    """Return the type of the embedding or output head, following the simple cases of llama.cpp's mixtures.

    The matrix that gives the logits, which may be the embedding, is q6_k; it is q8_0 if q8_0 is requested, or if the
    requested type does not fit. Others are as in type_for. The mixture IQ2_M has q5_k and iq3_s instead.

    Args:
        requested: the type of the other matrices.
        inputs: inputs of the matrix.
        output: whether the matrix gives the logits.
        mixture: llama-quantize's name of the mixture, if it is one.
    """
    lowest = mixture == "IQ2_M"
    if not output:
        return type_for("iq3_s" if lowest else requested, inputs)
    narrow = requested != "q8_0" and inputs % GRIDS[requested].width == 0
    return type_for(("q5_k" if lowest else "q6_k") if narrow else "q8_0", inputs)


@dataclass(frozen=True, kw_only=True)
class BlockTensor(QuantizedTensor):
    """A weight [O, I] in blocks of a GGUF type.

    `scales` are float32 [1, O, G], the products of what is stored; `params` are those of all groups.
    """

    grid: BlockGrid
    params: BlockParams

    @classmethod
    def of(cls, grid: BlockGrid, codes: torch.Tensor, params: BlockParams) -> "BlockTensor":
        return cls(
            codes.contiguous(), params.scale, None, grid.bits, grid.size, grid.codebook, grid=grid, params=params
        )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        groups = self.codes.unflatten(1, (-1, self.group_size))
        values: torch.Tensor = self.grid.decode(groups, self.params).flatten(1)
        return values.to(dtype)

    @property
    def stored_bits(self) -> int:
        return self.codes.numel() // self.grid.width * self.grid.block_bytes * 8

    def blocks(self) -> torch.Tensor:
        """Return the blocks as they are in a GGUF file, uint8 [O, bytes of a row]."""
        grid, params = self.grid, self.params
        assert params.factors is not None
        rows = len(self.codes)
        factors = params.factors.flatten(1)
        steps = None if params.steps is None else params.steps.to(torch.int16).reshape(len(factors), -1, grid.groups)
        block = _Block(grid, self.codes.reshape(-1, grid.width), factors, steps)
        return torch.cat([field(block) for field in _FIELDS[grid.name]], 1).reshape(rows, -1)


@dataclass(frozen=True)
class _Block:
    """N blocks: codes uint8 [N, W], factors float32 [K, N], steps int16 [K, N, G]."""

    grid: BlockGrid
    codes: torch.Tensor
    factors: torch.Tensor
    steps: torch.Tensor | None


_Field = Callable[[_Block], torch.Tensor]  # uint8 [N, bytes]


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


def _exponent(block: _Block) -> torch.Tensor:
    """Return the exponent of a power of two in one byte, 128 for 1."""
    exponents: torch.Tensor = torch.frexp(block.factors[0]).exponent + 127
    return exponents.to(torch.uint8)[:, None]


def _fp4(block: _Block) -> torch.Tensor:
    """Return sign and magnitude of e2m1 in four bits."""
    table = torch.tensor([*range(15, 8, -1), *range(8)], device=block.codes.device)
    return _packed(table[block.codes.long()], 4, 16)


def _trits(first: int, run: int, count: int) -> _Field:
    """Return a field of codes 0 to 2: `count` codes in a byte, `run` apart.

    A byte is a fraction of 243 in 256ths, rounded up, whose most significant ternary digit is the first code.
    """

    def field(block: _Block) -> torch.Tensor:
        parts: torch.Tensor = block.codes[:, first : first + run * count].unflatten(1, (count, run)).int()
        digits = torch.tensor([3 ** (4 - place) for place in range(count)], device=parts.device)[:, None]
        return (((parts * digits).sum(1) * 256 + 242) // 243).to(torch.uint8)

    return field


def _signed_codes(block: _Block) -> torch.Tensor:
    return (block.codes.to(torch.int16) + int(block.grid.levels[0])).to(torch.int8).view(torch.uint8)


def _steps(block: _Block) -> torch.Tensor:
    assert block.steps is not None
    return block.steps


def _bytes_of_steps(block: _Block) -> torch.Tensor:
    return _steps(block)[0].to(torch.int8).view(torch.uint8)


def _nibbles_of_steps(block: _Block) -> torch.Tensor:
    """Return scale and offset of each group in one byte."""
    scales, offsets = _steps(block).unbind(0)
    return (scales | offsets << 4).to(torch.uint8)


def _upper_bits_of_steps(block: _Block) -> torch.Tensor:
    """Return the upper two bits of scales of 6 bits, 32 for 0, four in a byte."""
    return _packed(_steps(block)[0] + 32 >> 4, 2, 1)


def _lower_bits_of_steps(block: _Block) -> torch.Tensor:
    """Return the lower four bits of scales of 6 bits, 32 for 0, two in a byte."""
    return _packed(_steps(block)[0] + 32 & 15, 4, 1)


def _points(bits: int, shift: int = 0) -> _Field:
    """Return a field of `bits` bits of the number of each point, starting at bit `shift`."""

    def field(block: _Block) -> torch.Tensor:
        assert isinstance(block.grid, LatticeGrid)
        return _packed((block.grid.numbers(block.codes) >> shift) & ((1 << bits) - 1), bits, 1)

    return field


def _signs(block: _Block) -> torch.Tensor:
    """Return a bit for each weight, 1 for negative ones."""
    return _packed(block.codes < len(block.grid.levels) // 2, 1, 1)


def _halves_of_odd_steps(block: _Block) -> torch.Tensor:
    """Return odd scales below 32 in four bits each, two in a byte."""
    return _packed(_steps(block)[0] >> 1, 4, 1)


def _six_bits_each(block: _Block) -> torch.Tensor:
    """Return 16 scales of 6 bits, 32 for 0: first the lower nibbles, two in a byte, then the upper bits, four in a
    byte."""
    scales = _steps(block)[0] + 32
    return torch.cat([_packed(scales & 15, 4, 8), _packed(scales >> 4, 2, 4)], 1)


def _six_bits_of_pairs(block: _Block) -> torch.Tensor:
    """Return 8 scales and 8 offsets of 6 bits.

    The first four of each have a byte of their own, whose upper bits hold those of the last four; the lower nibbles of
    the last four follow.
    """
    (first, last), (first_offset, last_offset) = (part.split(4, 1) for part in _steps(block))
    own = [first | last >> 4 << 6, first_offset | last_offset >> 4 << 6]
    return torch.cat([*own, (last & 15) | (last_offset & 15) << 4], 1).to(torch.uint8)


_FIELDS: Mapping[str, tuple[_Field, ...]] = {
    "q4_0": (_factor(0), _codes(4, 16)),
    "q4_1": (_factor(0), _factor(1), _codes(4, 16)),
    "q5_0": (_factor(0), _codes(1, 1, 4), _codes(4, 16)),
    "q5_1": (_factor(0), _factor(1), _codes(1, 1, 4), _codes(4, 16)),
    "q8_0": (_factor(0), _signed_codes),
    "iq4_nl": (_factor(0), _codes(4, 16)),
    "iq4_xs": (_factor(0), _upper_bits_of_steps, _lower_bits_of_steps, _codes(4, 16)),
    "iq2_s": (_factor(0), _points(8), _signs, _points(2, 8), _halves_of_odd_steps),
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
