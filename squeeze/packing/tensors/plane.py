"""A plane of a coded tensor: the rotation of its values, and the columns of the int64 row that describes it.

Places are in bytes of the payload.
"""

import numpy as np

from squeeze.numerics.jit import inline

WIDTH = 0
RAW_BITS = 1
PRECISION = 2  # 0 if every prefix is CONSTANT, or there is none
CONSTANT = 3
TABLES = 4
SYMBOLS = 5
IDS = 6  # uint8 [segments], if there are several tables
COUNTS = 7  # of words, uint32 [segments]
STATES = 8  # uint32 [segments, lanes]
WORDS_AT = 9  # uint16
RAW = 10  # uint32, or the values if a plane has no prefix
FIELD = 11  # see rans.decoding_table
TABLE = 12  # places in the array of decoding tables
NAMES = 13
COLUMNS = 14


@inline
def rotated(value, width):
    """Move the highest bit of a `width`-bit value below its lowest one, unless `width` is 0."""
    wide = np.uint64(value)
    if width == np.uint64(0):
        return wide
    every = np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - width)
    return ((wide << np.uint64(1)) | (wide >> (width - np.uint64(1)))) & every


@inline
def unrotated(value, width):
    """Undo `rotated`."""
    if width == 0:
        return value
    return (value >> np.uint64(1)) | (value << np.uint64(width - 1))
