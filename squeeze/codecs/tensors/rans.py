"""Interleaved rANS: symbols of up to 256 kinds into 16-bit words, in segments that decode on their own.

A *segment* is `rows` times `lanes` values; value i belongs to lane i % lanes.
Each lane has a 31-bit state, all lanes of a segment share one stream of words,
and a lane that runs low takes the next word in lane order. So a GPU decodes a
row at once (a prefix sum says whose word is whose) and a CPU lane by lane.
Beside its coded prefix a value may have raw bits, which stand bit-packed in a
stream of their own. Every encoder starts from the state STATE_LOW, so a
segment that decodes back to it, with every word used, is very likely whole.

The coder is Duda's "Asymmetric numeral systems" (2013) in Giesen's
"Interleaved entropy coders" (2014) form. Which bits are prefix and which are
raw, and how all this lies in bytes, is floats.py's.
"""

import numpy as np

from squeeze.numerics.jit import inline, kernel

STATE_LOW = 1 << 15  # states stay within 2^15 .. 2^31 - 1
MAX_PRECISION = 13
MAX_SYMBOLS = 256


@inline
def rotated(value, width):
    """The highest bit of a `width`-bit value moved below its lowest, where `width` is not 0."""
    wide = np.uint64(value)
    if width == np.uint64(0):
        return wide
    return ((wide << np.uint64(1)) | (wide >> (width - np.uint64(1)))) & ((np.uint64(1) << width) - np.uint64(1))


@kernel
def count_prefixes(values, rotate, raw_bits, per_segment, histogram):
    """Add each segment's prefixes to its row of the uint32 [segments, 2^prefix bits] `histogram`."""
    count, size = np.uint64(values.size), np.uint64(per_segment)
    shift, width = np.uint64(raw_bits), np.uint64(rotate)
    for segment in range(histogram.shape[0]):
        row = histogram[segment]
        begin = np.uint64(segment) * size
        for i in range(begin, min(begin + size, count)):
            row[rotated(values[i], width) >> shift] += np.uint32(1)


@kernel
def encode_segments(
    values, rotate, raw_bits, first, last, lanes, rows, symbols, steps, tables, ids, scratch, words, counts, states,
    raw, lane_symbols,
):  # fmt: skip
    """Code segments first to last of `values`; returns the number of words written.

    symbols: uint8 [2^prefix bits], the symbol of each prefix. steps: uint64 [tables, 5, 256] of
    `encoding_table`. ids: uint8 [segments]. scratch: uint16, as many as a segment has values.
    words: uint16, as many as the range has values. Filled for the range: counts uint32 [segments],
    states uint32 [segments, lanes], raw uint32 (zeroed; from the range's first segment on).
    lane_symbols: uint8 [lanes], working space.
    """
    shift, width = np.uint64(raw_bits), np.uint64(rotate)
    per_segment, lane_count = np.uint64(lanes * rows), np.uint64(lanes)
    written, raw_at = np.uint64(0), np.uint64(0)
    for segment in range(first, last):
        begin = np.uint64(segment) * per_segment
        size = min(np.uint64(values.size) - begin, per_segment)
        used_rows = (size + lane_count - np.uint64(1)) // lane_count
        if tables:
            table, state = steps[np.int64(ids[segment])], states[segment]
            for lane in range(lane_count):
                state[lane] = np.uint32(STATE_LOW)
            position, row = per_segment, used_rows
            while row > np.uint64(0):
                row -= np.uint64(1)
                lane = min(lane_count, size - row * lane_count)
                start = begin + row * lane_count
                for k in range(lane):
                    lane_symbols[k] = symbols[rotated(values[start + k], width) >> shift]
                while lane > np.uint64(0):
                    lane -= np.uint64(1)
                    symbol = np.uint64(lane_symbols[lane])
                    x = np.uint64(state[lane])
                    scratch[position - np.uint64(1)] = np.uint16(x)
                    full = np.uint64(x >= table[0, symbol])
                    position -= full
                    x >>= full << np.uint64(4)
                    quotient = (x * table[1, symbol]) >> table[2, symbol]
                    state[lane] = np.uint32(x + table[3, symbol] + quotient * table[4, symbol])
            for k in range(per_segment - position):
                words[written + k] = scratch[position + k]
            written += per_segment - position
            counts[segment] = np.uint32(per_segment - position)
        if raw_bits:
            _pack_raw(values, width, raw_bits, begin, size, lane_count, used_rows, raw, raw_at)
            raw_at += lane_count * ((used_rows * np.uint64(raw_bits) + np.uint64(31)) >> np.uint64(5))
    return written


@inline
def _pack_raw(values, width, raw_bits, begin, size, lanes, rows, raw, raw_at):
    low = (np.uint64(1) << np.uint64(raw_bits)) - np.uint64(1)
    for row in range(rows):
        bit = row * np.uint64(raw_bits)
        word, shift = raw_at + (bit >> np.uint64(5)) * lanes, np.uint32(bit & np.uint64(31))
        start = row * lanes
        spills = shift + np.uint32(raw_bits) > np.uint32(32)
        for lane in range(min(lanes, size - start)):
            field = np.uint32(rotated(values[begin + start + lane], width) & low)
            raw[word + lane] |= field << shift
            if spills:
                raw[word + lanes + lane] |= field >> (np.uint32(32) - shift)


@kernel
def decode_segments(
    out, rotate, raw_bits, first, last, count, lanes, rows, constant, precision, table, ids, starts, states,
    words, raw, state,
):  # fmt: skip
    """Decode segments first to last into `out`, whose first value is that of segment `first`.

    Returns -1, or the first segment that is damaged. count: values of the whole plane. table: uint64
    [tables, 2^precision] of `decoding_table`, none where every prefix is `constant`. ids: uint8
    [segments]. starts: int64 [segments + 1], where each segment's words begin in `words`, which has at
    least `lanes` more after them. states: uint32 [segments, lanes]. raw: uint32, all segments.
    state: uint32 [lanes], working space.
    """
    shift, back = np.uint64(raw_bits), np.uint32(rotate - 1)
    low = np.uint32((np.uint64(1) << np.uint64(raw_bits)) - np.uint64(1))
    lane_count, per_segment = np.uint64(lanes), np.uint64(lanes * rows)
    mask, bits = np.uint32((1 << precision) - 1), np.uint32(precision)
    raw_per_segment = lane_count * np.uint64((rows * raw_bits + 31) >> 5)
    base, limit = np.uint64(first) * per_segment, np.uint64(words.size)
    for segment in range(first, last):
        begin = np.uint64(segment) * per_segment
        size = min(np.uint64(count) - begin, per_segment)
        begin -= base
        raw_at = np.uint64(segment) * raw_per_segment
        position = np.uint64(0)
        entries = table[np.int64(ids[segment])]
        if precision:
            position = np.uint64(starts[segment])
            for lane in range(lane_count):
                state[lane] = states[segment, lane]
        used_rows = (size + lane_count - np.uint64(1)) // lane_count
        for row in range(used_rows):
            start = begin + row * lane_count
            present = min(lane_count, begin + size - start)
            if precision:
                if position + lane_count > limit:
                    return segment
                for lane in range(present):
                    x = state[lane]
                    entry = entries[np.uint64(x & mask)]
                    x = np.uint32(entry & np.uint64(0xFFFF)) * (x >> bits) + np.uint32(
                        (entry >> np.uint64(16)) & np.uint64(0xFFFF)
                    )
                    small = x < np.uint32(STATE_LOW)
                    word = np.uint32(words[position])
                    x = ((x << np.uint32(16)) | word) if small else x
                    position += np.uint64(small)
                    state[lane] = x
                    out[start + lane] = out.dtype.type((entry >> np.uint64(32)) << shift)
            else:
                for lane in range(present):
                    out[start + lane] = out.dtype.type(np.uint64(constant) << shift)
            if raw_bits:
                bit = row * np.uint64(raw_bits)
                word_at, offset = raw_at + (bit >> np.uint64(5)) * lane_count, np.uint32(bit & np.uint64(31))
                if offset + np.uint32(raw_bits) > np.uint32(32):
                    for lane in range(present):
                        field = (raw[word_at + lane] >> offset) | (
                            raw[word_at + lane_count + lane] << (np.uint32(32) - offset)
                        )
                        out[start + lane] |= out.dtype.type(field & low)
                else:
                    for lane in range(present):
                        out[start + lane] |= out.dtype.type((raw[word_at + lane] >> offset) & low)
            if rotate:
                for lane in range(present):
                    value = np.uint32(out[start + lane])
                    out[start + lane] = out.dtype.type((value >> np.uint32(1)) | np.uint32(value << back))
        if precision:
            if position != np.uint64(starts[segment + 1]):
                return segment
            for lane in range(lane_count):
                if state[lane] != np.uint32(STATE_LOW):
                    return segment
    return -1


@kernel
def encoding_table(frequencies, precision, steps):
    """Fill `steps`, uint64 [5, 256], with what `encode_segments` needs of each symbol.

    The rows: the least state that must give a word first; the reciprocal and the shift that divide
    by the frequency, exact for states below 2^31; what is added; what the quotient is multiplied by.
    """
    start = np.uint64(0)
    for symbol in range(frequencies.size):
        frequency = np.uint64(frequencies[symbol])
        if frequency == np.uint64(0):
            continue
        steps[0, symbol] = frequency << np.uint64(31 - precision)
        steps[4, symbol] = (np.uint64(1) << np.uint64(precision)) - frequency
        if frequency == np.uint64(1):
            steps[1, symbol] = np.uint64(0xFFFFFFFF)
            steps[2, symbol] = np.uint64(32)
            steps[3, symbol] = start + (np.uint64(1) << np.uint64(precision)) - np.uint64(1)
        else:
            shift = np.uint64(0)
            while (np.uint64(1) << shift) < frequency:
                shift += np.uint64(1)
            steps[1, symbol] = ((np.uint64(1) << (shift + np.uint64(31))) + frequency - np.uint64(1)) // frequency
            steps[2, symbol] = shift + np.uint64(31)
            steps[3, symbol] = start
        start += frequency


@kernel
def decoding_table(frequencies, prefixes, entries):
    """Fill `entries`, uint64 [2^precision]: frequency, offset within it (16 bits each), prefix of every slot."""
    slot = np.uint64(0)
    for symbol in range(frequencies.size):
        frequency = np.uint64(frequencies[symbol])
        for offset in range(frequency):
            entries[slot] = (
                frequency | (np.uint64(offset) << np.uint64(16)) | (np.uint64(prefixes[symbol]) << np.uint64(32))
            )
            slot += np.uint64(1)


@kernel
def quantise(counts, precision, frequencies):
    """Fill `frequencies`, int64, with counts scaled to add up to 2^precision, none of a present symbol zero.

    Units left over go to (or come from) the symbols where they change the coded length most (least).
    """
    total = 0
    for symbol in range(counts.size):
        total += np.int64(counts[symbol])
    remaining = 1 << precision
    for symbol in range(counts.size):
        count = np.int64(counts[symbol])
        share = np.int64(np.float64(count) * np.float64(1 << precision) / np.float64(total))
        frequencies[symbol] = max(share, 1) if count else 0
        remaining -= frequencies[symbol]
    while remaining != 0:
        best, gain, step = -1, -1e300, 1 if remaining > 0 else -1
        for symbol in range(counts.size):
            frequency = frequencies[symbol]
            if frequency == 0 or frequency + step == 0:
                continue
            worth = np.float64(counts[symbol]) * np.log2(np.float64(frequency + step) / np.float64(frequency))
            if worth > gain:
                best, gain = symbol, worth
        frequencies[best] += step
        remaining -= step
