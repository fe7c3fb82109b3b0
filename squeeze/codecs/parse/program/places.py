"""Places of relocations in object files, which mostly follow from what they relocate.

An assembler leaves zeros for an operand that is not known, and names its place in a relocation. So a place becomes the
number of such operands between it and the one before. In call frame information, places are those of begins.
"""

import numpy as np

from squeeze.codecs.parse.program.lengths import LONGEST, instruction
from squeeze.codecs.parse.program.numbers import put, word
from squeeze.numerics.bitmodels.opcodes import OPCODES
from squeeze.numerics.jit import kernel

__all__ = ["in_code", "in_frames", "places"]

_RAW = 1 << 31  # is added to a place that is not among the expected ones
_BEGIN, _DATA = 8, 17  # where call frame information has a begin, and a pointer to data for exceptions


def in_code(code: np.ndarray) -> np.ndarray:
    """Return the places of operands of x86-64 code that are relative to the instruction pointer and 0, int64."""
    padded = np.concatenate([code, np.zeros(LONGEST, np.uint8)])
    found = np.empty(code.size // 5 + 1, np.int64)
    return found[: _operands(padded, OPCODES, found)]


def in_frames(frames: np.ndarray) -> np.ndarray:
    """Return the places in `.eh_frame` where relocations are expected, int64."""
    found = np.empty(frames.size // 4 + 1, np.int64)
    return found[: _begins(frames, found)]


def places(table: np.ndarray, row: int, expected: np.ndarray, forward: bool) -> bool:
    """Replace the first 4 bytes of rows by how many expected places are passed over, or undo it, in place.

    A place that is not expected, or not behind the one before, stays, plus 2^31.

    Args:
        table: uint8 [n], relocations.
        row: bytes of a row, at least 4.
        expected: int64, ascending places.
        forward: whether places become numbers.

    Returns:
        whether all places are below 2^31; if not, the table is of no use.
    """
    return bool(_places(table, row, expected, forward))


@kernel
def _operands(code, opcodes, found):
    at, count = 0, 0
    while at + LONGEST <= code.size and count < found.size:
        length, operand = instruction(code, at, opcodes, 1)
        at += length
        if operand and word(code, operand) == 0:
            found[count] = operand
            count += 1
    return count


@kernel
def _begins(frames, found):
    at, count = 0, 0
    while at + 16 <= frames.size and count + 1 < found.size:
        length, back = word(frames, at), word(frames, at + 4)
        if length >= 0xFFFFFFF0 or length < 4 or at + 4 + length > frames.size:
            break
        if back:
            found[count] = at + _BEGIN
            count += 1
            if length > _DATA and frames[at + _DATA - 1] == 4:
                found[count] = at + _DATA
                count += 1
        at += 4 + length
    return count


@kernel
def _places(table, row, expected, forward):
    passed = 0
    for at in range(0, table.size - 3, row):
        value = word(table, at)
        if forward:
            if value >= _RAW:
                return False
            number = np.searchsorted(expected, value)
            if number < expected.size and expected[number] == value and number >= passed:
                put(table, at, number - passed, 4)
            else:
                put(table, at, value + _RAW, 4)
        else:
            if value >= _RAW:
                value -= _RAW
            elif passed + value < expected.size:
                value = expected[passed + value]
            put(table, at, value, 4)
        passed = np.searchsorted(expected, value + 1)
    return True
