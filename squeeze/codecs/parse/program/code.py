"""Operands of code that are relative to the instruction pointer, made absolute: those of one target are then alike."""

import numpy as np

from squeeze.codecs.parse.program.lengths import LONGEST, instruction
from squeeze.codecs.parse.program.numbers import big, put, put_big, word
from squeeze.numerics.bitmodels.opcodes import OPCODES
from squeeze.numerics.jit import kernel

__all__ = ["arm64", "x86"]


def x86(code: np.ndarray, address: int, long_mode: bool, forward: bool) -> None:
    """Make relative operands of x86 code absolute and big-endian, or undo it, in place.

    Args:
        code: uint8 [n].
        address: of its first byte.
        long_mode: whether it is 64-bit code.
        forward: whether operands become absolute.
    """
    _walk_x86(code, np.int64(address & 0xFFFFFFFF), OPCODES, int(long_mode), forward)


def arm64(code: np.ndarray, address: int, forward: bool) -> None:
    """Make the operands of `bl` and `adrp` in AArch64 code absolute, or undo it, in place; see `x86`.

    Each instruction becomes big-endian, so that its opcode comes before its registers.
    """
    _walk_arm64(code, np.int64(address & 0xFFFFFFFF), forward)


@kernel
def _walk_x86(code, address, opcodes, long_mode, forward):
    at = 0
    while at + LONGEST <= code.size:
        length, operand = instruction(code, at, opcodes, long_mode)
        at += length
        if operand:
            if forward:
                put_big(code, operand, word(code, operand) + address + at)
            else:
                put(code, operand, big(code, operand) - address - at, 4)


@kernel
def _walk_arm64(code, address, forward):
    for at in range(0, code.size - 3, 4):
        bits, sign = word(code, at) if forward else big(code, at), 1 if forward else -1
        if bits >> 26 == 0x25:  # bl: 26 bits, in words
            target = (bits + sign * ((address + at) >> 2)) & 0x3FFFFFF
            bits = bits & 0xFC000000 | target
        elif bits & 0x9F000000 == 0x90000000:  # adrp: 21 bits, in pages, of which the low two are apart
            low, high, here = bits >> 29 & 3, bits >> 5 & 0x7FFFF, (address + at) >> 12
            if forward:  # the high ones, which are mostly zeros, are apart then
                pages = (high << 2 | low) + here
                low, high = pages >> 19 & 3, pages & 0x7FFFF
            else:
                pages = (low << 19 | high) - here
                low, high = pages & 3, pages >> 2 & 0x7FFFF
            bits = bits & 0x9F00001F | low << 29 | high << 5
        if forward:
            put_big(code, at, bits)
        else:
            put(code, at, bits, 4)
