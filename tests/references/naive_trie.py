"""Decode entries of a vocabulary: logarithms, the trie of leaves, and the bytes that a lane knows."""

from decimal import Decimal, localcontext
from functools import cache

import numpy as np

STOP = 8


@cache
def logarithms():
    with localcontext() as context:
        context.prec = 40
        return [int((1 + Decimal(i) / 4096).ln() * 2**24) for i in range(4097)]


def ln(x):
    bits = int(np.float64(x).view(np.int64))
    e, i, f = (bits >> 52) - 1023, bits >> 40 & 4095, bits >> 24 & 65535
    table = logarithms()
    return e * table[4096] + table[i] + ((table[i + 1] - table[i]) * f >> 16)


def trie(leaves):
    """Return nodes (low, middle, high, depth, shift, children). A child is a node or ~leaf."""
    nodes = []

    def build(low, high, depth, shift):
        if high - low == 1:
            return ~low
        middle = low
        while middle in (low, high):
            if shift == STOP:
                middle, following = low + (len(leaves[low]) == depth), (depth, 7)
            else:
                middle = next((k for k in range(low, high) if leaves[k][depth] >> shift & 1), high)
                following = (depth, shift - 1) if shift else (depth + 1, STOP)
            place, (depth, shift) = (depth, shift), following
        children, number = [], len(nodes)
        nodes.append((low, middle, high, *place, children))
        children += [build(low, middle, depth, shift), build(middle, high, depth, shift)]
        return number

    build(0, len(leaves), 0, STOP)
    return nodes


class Data:
    """The bytes of a block, of which `size` are known to one lane."""

    def __init__(self, size):
        self.bytes, self.place = bytearray(size), 0

    def __len__(self):
        return self.place

    def __getitem__(self, at):
        return self.bytes[at]

    def append(self, c):
        self.bytes[self.place] = c
        self.place += 1
