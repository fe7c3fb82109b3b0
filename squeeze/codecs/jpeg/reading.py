"""Reading the coefficients of a scan, sequential or progressive (ITU-T T.81, annexes F and G)."""

import numpy as np

from squeeze.codecs.jpeg.layout import ZIGZAG
from squeeze.numerics.jit import inline, kernel

BITS, RUN = 0, 1  # entries of a reader's state: bits read, and blocks left that have no more coefficients
BAD = -1  # instead of a symbol
SPARE = 512  # bytes: more than a block can have, so that reading one past the end stays within the array


@inline
def _peek(data, place, count):
    """Return the next `count` bits, at most 16."""
    i = place >> 3
    word = np.int64(data[i]) << 16 | np.int64(data[i + 1]) << 8 | np.int64(data[i + 2])
    return (word >> (24 - (place & 7) - count)) & ((1 << count) - 1)


@inline
def _bits(data, state, count):
    value = _peek(data, state[BITS], count)
    state[BITS] += count
    return value


@inline
def _symbol(data, state, table):
    entry = np.int64(table[_peek(data, state[BITS], 16)])
    state[BITS] += entry >> 8
    return entry & 255 if entry else BAD


@inline
def _signed(data, state, size):
    """Return a number of `size` bits, of which those that begin with a zero are negative."""
    value = _bits(data, state, size)
    return value if size == 0 or value >> (size - 1) else value - (1 << size) + 1


@inline
def _read_dc(data, state, table, before, k, low, block):
    size = _symbol(data, state, table)
    if size < 0 or size > 15:
        return False
    before[k] += _signed(data, state, size)
    value = before[k] << low
    if value > 32767 or value < -32768:
        return False
    block[0] = value
    return True


@inline
def _read_ac(data, state, table, first, last, low, block):
    if state[RUN]:
        state[RUN] -= 1
        return True
    k = first
    while k <= last:
        symbol = _symbol(data, state, table)
        if symbol < 0:
            return False
        zeros, size = symbol >> 4, symbol & 15
        if size == 0:
            if zeros < 15:
                state[RUN] = (1 << zeros) - 1 + _bits(data, state, zeros)
                return True
            k += 16
            continue
        k += zeros
        if k > last or size + low > 15:
            return False
        block[ZIGZAG[k]] = _signed(data, state, size) << low
        k += 1
    return k == last + 1


@inline
def _refine(data, state, block, place, one):
    """Read a bit of a coefficient that is no longer zero."""
    if _bits(data, state, 1):
        block[place] += one if block[place] > 0 else -one


@inline
def _refine_ac(data, state, table, first, last, low, block):
    k, one = first, 1 << low
    while k <= last and state[RUN] == 0:
        symbol = _symbol(data, state, table)
        if symbol < 0 or symbol & 15 > 1:
            return False
        zeros, value = symbol >> 4, 0
        if symbol & 15:
            value = one if _bits(data, state, 1) else -one
        elif zeros < 15:
            state[RUN] = (1 << zeros) + _bits(data, state, zeros)
            break
        while k <= last:
            place = ZIGZAG[k]
            if block[place]:
                _refine(data, state, block, place, one)
            elif zeros == 0:
                break
            else:
                zeros -= 1
            k += 1
        if value:
            if k > last:
                return False
            block[ZIGZAG[k]] = value
        k += 1
    if state[RUN]:
        while k <= last:
            if block[ZIGZAG[k]]:
                _refine(data, state, block, ZIGZAG[k], one)
            k += 1
        state[RUN] -= 1
    return True


@kernel
def read(data, ends, blocks, components, step, settings, tables, lookup, coefficients, state, before):
    """Read the coefficients of a scan.

    Args:
        data: uint8, its intervals one after the other, and SPARE more bytes.
        ends: int64 [intervals], where each ends.
        blocks: int32 [n], the index of each block.
        components: uint8 [n], the place of its component in the scan.
        step: blocks between restart markers.
        settings: int64 [5]: first and last coefficient, bit of the scan before and of this one, progressive or not.
        tables: int64 [components, 2], the code tables of each.
        lookup: uint16 [8, 65536], symbols by the next 16 bits.
        coefficients: int16 [blocks, 64], in rows; the scan's bits are added.
        state, before: int64 [2] and [4], zeros.

    Returns:
        twice the bytes of the last interval that are used, plus the bit that pads intervals to bytes; -1 if the data is
        not such a scan.
    """
    first, last, above, low, progressive = settings[0], settings[1], settings[2], settings[3], settings[4]
    interval, padding, end = np.int64(-1), np.int64(-1), np.int64(0)
    for i in range(blocks.size):
        if i % step == 0:
            if interval >= 0:
                padding = _close(data, state, ends[interval], padding)
                if padding < -1 or state[BITS] != 8 * ends[interval] or state[RUN]:
                    return -1
            interval += 1
            if interval >= ends.size:
                return -1
            end = 8 * ends[interval]
            before[:] = 0
        k = components[i]
        block = coefficients[blocks[i]]
        fine = True
        if first == 0:
            if above:
                block[0] |= _bits(data, state, 1) << low
            else:
                fine = _read_dc(data, state, lookup[tables[k, 0]], before, k, low, block)
        if last > 0:
            table = lookup[tables[k, 1]]
            if above:
                fine = fine and _refine_ac(data, state, table, first, last, low, block)
            else:
                fine = fine and _read_ac(data, state, table, max(first, 1), last, low, block)
            if not progressive and state[RUN]:
                return -1
        if not fine or state[BITS] > end:
            return -1
    padding = _close(data, state, ends[interval], padding)
    begin = ends[interval - 1] if interval else 0
    if padding < -1 or interval != ends.size - 1 or state[RUN]:
        return -1
    return (state[BITS] // 8 - begin) << 1 | (padding != 0)


@inline
def _close(data, state, end, padding):
    """Read the bits up to a whole byte; return the bit that they are, the one before if there are no bits, or -2."""
    count = -state[BITS] & 7
    if count == 0 or state[BITS] + count > 8 * end:
        return padding if count == 0 else -2
    value = _bits(data, state, count)
    one = np.int64(value != 0)
    if value != one * ((1 << count) - 1) or padding == 1 - one:
        return -2
    return one
