"""The order in which the codes of GGUF blocks are coded: blocks whose codes are distributed alike, together.

The scale of a block is that of its largest weight, so a large one has mostly small codes. With a minimum, codes lie
around the zero point, which scale and minimum give. A segment has a frequency table of its own (float_models.py).
So blocks are sorted by the distance of the zero point from the middle code, and codes around a zero point above the
middle are mirrored. Without minima, blocks are sorted by their scales. Both directions compute the order from decoded
scales, within windows of blocks. A block of Q4_K or Q5_K is 8 blocks of 32 codes here, each with its own scale.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from squeeze.packing.tensors.float_payload import Array

__all__ = ["SUBBLOCKS", "WINDOW", "Order", "has_order", "order_of"]

WINDOW = 1 << 16  # blocks that are sorted together
SUBBLOCKS = {"Q4_K": 8, "Q5_K": 8}  # blocks with a scale each in one of these types


class _Codes(NamedTuple):
    """Hold the constants of a type with minima.

    Attributes:
        middle: the middle of all codes.
        steps: steps of the key for each code.
        mask: the bits of a byte that codes have.
    """

    middle: float
    steps: int
    mask: int


_BY_SCALE = ("Q4_0", "IQ4_NL", "Q5_0", "Q8_0")
_BY_ZERO = {"Q4_1": _Codes(7.5, 32, 0xFF), "Q5_1": _Codes(15.5, 16, 0x1F)}
_BY_ZERO |= {"Q4_K": _BY_ZERO["Q4_1"], "Q5_K": _BY_ZERO["Q5_1"]}
_MOST = 255  # the largest key; that of a zero point that is not a number, too


class Order(NamedTuple):
    """The order of blocks.

    Attributes:
        places: the block at each place, int64 [blocks].
        flips: the bits that are inverted in its codes, eight bytes of them, uint64 [blocks], or None for no bits.
    """

    places: Array
    flips: Array | None

    def flip(self, codes: Array) -> None:
        """Invert the bits of codes in this order, uint8 [blocks, bytes], in place."""
        if self.flips is not None:
            words = codes.view(np.uint64)
            for column in range(words.shape[1]):
                words[:, column] ^= self.flips


def has_order(dtype: str, by_neighbours: bool = False) -> bool:
    """Return whether the codes of a block type can be coded in order.

    Args:
        dtype: the block type.
        by_neighbours: whether it pays for a coder that predicts from neighbours, too: codes of 8 bits need their own.
    """
    return (dtype in _BY_SCALE or dtype in _BY_ZERO) and not (by_neighbours and dtype == "Q8_0")


def order_of(dtype: str, words: Sequence[Array]) -> Order:
    """Return the order of the blocks of a window.

    Args:
        dtype: the block type.
        words: what the streams before the codes have: bits of scales, and of minima in types that have them, uint16
            [blocks]. In Q4_K and Q5_K also the numbers that these are multiplied by, uint8 [blocks * 8] each.
    """
    if dtype not in _BY_ZERO:
        return Order(np.argsort(((words[0] & 0x7FFF) >> 7).astype(np.uint8), kind="stable"), None)
    codes, (scale, minimum) = _BY_ZERO[dtype], (word.view(np.float16).astype(np.float32) for word in words[:2])
    with np.errstate(all="ignore"):
        if dtype in SUBBLOCKS:
            scale, minimum = (
                np.repeat(one, SUBBLOCKS[dtype]) * times.astype(np.float32)
                for one, times in ((scale, words[2]), (-minimum, words[3]))
            )
        zero = -minimum / scale
        away = np.abs(zero - np.float32(codes.middle)) * np.float32(codes.steps)
    places = np.argsort(np.fmin(away, np.float32(_MOST)).astype(np.uint8), kind="stable")
    return Order(places, (zero > codes.middle)[places] * np.uint64(codes.mask * 0x0101010101010101))
