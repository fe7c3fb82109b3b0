"""Operands of RISC-V code that are relative to the instruction pointer, made absolute.

Instructions have 2 or 4 bytes, which their lowest two bits say. Those bits never change, so the walk over code is the
same before and after. The order of the immediate's bits is undone as well, so that equal targets are equal bytes.
"""

import numpy as np

from squeeze.codecs.parse.program.numbers import big, put, put_big, word
from squeeze.numerics.jit import inline, kernel

__all__ = ["riscv"]

_JAL, _AUIPC = 0x6F, 0x17  # low 7 bits of instructions
# Instructions whose first register may be that of an `auipc` before them: loads, sums, jumps, and stores.
_LOAD, _LOAD_FLOAT, _ADD, _ADD_WORD, _STORE, _STORE_FLOAT, _JALR = 3, 7, 0x13, 0x1B, 0x23, 0x27, 0x67
_WIDTH = 8  # bytes of a pair


def riscv(code: np.ndarray, address: int, forward: bool) -> None:
    """Make the operands of `jal`, and of `auipc` with the instruction after it, absolute, or undo it, in place.

    Code with an `auipc` that only looks as if it was transformed does not come back, which is as good as impossible.

    Args:
        code: uint8 [n].
        address: of its first byte.
        forward: whether operands become absolute.
    """
    _walk(code, np.int64(address & 0xFFFFFFFF), forward)


@kernel
def _walk(code, address, forward):
    at = 0
    while at + _WIDTH <= code.size:
        if code[at] & 3 != 3:
            at += 2
            continue
        bits = word(code, at)
        if bits & 127 == _JAL:
            _jump(code, at, bits, address + at, forward)
        elif bits & 127 == _AUIPC and _is_second(word(code, at + 4) if forward else bits >> 12, bits >> 7 & 31):
            if forward:
                _hide_pair(code, at, bits, address + at)
            else:
                _show_pair(code, at, bits, address + at)
            at += 4
        at += 4


@inline
def _is_second(bits, register):
    """Return whether an instruction, of which the low 20 bits matter, adds its immediate to a register of `auipc`."""
    kind = bits & 127
    is_known = kind in (_LOAD, _LOAD_FLOAT, _ADD, _ADD_WORD, _STORE, _STORE_FLOAT, _JALR)
    return register > 0 and (bits >> 15 & 31) == register and is_known


@inline
def _is_store(bits):
    return bits & 127 in (_STORE, _STORE_FLOAT)


@inline
def _jump(code, at, bits, here, forward):
    """Make the 20 bits of a `jal` at the address `here` absolute, the highest one first, or undo it."""
    low = bits & 0xFFF
    if forward:
        halves = (bits >> 31 & 1) << 19 | (bits >> 12 & 255) << 11 | (bits >> 20 & 1) << 10 | (bits >> 21 & 1023)
        target = halves + (here >> 1)
        put(code, at, low | (target >> 16 & 15) << 12 | (target >> 8 & 255) << 16 | (target & 255) << 24, 4)
    else:
        target = (bits >> 12 & 15) << 16 | (bits >> 16 & 255) << 8 | bits >> 24
        halves = target - (here >> 1)
        high = (halves >> 19 & 1) << 31 | (halves & 1023) << 21 | (halves >> 10 & 1) << 20 | (halves >> 11 & 255) << 12
        put(code, at, low | high, 4)


@inline
def _hide_pair(code, at, bits, here):
    """Write the low bits of both instructions, and the sum of their immediates and the address, highest byte first."""
    second = word(code, at + 4)
    kept, low = second & 0xFFFFF, second >> 20
    if _is_store(second):
        kept = second & 0xFF07F | (second >> 20 & 31) << 7
        low = second >> 25 << 5 | (second >> 7 & 31)
    put(code, at, bits & 0xFFF | kept << 12, 4)
    put_big(code, at + 4, (bits & 0xFFFFF000) + (low ^ 0x800) - 0x800 + here)


@inline
def _show_pair(code, at, bits, here):
    """Write both instructions of a pair."""
    kept, target = bits >> 12, big(code, at + 4) - here
    low = target & 0xFFF
    second = kept | low << 20
    if _is_store(kept):
        second = kept & 0xFF07F | (kept >> 7 & 31) << 20 | (low >> 5) << 25 | (low & 31) << 7
    put(code, at, bits & 0xFFF | ((target - ((low ^ 0x800) - 0x800)) & 0xFFFFF000), 4)
    put(code, at + 4, second, 4)
