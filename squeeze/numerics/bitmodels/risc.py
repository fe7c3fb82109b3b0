"""Follow the instructions of machines other than x86 byte by byte, for the registers that instructions.py has for x86.

Most have 4 bytes, with the opcode in the first ones. The present instruction is a number. Its lowest bits, 0 to 2, are
the bytes that it has so far, and 3 to 5 those that it will have. Bits 10 to 19 are its opcode as far as it is known,
and its bytes begin at bit 20. Each instruction that has ended leaves 16 bits: its opcode, and the register of bits 10
to 14, which it writes on most machines.
"""

import numpy as np

from squeeze.numerics.jit import inline

__all__ = ["AARCH64", "ARM", "MIPS", "POWERPC", "RISCV", "SPARC", "SYSTEM_Z", "follow", "selectors"]

SPARC, POWERPC, MIPS, ARM, AARCH64, RISCV, SYSTEM_Z = range(2, 9)  # 1 is x86
_ENDED = 1 << 60
_LONGEST = 6
_FIELD = 0x3FF  # of an opcode


@inline
def follow(present, machine, byte):
    """Return the present instruction after a byte, 0 if that ends it, and what an instruction leaves, or -1.

    Args:
        present: the present instruction, or 0.
        machine: one of the numbers above.
        byte: the next byte.
    """
    count, size, code = present & 7, present >> 3 & 7, present >> 20 << 8 | byte
    if count == 0:
        size = 4
        if machine == SYSTEM_Z:  # by the two highest bits
            size = 2 if byte < 0x40 else 4 if byte < 0xC0 else 6
        elif machine == RISCV and byte & 3 != 3:
            size = 2
    count += 1
    if machine == RISCV:
        opcode, register = _of_riscv(code, count, size)
    elif machine == SYSTEM_Z:
        opcode, register = _of_system_z(code, count)
    else:
        opcode, register = _of_word(code << 8 * (4 - count), machine)
    if count == size:
        return np.int64(0), opcode & _FIELD | register << 10
    return count | size << 3 | (opcode & _FIELD) << 10 | code << 20, np.int64(-1)


@inline
def selectors(present, before):
    """Return three numbers below 256 that choose weight sets: place and register, and two opcodes.

    Args:
        present: the present instruction.
        before: 16 bits each of the instructions before it, the latest in the low bits.
    """
    opcode = present >> 10 & _FIELD
    return present & 7 | (before >> 10 & 31) << 3, (before ^ before >> 8 & 3) & 0xFF, (opcode ^ opcode >> 8) & 0xFF


@inline
def _of_word(word, machine):
    """Return opcode and register of an instruction of 32 bits, with zeros for bits that are not known."""
    first, second, third, last = word >> 26, word >> 21 & 31, word >> 16 & 31, word & 31
    if machine == SPARC:
        kind = word >> 30
        if kind >= 2:
            return kind << 7 | (word >> 19 & 63) << 1 | word >> 13 & 1, word >> 25 & 31
        return (1 if kind else 8 | word >> 22 & 7 | (word >> 25 & 15) << 4), word >> 25 & 31
    if machine == POWERPC:
        is_long = first == 31 or first == 19 or first >= 59
        return (0x200 | word >> 1 & 0x1FF if is_long else first << 1 | word & 1), second
    if machine == MIPS:
        if first == 0:
            return 0x200 | word & 63, word >> 11 & 31
        return (0x240 | third if first == 1 else first), third
    if machine == ARM:
        return word >> 20 & 0xFF | (word >> 28 != 14) << 8 | (word >> 4 & 1) << 9, word >> 12 & 31
    return word >> 22 & 0x3FF, last


@inline
def _of_riscv(code, count, size):
    """Return opcode and register of RISC-V code, of which the lowest byte comes first."""
    first = code >> 8 * (count - 1) & 0xFF
    second = code >> 8 * (count - 2) & 0xFF if count > 1 else np.int64(0)
    if size == 2:
        return 0x200 | first & 3 | (second >> 5) << 2, (first >> 7 | (second & 15) << 1) & 31
    return first & 127 | (second >> 4 & 7) << 7 if count > 1 else first & 127, (first >> 7 | (second & 15) << 1) & 31


@inline
def _of_system_z(code, count):
    """Return opcode and register of z/Architecture code."""
    first = code >> 8 * (count - 1) & 0xFF
    second = code >> 8 * (count - 2) & 0xFF if count > 1 else np.int64(0)
    opcode = first
    if first == 0xA7 or first == 0xA5 or first == 0xC0 or first == 0xC2 or first == 0xC4:
        opcode = first ^ (second & 15) << 5 | 0x200
    elif count == _LONGEST:
        opcode = first ^ (code & 31) << 5 | 0x200
    return opcode, second >> 4
