"""Interleaved rANS: up to 256 symbols are coded to 16-bit words, in segments that decode on their own.

A *segment* has `rows` times `lanes` values; value i belongs to lane i % lanes. Each lane has a 31-bit state, all lanes
of a segment share one stream of words, and a lane whose state is low takes the next word, in lane order. So a GPU
decodes a row at once (a prefix sum tells whose word is whose), and so do vectors of a CPU (rans_vectors.py). Besides
its coded prefix a value may have raw bits, which are bit-packed in a stream of their own. Encoders start from
STATE_LOW: a segment that decodes back to it, with every word used, is very likely intact.

The coder is Duda's "Asymmetric numeral systems" (2013) in the form of Giesen's "Interleaved entropy coders" (2014).
floats.py chooses the prefixes and arranges the bytes.

A plane is taken from values of up to 32 bits, and inserted into them. A value is rotated left by one bit if `rotate` is
its width and not 0, and loses the `drop` lowest bits. Then its raw bits are lowest, and its prefix is above them.
"""

import numpy as np

from squeeze.numerics.jit import inline, kernel
from squeeze.packing.tensors import plane as columns
from squeeze.packing.tensors.plane import rotated, unrotated
from squeeze.packing.tensors.rans_vectors import AVAILABLE, HALF, LANES, LEAST_PRECISION, TOGETHER, decoder, encoder

STATE_LOW = 1 << 15  # states stay within 2^15 .. 2^31 - 1
MAX_PRECISION = 13
MAX_SYMBOLS = 256
MAX_LANES = 64
SLACK = 32  # words that a vector may write before the first of a segment

_encode, _encode_turned = encoder(False), encoder(True)
_encode_half, _encode_half_turned = encoder(False, HALF), encoder(True, HALF)
_decode_half = decoder(1, True, False, HALF)
_decode_one, _decode_one_named = decoder(1, True, False), decoder(1, False, False)
_decode_two, _decode_two_named = decoder(TOGETHER, True, False), decoder(TOGETHER, False, False)
_merge_one, _merge_one_named = decoder(1, True, True), decoder(1, False, True)
_merge_two, _merge_two_named = decoder(TOGETHER, True, True), decoder(TOGETHER, False, True)


@kernel
def encode_segments(
    values, rotate, drop, raw_bits, prefix_bits, first, last, lanes, rows, precision, table, ids, words, counts, states,
    scratch, state, at,
):  # fmt: skip
    """Code the prefixes of segments first to last of `values`; return the number of words written.

    Args:
        table: uint32 [tables << prefix_bits] of `encoding_table`.
        ids: the table of each segment, uint8 [segments].
        words: filled, uint16, as many as the range has values.
        counts: filled, words of each segment, uint32 [segments].
        states: filled, uint32 [segments * lanes].
        scratch: working space, uint16, a segment's values and SLACK.
        state: working space, uint32 [MAX_LANES].
        at: working space, int64 [3].
    """
    per_segment, lane_count = np.uint64(lanes * rows), np.uint64(lanes)
    end, written = per_segment + np.uint64(SLACK), np.uint64(0)
    for segment in range(first, last):
        begin = np.uint64(segment) * per_segment
        count = min(np.uint64(values.size) - begin, per_segment)
        start, whole = np.uint64(ids[segment]) << np.uint64(prefix_bits), np.uint64(0)
        if AVAILABLE and lanes in (LANES, HALF) and precision >= LEAST_PRECISION:
            whole = count // lane_count
        for lane in range(lane_count):
            state[lane] = np.uint32(STATE_LOW)
        position = _encode_by_lanes(
            values, rotate, drop + raw_bits, prefix_bits, begin, count, lane_count, whole, precision, table, start,
            scratch, end, state,
        )  # fmt: skip
        if AVAILABLE and whole:
            at[0], at[1], at[2] = begin, start, position
            below = drop + raw_bits
            turned = rotate > 0 and below == 0  # else the rotated bit is not in a prefix
            below -= 1 if rotate > 0 and below > 0 else 0
            if lanes == HALF and turned:
                _encode_half_turned(values, table, scratch, state, at, whole, precision, below, prefix_bits)
            elif lanes == HALF:
                _encode_half(values, table, scratch, state, at, whole, precision, below, prefix_bits)
            elif turned:
                _encode_turned(values, table, scratch, state, at, whole, precision, below, prefix_bits)
            else:
                _encode(values, table, scratch, state, at, whole, precision, below, prefix_bits)
            position = np.uint64(at[2])
        for lane in range(lane_count):
            states[np.uint64(segment) * lane_count + lane] = state[lane]
        for k in range(end - position):
            words[written + k] = scratch[position + k]
        written += end - position
        counts[segment] = np.uint32(end - position)
    return written


@inline
def _encode_by_lanes(
    values, rotate, below, prefix_bits, begin, count, lanes, first_row, precision, table, start, scratch, position,
    state,
):  # fmt: skip
    """Code rows of a segment from the last one down to `first_row`; return where its words now begin."""
    shift, width, every = np.uint64(below), np.uint64(rotate), np.uint64((1 << prefix_bits) - 1)
    bits, room = np.uint32(precision), np.uint32(31 - precision)
    row = (count + lanes - np.uint64(1)) // lanes
    while row > first_row:
        row -= np.uint64(1)
        lane = min(lanes, count - row * lanes)
        while lane > np.uint64(0):
            lane -= np.uint64(1)
            entry = table[start + ((rotated(values[begin + row * lanes + lane], width) >> shift) & every)]
            frequency, x = np.uint32(entry & np.uint32(0xFFFF)), state[lane]
            is_full = x >= np.uint32(frequency << room)
            scratch[position - np.uint64(1)] = np.uint16(x)
            position -= np.uint64(is_full)
            x = np.uint32(x >> np.uint32(16)) if is_full else x
            quotient = np.uint32(x // frequency)
            rest = np.uint32(x - np.uint32(quotient * frequency))
            state[lane] = np.uint32(quotient << bits) + rest + np.uint32(entry >> np.uint32(16))
    return position


@kernel
def decode_segments(
    out, rotate, drop, merge, first, last, position, count, lanes, rows, plane, slots, payload, halves, longs, state, at
):
    """Decode segments first to last of a plane into `out`, which begins with segment `first`.

    Args:
        merge: keep the bits of planes above this one that are in `out`.
        rotate: bits of a value if this is the last plane of rotated values, else 0.
        position: where the words of segment `first` begin, among those of the plane.
        count: values of the whole plane.
        plane: a row with the columns of plane.py.
        slots: see `decoding_table`.
        halves, longs: the payload as uint16 and uint32.
        state: working space, uint32 [2 * MAX_LANES].
        at: working space, int64 [2, 5].

    Returns where the words of segment `last` begin, or -1 minus the first damaged segment.
    """
    raw_bits, precision, field = plane[columns.RAW_BITS], plane[columns.PRECISION], plane[columns.FIELD]
    constant, turn = plane[columns.CONSTANT], rotate > 0
    lane_count, per_segment, words_at = np.uint64(lanes), np.uint64(lanes * rows), plane[columns.WORDS_AT] >> 1
    raw_per_segment = lanes * ((rows * raw_bits + 31) >> 5)
    raw_at = plane[columns.RAW] >> 2 if raw_bits else 0  # vectors read a row of them in any case
    counts_at, states_at = np.uint64(plane[columns.COUNTS] >> 2), np.uint64(plane[columns.STATES] >> 2)
    base = np.uint64(first) * per_segment
    by_vectors = False
    if AVAILABLE:
        by_vectors = precision > 0 and (lanes == LANES or (lanes == HALF and field > 0 and not merge))
    segment = first
    while segment < last:
        together = TOGETHER if by_vectors and lanes == LANES and segment + TOGETHER <= last else 1
        for k in range(together):
            at[k, 0], at[k, 3] = np.uint64(segment + k) * per_segment - base, raw_at + (segment + k) * raw_per_segment
            if precision:
                group = np.int64(payload[plane[columns.IDS] + segment + k]) if plane[columns.TABLES] > 1 else 0
                at[k, 1], at[k, 4] = (
                    plane[columns.TABLE] + (group << precision),
                    plane[columns.NAMES] + group * MAX_SYMBOLS,
                )
                at[k, 2] = words_at + position
                position += np.int64(longs[counts_at + np.uint64(segment + k)])
                start = states_at + np.uint64(segment + k) * lane_count
                for lane in range(lane_count):
                    state[np.uint64(k) * lane_count + lane] = longs[start + lane]
        row, own = 0, 0  # decoded rows: of the last segment, and of the one before it
        if AVAILABLE:
            for single in range(together):  # the rows of both side by side, then the rest of the first
                several = 1 if single else together
                last_count = min(np.uint64(count) - np.uint64(segment + several - 1) * per_segment, per_segment)
                whole = np.int64(last_count // lane_count) if by_vectors else 0
                while own < whole:  # rows for which words suffice if each value takes one
                    end = whole
                    for k in range(several):
                        end = min(end, own + (halves.size - at[k, 2]) // lanes)
                    if end == own:
                        break
                    _decode_rows(
                        out, slots, halves, longs, state, at, own, end, precision, field, raw_bits, drop, turn, several,
                        merge, lanes,
                    )  # fmt: skip
                    own = end
                row = row if single else own
        ends = position + words_at
        for k in range(together - 1, -1, -1):
            size = min(np.uint64(count) - np.uint64(segment + k) * per_segment, per_segment)
            lanes_state = state[np.uint64(k) * lane_count : np.uint64(k + 1) * lane_count]
            first_row = row if k == together - 1 else own
            is_whole = _decode_by_lanes(
                out, rotate, drop, merge, raw_bits, size, first_row, constant, precision, slots, field, halves, longs,
                lanes_state, at[k],
            )  # fmt: skip
            if not is_whole:
                return -1 - segment - k
            if precision:
                if at[k, 2] != ends:
                    return -1 - segment - k
                ends -= np.int64(longs[counts_at + np.uint64(segment + k)])
                for lane in range(lane_count):
                    if lanes_state[lane] != np.uint32(STATE_LOW):
                        return -1 - segment - k
        segment += together
    return position


@inline
def _decode_rows(
    out, slots, halves, longs, state, at, row, end, precision, field, raw_bits, drop, turn, together, merge, lanes
):
    """Decode whole rows of one segment, or of TOGETHER segments, by vectors."""
    if lanes == HALF:
        _decode_half(out, slots, halves, longs, state, at, row, end, precision, field, raw_bits, drop, turn)
    elif merge:
        if field and together > 1:
            _merge_two(out, slots, halves, longs, state, at, row, end, precision, field, raw_bits, drop, turn)
        elif field:
            _merge_one(out, slots, halves, longs, state, at, row, end, precision, field, raw_bits, drop, turn)
        elif together > 1:
            _merge_two_named(out, slots, halves, longs, state, at, row, end, precision, field, raw_bits, drop, turn)
        else:
            _merge_one_named(out, slots, halves, longs, state, at, row, end, precision, field, raw_bits, drop, turn)
    elif field and together > 1:
        _decode_two(out, slots, halves, longs, state, at, row, end, precision, field, raw_bits, drop, turn)
    elif field:
        _decode_one(out, slots, halves, longs, state, at, row, end, precision, field, raw_bits, drop, turn)
    elif together > 1:
        _decode_two_named(out, slots, halves, longs, state, at, row, end, precision, field, raw_bits, drop, turn)
    else:
        _decode_one_named(out, slots, halves, longs, state, at, row, end, precision, field, raw_bits, drop, turn)


@inline
def _decode_by_lanes(
    out, rotate, drop, merge, raw_bits, size, first_row, constant, precision, slots, field, halves, longs, state, at
):
    """Decode a segment of `size` values from `first_row` on; return False if there are too few words."""
    lanes, shift, low = np.uint64(state.size), np.uint64(raw_bits), np.uint32((1 << raw_bits) - 1)
    begin, entries_at, position, raw_at = np.uint64(at[0]), np.uint64(at[1]), np.uint64(at[2]), np.uint64(at[3])
    every, bits, fields = np.uint32((1 << precision) - 1), np.uint32(precision), np.uint32((1 << field) - 1)
    names_at, down = np.uint64(at[4]), np.uint64(drop)
    for row in range(np.uint64(first_row), (size + lanes - np.uint64(1)) // lanes):
        start = begin + row * lanes
        present = min(lanes, begin + size - start)
        if precision and position + lanes > np.uint64(halves.size):
            return False
        bit = row * shift
        word_at, offset = raw_at + (bit >> np.uint64(5)) * lanes, bit & np.uint64(31)
        spills = offset + shift > np.uint64(32)
        for lane in range(present):
            prefix = np.uint32(constant)
            if precision:
                x = state[lane]
                slot = np.uint32(x & every)
                entry = slots[entries_at + np.uint64(slot)]
                if field:
                    frequency, inside = np.uint32(entry >> np.uint32(field)) & fields, np.uint32(entry & fields)
                    prefix = np.uint32(entry >> np.uint32(2 * field))
                else:
                    name = slots[names_at + np.uint64(entry >> np.uint32(16))]
                    frequency = np.uint32(entry & np.uint32(0xFFFF))
                    inside = np.uint32(slot - np.uint32(name & np.uint32(0xFFFF)))
                    prefix = np.uint32(name >> np.uint32(16))
                x = np.uint32(frequency * np.uint32(x >> bits)) + inside
                small = x < np.uint32(STATE_LOW)
                word = np.uint32(halves[position])
                state[lane] = np.uint32(x << np.uint32(16)) | word if small else x
                position += np.uint64(small)
            value = np.uint64(prefix) << shift
            if raw_bits:
                found = np.uint64(longs[word_at + lane])
                if spills:
                    found |= np.uint64(longs[word_at + lanes + lane]) << np.uint64(32)
                value |= np.uint64(np.uint32(found >> offset) & low)
            value <<= down
            if merge:
                value |= np.uint64(out[start + lane])
            out[start + lane] = out.dtype.type(unrotated(value, rotate))
    at[2] = position
    return True


@kernel
def encoding_table(frequencies, prefixes, table):
    """Fill `table`, uint32: for each prefix its frequency, and 16 bits above, where its slots begin."""
    start = np.uint32(0)
    for symbol in range(frequencies.size):
        table[prefixes[symbol]] = np.uint32(frequencies[symbol]) | np.uint32(start << np.uint32(16))
        start += np.uint32(frequencies[symbol])


@kernel
def decoding_table(frequencies, prefixes, field, table, names):
    """Fill `table`, uint32 [2^precision]: for each slot its place among those of its symbol, their number and the
    prefix.

    Place and number have `field` bits each. If that does not fit, field is 0: a slot then has the number, and 16 bits
    above it the symbol; and `names`, uint32 [256], has the first slot of each symbol, and 16 bits above it the prefix.
    """
    slot = np.uint64(0)
    for symbol in range(frequencies.size):
        frequency, prefix = np.uint64(frequencies[symbol]), np.uint32(prefixes[symbol])
        names[symbol] = np.uint32(slot) | np.uint32(prefix << np.uint32(16))
        if field:
            first = np.uint32(np.uint32(frequency) << np.uint32(field)) | np.uint32(prefix << np.uint32(2 * field))
            for place in range(frequency):
                table[slot + place] = first | np.uint32(place)
        else:
            for place in range(frequency):
                table[slot + place] = np.uint32(frequency) | np.uint32(symbol << 16)
        slot += frequency
