"""The table of x86 opcodes: which have a ModRM byte, what immediate they have, and which are prefixes or escapes."""

import numpy as np

from squeeze.numerics.jit import inline

__all__ = [
    "ADDRESS",
    "BYTE",
    "ENTER",
    "ESCAPE",
    "EVEX",
    "FAR",
    "FULL",
    "IMMEDIATE",
    "LONG",
    "MODRM",
    "NONE",
    "OPCODES",
    "PREFIX",
    "RELATIVE",
    "REX",
    "SHORT",
    "SPECIAL",
    "TEST_BYTE",
    "TEST_FULL",
    "TWO_BYTES",
    "VEX_2",
    "VEX_3",
    "WIDE",
    "WORD",
    "immediate_size",
]

# What follows an opcode: a ModRM byte or none (bit 0), and an immediate (bits 1 to 4).
MODRM = 1
NONE, BYTE, WORD, FULL, WIDE, ADDRESS, ENTER, FAR, TEST_BYTE, TEST_FULL, RELATIVE = (value << 1 for value in range(11))
PREFIX, REX, ESCAPE, VEX_2, VEX_3, EVEX = (value << 5 for value in range(1, 7))
SPECIAL = 7 << 5
IMMEDIATE = 15 << 1
SHORT, LONG = 1, 2  # sizes: an operand of 2 bytes instead of 4; an immediate of 8
_ONE_BYTE, _LONG_MODE, TWO_BYTES = 0, 256, 512  # offsets in the table


def _table() -> np.ndarray:
    """Return what follows each opcode, uint8: of one byte in 32-bit and in 64-bit code, and of two bytes after 0F."""
    table = np.zeros(768, np.uint8)
    for base in (_ONE_BYTE, _LONG_MODE):
        _one_byte(table[base : base + 256], base == _LONG_MODE)
    two = table[TWO_BYTES:]
    two[:] = MODRM
    for first, last in (
        (0x04, 0x0C),
        (0x0E, 0x0F),
        (0x30, 0x38),
        (0x77, 0x78),
        (0xA0, 0xA3),
        (0xA8, 0xAB),
        (0xC8, 0xD0),
    ):
        two[first:last] = NONE
    two[0x80:0x90] = RELATIVE
    two[[0x0F, *range(0x70, 0x74), 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6]] = MODRM | BYTE
    return table


def _one_byte(table: np.ndarray, long_mode: bool) -> None:
    for row in range(0, 0x40, 8):
        table[row : row + 4] = MODRM
        table[row + 4], table[row + 5] = BYTE, FULL
    table[[0x62, 0x63, 0x69, 0x6B, *range(0x80, 0x90), 0xC0, 0xC1, 0xC4, 0xC5, 0xC6, 0xC7]] = MODRM
    table[[*range(0xD0, 0xD4), *range(0xD8, 0xE0), 0xF6, 0xF7, 0xFE, 0xFF]] = MODRM
    table[[0x6A, 0x6B, *range(0x70, 0x81), 0x82, 0x83, 0xA8, *range(0xB0, 0xB8), 0xC0, 0xC1, 0xC6, 0xCD]] |= BYTE
    table[[0xD4, 0xD5, *range(0xE0, 0xE8), 0xEB]] |= BYTE
    table[[0x68, 0x69, 0x81, 0xA9, 0xC7]] |= FULL
    table[[0xC2, 0xCA]] = WORD
    table[0xA0:0xA4], table[0xB8:0xC0], table[0xC8] = ADDRESS, WIDE, ENTER
    table[[0x9A, 0xEA]] = NONE if long_mode else FAR
    table[[0xE8, 0xE9]] = RELATIVE
    table[0xF6], table[0xF7] = MODRM | TEST_BYTE, MODRM | TEST_FULL
    table[[0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3]] = PREFIX
    table[0x0F] = ESCAPE
    if long_mode:
        table[0x40:0x50] = REX
        table[0x62], table[0xC4], table[0xC5] = EVEX, VEX_3, VEX_2


OPCODES = _table()


@inline
def immediate_size(kind, sizes, group, long_mode):
    """Return the bytes of an immediate.

    Args:
        kind: its bits of the table.
        sizes: SHORT and LONG, if prefixes say so.
        group: `reg` of the ModRM byte.
        long_mode: 1 for 64-bit code, 0 for 32-bit code.
    """
    full = 2 if sizes & SHORT else 4
    if kind == BYTE:
        return 1
    if kind == FULL:
        return full
    if kind == WIDE:
        return 8 if sizes & LONG else full
    if kind == ADDRESS:
        return 8 if long_mode else 4
    if kind == FAR:
        return 2 + full
    if kind == TEST_BYTE:
        return 1 if group < 2 else 0
    if kind == TEST_FULL:
        return full if group < 2 else 0
    if kind == RELATIVE:
        return 2 if sizes & SHORT and not long_mode else 4
    return 2 if kind == WORD else 3 if kind == ENTER else 0
