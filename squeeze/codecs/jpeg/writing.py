"""Writing the coefficients of a scan as libjpeg does: reading.py in the other direction."""

import numpy as np

from squeeze.codecs.jpeg.layout import ZIGZAG
from squeeze.numerics.jit import inline, kernel

_WORD, _FREE, _PLACE, _RUN, _KEPT = 0, 1, 2, 3, 4  # entries of a writer's state
KEPT = 1024  # room for bits that are kept
_MOST_RUN, _MOST_KEPT = 0x7FFF, 1000 - 63  # blocks of a run, and bits that are kept for it


@inline
def _put(out, state, value, count):
    """Write the low `count` bits of a number, at most 16; ones fill the last byte later."""
    state[_WORD] = state[_WORD] << count | (value & ((1 << count) - 1))
    state[_FREE] += count
    while state[_FREE] >= 8:
        state[_FREE] -= 8
        out[state[_PLACE]] = np.uint8((state[_WORD] >> state[_FREE]) & 255)
        state[_PLACE] += 1
    state[_WORD] &= (1 << state[_FREE]) - 1


@inline
def _put_symbol(out, state, codes, lengths, symbol):
    """Write a symbol; return whether it has a code."""
    _put(out, state, np.int64(codes[symbol]), np.int64(lengths[symbol]))
    return lengths[symbol] > 0


@inline
def _size(value):
    """Return the number of bits of a positive number."""
    size = 0
    while value:
        size, value = size + 1, value >> 1
    return size


@inline
def _put_signed(out, state, value, size):
    _put(out, state, value if value > 0 else value + (1 << size) - 1, size)


@inline
def _end_run(out, state, kept, codes, lengths):
    """Write the blocks without more coefficients that are waiting, and the bits that belong to them."""
    fine = True
    if state[_RUN]:
        size = _size(state[_RUN]) - 1
        fine = _put_symbol(out, state, codes, lengths, size << 4)
        _put(out, state, state[_RUN], size)
        state[_RUN] = 0
        _put_kept(out, state, kept, 0)
    return fine


@inline
def _put_kept(out, state, kept, begin):
    """Write the kept bits from `begin` on, and forget them."""
    for i in range(begin, state[_KEPT]):
        _put(out, state, np.int64(kept[i]), 1)
    state[_KEPT] = begin


@inline
def _write_ac(out, state, kept, codes, lengths, first, last, low, block, progressive):
    zeros, fine = 0, True
    for k in range(first, last + 1):
        coefficient = np.int64(block[ZIGZAG[k]])
        value = abs(coefficient) >> low
        if value == 0:
            zeros += 1
            continue
        fine = _end_run(out, state, kept, codes, lengths) and fine
        while zeros > 15:
            fine = _put_symbol(out, state, codes, lengths, 0xF0) and fine
            zeros -= 16
        size = _size(value)
        fine = _put_symbol(out, state, codes, lengths, zeros << 4 | size) and fine
        _put_signed(out, state, value if coefficient > 0 else -value, size)
        zeros = 0
    if zeros:
        if not progressive:
            return _put_symbol(out, state, codes, lengths, 0) and fine
        state[_RUN] += 1
        if state[_RUN] == _MOST_RUN:
            fine = _end_run(out, state, kept, codes, lengths) and fine
    return fine


@inline
def _last_new(block, first, last, low):
    """Return the last coefficient that becomes other than zero at a bit, or 0."""
    found = 0
    for k in range(first, last + 1):
        if abs(np.int64(block[ZIGZAG[k]])) >> low == 1:
            found = k
    return found


@inline
def _refine_ac(out, state, kept, codes, lengths, first, last, low, block):
    zeros, fine, final = 0, True, _last_new(block, first, last, low)
    begin = state[_KEPT]  # of this block's bits; those before belong to the run
    for k in range(first, last + 1):
        coefficient = np.int64(block[ZIGZAG[k]])
        value = abs(coefficient) >> low
        if value == 0:
            zeros += 1
            continue
        while zeros > 15 and k <= final:
            begin, fine = _flush(out, state, kept, codes, lengths, begin, fine)
            fine = _put_symbol(out, state, codes, lengths, 0xF0) and fine
            zeros -= 16
            _put_kept(out, state, kept, begin)
        if value > 1:
            kept[state[_KEPT]] = value & 1
            state[_KEPT] += 1
            continue
        begin, fine = _flush(out, state, kept, codes, lengths, begin, fine)
        fine = _put_symbol(out, state, codes, lengths, zeros << 4 | 1) and fine
        _put(out, state, np.int64(coefficient > 0), 1)
        _put_kept(out, state, kept, begin)
        zeros = 0
    if zeros or state[_KEPT] > begin:
        state[_RUN] += 1
        if state[_RUN] == _MOST_RUN or state[_KEPT] > _MOST_KEPT:
            fine = _end_run(out, state, kept, codes, lengths) and fine
    return fine


@inline
def _flush(out, state, kept, codes, lengths, begin, fine):
    """Write a waiting run and its bits; move this block's bits to the front."""
    if state[_RUN]:
        own = state[_KEPT] - begin
        state[_KEPT] = begin
        fine = _end_run(out, state, kept, codes, lengths) and fine
        for i in range(own):
            kept[i] = kept[begin + i]
        state[_KEPT], begin = own, 0
    return begin, fine


@kernel
def write(out, ends, blocks, components, step, settings, tables, codes, lengths, coefficients, state, before, kept):
    """Write the coefficients of a scan.

    Args:
        out: uint8, becomes its intervals one after the other.
        ends: int64 [intervals], becomes where each ends.
        blocks: int32 [n], the index of each block.
        components: uint8 [n], the place of its component in the scan.
        step: blocks between restart markers.
        settings: int64 [6]: first and last coefficient, bit of the scan before and of this one, progressive or not, and
            the bit that pads intervals to bytes.
        tables: int64 [components, 2], the code tables of each.
        codes: uint16 [8, 256].
        lengths: uint8 [8, 256], their bits, 0 for none.
        coefficients: int16 [blocks, 64], in rows.
        state, before: int64 [5] and [4], zeros.
        kept: uint8 [KEPT].

    Returns:
        the bytes written, or -1 if a symbol has no code or `out` is full.
    """
    first, last, above, low = settings[0], settings[1], settings[2], settings[3]
    progressive, padding = settings[4], settings[5]
    interval, fine, k = 0, True, 0
    for i in range(blocks.size):
        if i % step == 0:
            if i:
                table = tables[k, 1]
                fine = _end_run(out, state, kept, codes[table], lengths[table]) and fine
                _put(out, state, -padding, -state[_FREE] & 7)
                ends[interval] = state[_PLACE]
                interval += 1
            before[:] = 0
        k = components[i]
        block = coefficients[blocks[i]]
        if first == 0:
            value = np.int64(block[0]) >> low
            if above:
                _put(out, state, value & 1, 1)
            else:
                size = _size(abs(value - before[k]))
                table = tables[k, 0]
                fine = _put_symbol(out, state, codes[table], lengths[table], size) and fine
                _put_signed(out, state, value - before[k], size)
                before[k] = value
        if last > 0:
            table, begin = tables[k, 1], max(first, 1)
            if above:
                done = _refine_ac(out, state, kept, codes[table], lengths[table], begin, last, low, block)
            else:
                done = _write_ac(out, state, kept, codes[table], lengths[table], begin, last, low, block, progressive)
            fine = fine and done
        if not fine or state[_PLACE] + 1024 > out.size:
            return -1
    table = tables[k, 1]
    fine = _end_run(out, state, kept, codes[table], lengths[table]) and fine
    _put(out, state, -padding, -state[_FREE] & 7)
    ends[interval] = state[_PLACE]
    return state[_PLACE] if fine else -1
