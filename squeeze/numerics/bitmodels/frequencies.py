"""What a network says of the next byte as integers: frequencies of the 256 bytes, and their sums as a tree.

`counts` is int64 [512]: those of bytes from 256 on, and at i the sum of those at 2 i and 2 i + 1, so that a bit's
probability is a quotient of two.
"""

import numpy as np

from squeeze.numerics.jit import inline

BYTES = 256
BITS = 24  # fractional ones of a byte's frequency
_ONE = np.float32(1 << BITS)


@inline
def count(shares, counts):
    """Fill `counts` from float32 shares [256], of which the largest is 1."""
    for i in range(BYTES):
        share = shares[i] * _ONE
        counts[BYTES + i] = 1 + (np.int64(share) if share <= _ONE else 0)  # NaN is 0 everywhere
    add_up(counts)


@inline
def add_up(counts):
    """Fill the sums of `counts` from the frequencies."""
    for i in range(BYTES - 1, 0, -1):
        counts[i] = counts[2 * i] + counts[2 * i + 1]


@inline
def probability(counts, partial):
    """That the next bit is a one, in 16 bits, given the bits of the byte so far after a leading one."""
    return (counts[2 * partial + 1] << 16) // counts[partial]


@inline
def top_prediction(counts):
    """The likeliest byte (8 bits), and the class of its probability (3 bits)."""
    first = BYTES
    for i in range(BYTES + 1, 2 * BYTES):
        if counts[i] > counts[first]:
            first = i
    p = (counts[first] << 8) // counts[1]
    confidence = (p > 32) + (p > 64) + (p > 104) + (p > 152) + (p > 200) + (p > 232) + (p > 250)
    return np.uint64((first - BYTES) | (confidence << 8))
