"""Follow x86 instructions byte by byte: what the next byte of code is part of, and which instructions came before.

The present instruction is a number. Its lowest bits, 0 to 2, are the phase of the next byte. Bits 3 to 5 are the bytes
of its displacement that are still to come, and 6 to 9 those of its immediate. Then there are the opcode (10 to 17), map
(18 and 19), ModRM byte (20 to 27), SIB byte (28 to 35), and last prefix (36 to 43). Code is taken as 64-bit code.
"""

import numpy as np

from squeeze.numerics.bitmodels.opcodes import (
    BYTE,
    ESCAPE,
    IMMEDIATE,
    LONG,
    MODRM,
    NONE,
    OPCODES,
    PREFIX,
    REX,
    SHORT,
    SPECIAL,
    TWO_BYTES,
    VEX_2,
    VEX_3,
    immediate_size,
)
from squeeze.numerics.jit import inline

__all__ = ["ENDED", "follow", "selectors", "summary"]

# What the next byte is.
START, SECOND, OPCODE, PAYLOAD, SELECTOR, INDEX, DISPLACEMENT, VALUE = range(8)
ENDED = 1 << 44
_MOST_PREFIXES = 4
_PREFIXES = _MOST_PREFIXES + 1  # after a REX byte no other prefix follows


@inline
def follow(present, parser, byte):
    """Return the present instruction, with ENDED if a byte ends it, and the state of the parser.

    Args:
        present: the present instruction.
        parser: bits 0 and 1: SHORT and LONG; 2 to 4: prefixes; 5 to 12: what follows the opcode; 13 and 14: bytes of a
            VEX prefix that are still to come.
        byte: the next byte.
    """
    phase = present & 7
    if phase == START:
        present, parser = _start(present, parser, byte)
    elif phase == SECOND:
        if byte == 0x38 or byte == 0x3A:
            present += ((1 if byte == 0x38 else 2) << 18) + OPCODE - SECOND
        else:
            present, parser = _opened(present, parser, byte, _follows(1, byte))
    elif phase == OPCODE:
        present, parser = _opened(present, parser, byte, _follows(present >> 18 & 3, byte))
    elif phase == PAYLOAD:
        present, parser = _passed(present, parser, byte)
    elif phase == SELECTOR:
        present = _selected(present, parser, byte)
    elif phase == INDEX:
        present |= byte << 28
        if present >> 26 & 3 == 0 and byte & 7 == 5:
            present += 4 << 3
        present = _settled(present)
    else:
        present = _settled(present - (8 if phase == DISPLACEMENT else 64))
    return present, parser


@inline
def summary(present):
    """Return 16 bits of an instruction: its opcode, map, `mod`, `reg`, and whether it has a prefix."""
    return (
        present >> 10 & 0x3FF
        | (present >> 26 & 3) << 10
        | (present >> 23 & 7) << 12
        | ((present >> 36 & 0xFF) > 0) << 15
    )


@inline
def selectors(present, before):
    """Return three numbers below 256 that choose weight sets: the place of the next byte, and two opcodes.

    Args:
        present: the present instruction.
        before: 16 bits each of the instructions before it, the latest in the low bits.
    """
    has_value, is_long = (present >> 6 & 15) > 0, (present >> 18 & 3) > 0
    return present & 0x3F | has_value << 6 | is_long << 7, before & 0xFF, present >> 10 & 0xFF


@inline
def _start(present, parser, byte):
    """Pass over a prefix or an escape, or begin an opcode of one byte."""
    follows, count = np.int64(OPCODES[256 + byte]), parser >> 2 & 7
    special = follows & SPECIAL
    if special == PREFIX and count < _MOST_PREFIXES:
        return present & 0xFFF | byte << 36, parser + 4 | (SHORT if byte == 0x66 else 0)
    if special == REX and count < _PREFIXES:
        return present & 0xFFF | byte << 36, parser & 3 | (LONG if byte & 8 else 0) | _PREFIXES << 2
    if special == ESCAPE:
        return present + SECOND + (1 << 18), parser
    if special >= VEX_2:
        payload = 1 if special == VEX_2 else 2 if special == VEX_3 else 3
        present = present & 0xFFF | byte << 36
        return present + PAYLOAD + (1 << 18 if payload == 1 else 0), parser | payload << 13
    return _opened(present, parser, byte, np.int64(NONE) if special else follows)


@inline
def _follows(table, byte):
    """Return what follows an opcode of a map from 1 to 3."""
    if table == 1:
        return np.int64(OPCODES[TWO_BYTES + byte])
    return np.int64(MODRM | BYTE) if table == 3 else np.int64(MODRM)


@inline
def _passed(present, parser, byte):
    """Pass over a byte of a VEX prefix, the first of which has the map of the opcode unless that is known."""
    if not present >> 18 & 3:
        field = byte & 7
        present |= (field if field == 1 or field == 3 else 2) << 18
    parser -= 1 << 13
    return present if parser >> 13 else present + OPCODE - PAYLOAD, parser


@inline
def _opened(present, parser, byte, follows):
    """Begin what follows an opcode."""
    present = present & ~7 | byte << 10
    parser = parser & 0x1F | np.int64(follows) << 5
    if follows & MODRM:
        return present | SELECTOR, parser
    size = immediate_size(follows & IMMEDIATE, parser & 3, 0, 1)
    return _settled(present | size << 6), parser


@inline
def _selected(present, parser, byte):
    """Begin what follows a ModRM byte."""
    mod, low = byte >> 6, byte & 7
    size = immediate_size(parser >> 5 & IMMEDIATE, parser & 3, byte >> 3 & 7, 1)
    present = present & ~7 | byte << 20 | size << 6
    if mod == 1:
        present |= 1 << 3
    elif mod == 2 or (mod == 0 and low == 5):
        present |= 4 << 3
    return present | INDEX if mod < 3 and low == 4 else _settled(present)


@inline
def _settled(present):
    """Return an instruction with its next phase, or with ENDED if it is complete."""
    if present & 0x38:
        return present & ~7 | DISPLACEMENT
    if present & 0x3C0:
        return present & ~7 | VALUE
    return present | ENDED
