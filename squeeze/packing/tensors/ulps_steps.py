"""Compiled steps of ulps.py: floats as integers in the order of their values, and the cost of classes.

A value is given by its bits. Its *place* is the number of floats below it: the sign bit of a positive value is set, all
bits of a negative one are inverted. So -0.0 and 0.0 are neighbours, and every bit pattern has its own place.
Differences of places, modulo 2^bits, are folded so that small ones of either sign become small numbers: 0, -1, 1, -2,
2, and so on.
"""

import numpy as np

from squeeze.numerics.jit import inline, kernel, lossy_kernel

MOST_CLASSES = 16
BINS = 65  # possible lengths of a difference in bits


@inline
def _exponent(value, mantissa_bits, exponents):
    return np.int64(np.uint64(value) >> np.uint64(mantissa_bits) & np.uint64(exponents - 1))


@inline
def _place(value, sign, mask):
    """Return the place of a value, uint64, with `sign` + 1 bits, all set in `mask`."""
    return value ^ (np.uint64(1) << sign | (np.uint64(0) - (value >> sign)) & mask)


@inline
def _folded(value, other, bits):
    sign, mask = np.uint64(bits - 1), ~np.uint64(0) >> np.uint64(64 - bits)
    difference = (_place(np.uint64(value), sign, mask) - _place(np.uint64(other), sign, mask)) & mask
    return (difference << np.uint64(1) ^ (np.uint64(0) - (difference >> sign))) & mask


@inline
def _unfolded(folded, other, bits):
    sign, mask = np.uint64(bits - 1), ~np.uint64(0) >> np.uint64(64 - bits)
    difference = np.uint64(folded) >> np.uint64(1) ^ (np.uint64(0) - (np.uint64(folded) & np.uint64(1)))
    place = (_place(np.uint64(other), sign, mask) + difference) & mask
    return place ^ (np.uint64(1) << sign | ((place >> sign) - np.uint64(1)) & mask)


@kernel
def count_classes(others, mantissa_bits, exponents, class_of, counts):
    """Count the base's values, unsigned [N], with exponents of each class; class_of: int64 [exponents]."""
    counts[:] = 0
    for other in others:
        counts[class_of[_exponent(other, mantissa_bits, exponents)]] += 1


@kernel
def split(values, others, bits, mantissa_bits, exponents, class_of, ends, out):
    """Write the differences of values [N] from the base's [N] to `out`, class by class, in the order of the values.

    ends: int64 [classes], where each class begins; afterwards where it ends.
    """
    for i in range(values.size):
        number = class_of[_exponent(others[i], mantissa_bits, exponents)]
        out[ends[number]] = _folded(values[i], others[i], bits)
        ends[number] += 1


@kernel
def merge(differences, bits, mantissa_bits, exponents, class_of, ends, values):
    """Undo `split`: `values` holds the base's values [N], and afterwards the tensor's."""
    for i in range(values.size):
        number = class_of[_exponent(values[i], mantissa_bits, exponents)]
        values[i] = _unfolded(differences[ends[number]], values[i], bits)
        ends[number] += 1


@kernel
def count_lengths(values, others, step, bits, mantissa_bits, exponents, counts):
    """Count the lengths in bits of the differences of every `step`th value, by the base's exponent.

    counts: int64 [exponents, BINS].
    """
    counts[:] = 0
    for i in range(0, values.size, step):
        folded, length = _folded(values[i], others[i], bits), 0
        while folded:
            folded >>= np.uint64(1)
            length += 1
        counts[_exponent(others[i], mantissa_bits, exponents), length] += 1


@lossy_kernel(fastmath=False)
def choose_classes(counts, weight, overhead, begins, costs):
    """Choose which exponents are coded together, and return the number of classes.

    Neighbours are joined as long as that saves bits, or there are too many.

    Args:
        counts: int64 [exponents, BINS], counts of a sample; changed.
        weight: values that each value of the sample stands for.
        overhead: bits of a class.
        begins: filled with the first exponent of each class, int64 [exponents].
        costs: working space, float64 [exponents].
    """
    classes = 0
    for exponent in range(counts.shape[0]):
        if counts[exponent].sum() > 0:
            counts[classes], begins[classes] = counts[exponent], exponent
            costs[classes] = weight * _cost(counts[classes], counts[classes], 0)
            classes += 1
    while classes > 1:
        best, least = 0, np.inf
        for number in range(classes - 1):
            joined = weight * _cost(counts[number], counts[number + 1], 1)
            if joined - costs[number] - costs[number + 1] < least:
                best, least = number, joined - costs[number] - costs[number + 1]
        if least > overhead and classes <= MOST_CLASSES:
            break
        counts[best] += counts[best + 1]
        costs[best] += costs[best + 1] + least
        for number in range(best + 1, classes - 1):
            counts[number], begins[number], costs[number] = counts[number + 1], begins[number + 1], costs[number + 1]
        classes -= 1
    begins[0] = 0
    return max(classes, 1)


@inline
def _cost(lengths, others, factor):
    """Return the bits of numbers with these lengths and `factor` times the others, up to a constant for each number."""
    total, found = 0.0, 0.0
    for length in range(lengths.size):
        count = lengths[length] + factor * others[length]
        if count > 0:
            total += count
            found -= count * np.log2(count)
    return found + total * np.log2(total) if total > 0 else 0.0
