"""A network's prediction of the next byte as integers: frequencies of the 256 bytes, summed in a tree.

`counts` is int64 [512]. The frequencies of the bytes are counts[256:], and counts[i] is the sum of counts[2 i] and
counts[2 i + 1]. So the probability of a bit is a quotient of two.
"""

import numpy as np

from squeeze.numerics.jit import inline

BYTES = 256
BITS = 24  # fractional ones of a byte's frequency
_ONE = np.float32(1 << BITS)


@inline
def count(shares, leaves):
    """Write the frequencies of bytes, int32 [256], from float32 shares [256], the largest of which is 1."""
    for i in range(BYTES):
        share = shares[i] * _ONE
        leaves[i] = 1 + (np.int32(share) if share <= _ONE else 0)  # NaN is 0 everywhere


@inline
def add_up(leaves, counts):
    """Fill `counts` from the frequencies of bytes."""
    for i in range(BYTES):
        counts[BYTES + i] = np.int64(leaves[i])
    for i in range(BYTES - 1, 0, -1):
        counts[i] = counts[2 * i] + counts[2 * i + 1]


@inline
def probability(counts, partial):
    """Return the 16-bit probability that the next bit is a one.

    Args:
        counts: The frequencies.
        partial: The bits of the byte so far after a leading one.
    """
    return (counts[2 * partial + 1] << 16) // counts[partial]


@inline
def top_prediction(counts):
    """Return the most probable byte (8 bits) and the class of its probability (3 bits above)."""
    first = BYTES
    for i in range(BYTES + 1, 2 * BYTES):
        if counts[i] > counts[first]:
            first = i
    p = (counts[first] << 8) // counts[1]
    confidence = (p > 32) + (p > 64) + (p > 104) + (p > 152) + (p > 200) + (p > 232) + (p > 250)
    return np.uint64((first - BYTES) | (confidence << 8))
