"""Bits, symbols and digits with adaptive probabilities of their own, coded in either direction.

An entry is a uint32: a probability in the high 22 bits, and a count in the low 10 that makes it adapt fast at first.
"""

import numpy as np

from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.bitmodels.histories import learn
from squeeze.numerics.jit import kernel, part

EVEN = 1 << 31  # an entry that has learnt nothing
_LIMIT = 250  # largest count of an entry


@part
def code_bit(bit, entries, index, coder, coded, decoding):
    """Code a bit with the entry at `index`, and return it."""
    probability = np.int64(max(entries[index] >> np.uint32(10), np.uint32(1))) << 10
    if decoding:
        bit = arithmetic.decode(probability, coder, coded)
    else:
        arithmetic.encode(bit, probability, coder, coded)
    learn(entries, index, bit, _LIMIT)
    return bit


@part
def code_tree(symbol, bits, entries, first, coder, coded, decoding):
    """Code a symbol of some bits by the 1 << bits entries from `first` on, the high bit first, and return it."""
    node = np.int64(1)
    for shift in range(bits - 1, -1, -1):
        bit = np.int64(symbol) >> shift & 1
        node = 2 * node + code_bit(bit, entries, first + node, coder, coded, decoding)
    return node - (1 << bits)


@part
def code_digits(value, bits, coder, coded, decoding):
    """Code the low bits of a value with even probabilities, and return them."""
    result = np.int64(0)
    for shift in range(bits - 1, -1, -1):
        bit = np.int64(value) >> shift & 1
        if decoding:
            bit = arithmetic.decode(np.int64(EVEN), coder, coded)
        else:
            arithmetic.encode(bit, np.int64(EVEN), coder, coded)
        result = 2 * result + bit
    return result


@kernel
def code_bytes(data, coder, coded, entries, decoding):
    """Code bytes, each in the context of the one before it.

    Args:
        data: uint8 [n]; decoding writes it.
        coder: the arithmetic coder.
        coded: its bytes.
        entries: uint32 [65536].
        decoding: the direction.

    Returns:
        whether there was room for the coded bytes, or enough of them.
    """
    before = np.int64(0)
    for i in range(data.size):
        before = code_tree(data[i], 8, entries, 256 * before, coder, coded, decoding)
        data[i] = np.uint8(before)
        if arithmetic.is_over(coder, coded, decoding):
            return False
    return True
