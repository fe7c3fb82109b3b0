"""The quantisation types of GGUF: their grids, what takes the place of one that does not fit, and weights in them.

block_layout.py has the bytes of a block.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.quant.block_grid import BlockGrid, BlockParams
from squeeze.quant.block_layout import FIELDS, Blocks
from squeeze.quant.lattice import LatticeGrid

__all__ = ["FALLBACKS", "GRIDS", "BlockTensor", "grid_of", "outer_type", "type_for", "type_of"]

_OURS = "ggml_"  # prefix of grids whose GGUF type has the name of another grid
_E2M1 = (-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12)
_IQ3_S = (1, 3, 5, 7, 9, 11, 13, 15)
_IQ3_XXS = (4, 12, 20, 28, 36, 44, 52, 62)
_IQ2_S = (8, 25, 43)
_QUARTER = 4  # iq3_xxs multiplies its levels by steps of a half, from a quarter on: here steps are odd numbers
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
        LatticeGrid("iq2_xxs", _signed(_IQ2_S, _EIGHTH), 2, 32, 66, 8, False, (1, 31), dims=8, unit=_EIGHTH, even=True),
        LatticeGrid("iq2_xs", _signed(_IQ2_S, _EIGHTH), 2, 16, 74, 16, False, (1, 31), dims=8, unit=_EIGHTH, even=True),
        LatticeGrid("iq2_s", _signed(_IQ2_S, _EIGHTH), 2, 16, 82, 16, False, (1, 31), dims=8, unit=_EIGHTH),
        LatticeGrid("iq3_xxs", _signed(_IQ3_XXS, _QUARTER), 3, 32, 98, 8, False, (1, 31), False, 8, _QUARTER, True, 4),
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
    **dict.fromkeys(("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"), "iq4_nl"),
}
_SMALLEST = {  # the embedding of mixtures whose head is q5_k
    **{"IQ2_XXS": "q2_k", "IQ2_XS": "q2_k", "IQ2_S": "iq3_s", "IQ2_M": "iq3_s", "IQ3_XXS": "iq3_s"},
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
    requested type does not fit. Others are as in type_for. Mixtures of few bits have q5_k, and q2_k or iq3_s, instead.

    Args:
        requested: the type of the other matrices.
        inputs: inputs of the matrix.
        output: whether the matrix gives the logits.
        mixture: llama-quantize's name of the mixture, if it is one.
    """
    lowest = _SMALLEST.get(mixture or "")
    if not output:
        return type_for(lowest or requested, inputs)
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
        block = Blocks(grid, self.codes.reshape(-1, grid.width), factors, steps)
        return torch.cat([field(block) for field in FIELDS[grid.name]], 1).reshape(rows, -1)
