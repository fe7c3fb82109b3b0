"""Lengths of x86 instructions, and their operands that are relative to the instruction pointer.

Displacements and immediates never change a length. So the walk over code is the same before and after these operands
are replaced, even if what it walks over is not code.
"""

import numpy as np

from squeeze.numerics.bitmodels.opcodes import (
    BYTE,
    ESCAPE,
    IMMEDIATE,
    LONG,
    MODRM,
    NONE,
    PREFIX,
    RELATIVE,
    REX,
    SHORT,
    SPECIAL,
    TWO_BYTES,
    VEX_2,
    VEX_3,
    immediate_size,
)
from squeeze.numerics.jit import inline

__all__ = ["LONGEST", "instruction"]

LONGEST = 24  # bytes of the longest instruction by the table, valid or not


@inline
def instruction(code, at, opcodes, long_mode):
    """Return the length of the instruction at a place of code, and the place of its operand that is relative to the
    instruction pointer, or 0 without one.

    Args:
        code: uint8, with at least LONGEST bytes from `at` on.
        at: its first byte.
        opcodes: OPCODES.
        long_mode: 1 for 64-bit code, 0 for 32-bit code.
    """
    place, sizes = _prefixes(code, at, opcodes, long_mode)
    place, follows = _opcode(code, place, opcodes, long_mode)
    operand, group = 0, 0
    if follows & MODRM:
        group = code[place] >> 3 & 7
        place, operand = _memory(code, place, long_mode)
    immediate = follows & IMMEDIATE
    size = immediate_size(immediate, sizes, group, long_mode)
    if immediate == RELATIVE and size == 4:
        operand = place
    return place + size - at, operand


@inline
def _prefixes(code, at, opcodes, long_mode):
    """Return the place after the prefixes at a place, and what they say of sizes."""
    base, sizes = 256 * long_mode, 0
    for _ in range(4):
        if opcodes[base + code[at]] & SPECIAL != PREFIX:
            break
        if code[at] == 0x66:
            sizes |= SHORT
        at += 1
    if opcodes[base + code[at]] & SPECIAL == REX:
        if code[at] & 8:
            sizes |= LONG
        at += 1
    return at, sizes


@inline
def _opcode(code, at, opcodes, long_mode):
    """Return the place after the opcode at a place, and what follows it."""
    follows = opcodes[256 * long_mode + code[at]]
    special, table = follows & SPECIAL, 0
    at += 1
    if special == ESCAPE:
        table = 1
        if code[at] == 0x38 or code[at] == 0x3A:
            table = 2 if code[at] == 0x38 else 3
            at += 1
    elif special >= VEX_2:
        field = 1 if special == VEX_2 else code[at] & 7
        table = field if field == 1 or field == 3 else 2
        at += 1 if special == VEX_2 else 2 if special == VEX_3 else 3
    elif special:  # a prefix where the opcode should be
        follows = np.uint8(NONE)
    if table:
        follows = np.uint8(MODRM)
        if table == 1:
            follows = opcodes[TWO_BYTES + code[at]]
        elif table == 3:
            follows = np.uint8(MODRM | BYTE)
        at += 1
    return at, follows


@inline
def _memory(code, at, long_mode):
    """Return the place after a ModRM byte and its memory operand, and the place of a relative operand, or 0."""
    mod, low, operand = code[at] >> 6, code[at] & 7, 0
    at += 1
    is_indexed = mod < 3 and low == 4
    if is_indexed:
        low = code[at] & 7
        at += 1
    if mod == 1:
        at += 1
    elif mod == 2:
        at += 4
    elif mod == 0 and low == 5:
        if long_mode and not is_indexed:
            operand = at
        at += 4
    return at, operand
