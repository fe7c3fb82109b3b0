"""Recognising text whose lines have the same form: logs, tables, JSON, markup, source code."""

import numpy as np

from squeeze.numerics.bitmodels import fields
from squeeze.numerics.jit import kernel

__all__ = ["are_alike"]

_LEAST = 1 << 11  # bytes of the shortest text that is looked at
_SAMPLE = 1 << 15
_LEAST_SHARES = {True: (2, 5), False: (1, 4)}  # of bytes that are told, in deep models and in others


def are_alike(data: np.ndarray, deep: bool) -> bool:
    """Return whether lines before tell enough of the next bytes, in the middle of uint8 `data`.

    Prose has a share of 0.06 to 0.21 of such bytes, source code of 0.3 and more, logs and tables of 0.4 to 0.8.

    Args:
        data: uint8 [n], the text.
        deep: whether models of levels 4 to 6 code it, whose other contexts leave less to gain.
    """
    if data.size < _LEAST:
        return False
    begin = max(data.size - _SAMPLE, 0) // 2
    sample = np.require(data[begin : begin + _SAMPLE], requirements="W")  # as blocks are: the same steps serve both
    registers = np.zeros(fields.REGISTERS, np.uint64)
    places, numbers = np.zeros(fields.PLACES, np.int32), np.zeros((fields.NUMBERS, 3), np.int64)
    share, of = _LEAST_SHARES[deep]
    return bool(of * _told(sample, registers, places, numbers, True) >= share * sample.size)


@kernel
def _told(data: np.ndarray, registers: np.ndarray, places: np.ndarray, numbers: np.ndarray, with_above: bool) -> int:
    """Return the number of bytes that are those of the line above, or of the last line of the same form.

    `with_above` is True: an argument, not a constant, since levels 1 to 3 compile `fields.update_byte` with one, too.
    """
    told = 0
    for i in range(data.size):
        byte, above, alike = np.uint64(data[i]), registers[fields.ABOVE], registers[fields.ALIKE]
        if (above & np.uint64(0xFF)) == byte or (alike & np.uint64(0xFF)) == byte:
            told += 1
        fields.update_byte(registers, places, numbers, data, i + 1, with_above)
    return told
