"""Code of machines whose instructions all have 4 bytes: with the highest byte first, and targets of calls absolute."""

import numpy as np

from squeeze.codecs.parse.program.numbers import big, put, put_big, word
from squeeze.numerics.bitmodels.risc import ARM, POWERPC, SPARC
from squeeze.numerics.jit import inline, kernel

__all__ = ["LITTLE", "PLACED", "words"]

LITTLE, PLACED = 1, 2  # of a form, beside 4 times the machine: the lowest byte is first, and addresses are final


def words(code: np.ndarray, address: int, form: int, forward: bool) -> None:
    """Let the highest byte of instructions come first, and make the targets of calls absolute, or undo it, in place.

    Args:
        code: uint8 [n].
        address: of its first byte.
        form: 4 times the number that bitmodels/risc.py has for the machine, plus LITTLE and PLACED.
        forward: whether operands become absolute.
    """
    _walk(code, np.int64(address & 0xFFFFFFFF), form >> 2, form & LITTLE, form & PLACED, forward)


@kernel
def _walk(code, address, machine, is_little, is_placed, forward):
    for at in range(0, code.size - 3, 4):
        bits = word(code, at) if is_little and forward else big(code, at)
        if is_placed:
            bits = _called(bits, (address + at) >> 2 if forward else -((address + at) >> 2), machine)
        if is_little and not forward:
            put(code, at, bits, 4)
        else:
            put_big(code, at, bits)


@inline
def _called(bits, distance, machine):
    """Return an instruction with the target moved by a number of words, if it is a call."""
    if machine == SPARC and bits >> 30 == 1:
        return bits & 0xC0000000 | (bits + distance) & 0x3FFFFFFF
    if machine == POWERPC and bits & 0xFC000003 == 0x48000001:
        return bits & 0xFC000003 | ((bits >> 2) + distance & 0xFFFFFF) << 2
    if machine == ARM and bits & 0x0F000000 == 0x0B000000 and bits >> 28 < 15:
        return bits & 0xFF000000 | (bits + distance) & 0xFFFFFF
    return bits
