"""What small.py does with a whole tensor, compiled: the steps of float_plan.py, and those of floats.py's decoder."""

import numpy as np

from squeeze.numerics.jit import inline, kernel
from squeeze.packing.tensors import plane_fields as columns, rans
from squeeze.packing.tensors.float_layout import SAMPLE_RUN, SAMPLE_RUNS, choose_layout, fold
from squeeze.packing.tensors.float_models import precision_of, used_prefixes
from squeeze.packing.tensors.float_payload import FORMAT, MAX_ROWS
from squeeze.packing.tensors.plane_reader import ENTRY_SIZE, HEAD_SIZE, fill_slots, raw_words, read_planes, whole_size
from squeeze.packing.tensors.planes import TOGETHER, collect, cut_plane, decode_planes, pack_raw, tally
from squeeze.packing.tensors.tables import quantise, write_tables

FEW = 4  # segments, fewer of which are not worth a second thread


@kernel
def plan_whole(
    values, sample, rotate, bits, lanes, rows, layouts, longest, logs, tables, sampled, kinds, room, measured, found,
    total, counts, worths, fields, prefixes, frequencies,
):  # fmt: skip
    """Choose how values are coded: which of the layouts, or -1 where none pays; and how many values are 0, at most.

    The last three arrays are filled, see SmallPlan; others are working space: sample, as many as there are in one;
    counts int64 [1, 2^13]; worths float64 [256]; the rest as `choose_layout` has it.
    """
    count, segments = values.size, (values.size + lanes * rows - 1) // (lanes * rows)
    taken = values if count < sample.size else sample
    step = (count - SAMPLE_RUN) // (SAMPLE_RUNS - 1)
    if count >= sample.size:
        length, stride = np.uint64(SAMPLE_RUN), np.uint64(step)
        for run in range(np.uint64(SAMPLE_RUNS)):  # places without a sign are copied by vectors
            for k in range(length):
                sample[run * length + k] = values[run * stride + k]
    choice = choose_layout(
        taken, rotate, bits, layouts, longest, count, 32.0 * segments * (lanes + 1), logs, tables, sampled, kinds,
        room, measured, found, total,
    )  # fmt: skip
    if total[0] >= np.float64(count) * bits:
        return -1, 0
    drop, zeros = bits, count
    for number in range(fields.shape[0]):
        width, prefix_bits = layouts[choice, number], found[choice, number]
        plane, place = fields[number], (drop >> 3) - 1
        plane[columns.WIDTH] = plane[columns.RAW_BITS] = width
        drop -= width
        if width == 0 or prefix_bits == 0:
            continue
        size = 1 << prefix_bits
        for k in range(size):
            counts[0, k] = 0
        fold(sampled[place], kinds[place], longest[place] - prefix_bits, counts[0])
        if count >= sample.size:  # what lies between the parts of the sample, and behind
            for run in range(SAMPLE_RUNS):
                end = np.uint64(run * step + step if run < SAMPLE_RUNS - 1 else count)
                tally(values, rotate, drop + width - prefix_bits, np.uint64(run * step + SAMPLE_RUN), end, size, tables)
            collect(tables, counts[0][:size])
        fewer, used = used_prefixes(counts, size, prefixes[number])
        plane[columns.RAW_BITS] = width - (prefix_bits - fewer)
        plane[columns.SYMBOLS] = used
        zeros = min(zeros, counts[0, 0])
        if used == 1:
            plane[columns.CONSTANT] = prefixes[number, 0]
            continue
        for k in range(used):  # those that there are, one after the other
            counts[0, k] = counts[0, prefixes[number, k]]
        plane[columns.PRECISION], plane[columns.TABLES] = precision_of(count), 1
        quantise(counts[0][:used], plane[columns.PRECISION], frequencies[number, 0][:used], worths)
    return choice, zeros


@kernel
def write_whole(
    values, rotated, layout, planes, lanes, rows, fields, prefixes, frequencies, payload, halves, longs, table, ids,
    scratch, state, at,
):  # fmt: skip
    """Fill a payload, uint8 and as uint16 and uint32, of a plan's parts; its size.

    ids: zeros, uint8, as many as segments. Working space: table uint32 [2^13]; the rest as `encode_segments` has it.
    """
    count, bits, log_lanes = values.size, 8 * values.itemsize, 0
    while (1 << log_lanes) < lanes:
        log_lanes += 1
    rotate, drop, segments = bits if rotated else 0, bits, (count + lanes * rows - 1) // (lanes * rows)
    payload[0], payload[1], payload[2], payload[3] = FORMAT, layout, rotated, log_lanes
    longs[1], longs[2], longs[3] = rows, count, 0
    position, words_end = HEAD_SIZE + ENTRY_SIZE * planes, 0
    for number in range(planes):
        plane, entry = fields[number], HEAD_SIZE + ENTRY_SIZE * number
        width, raw_bits, precision = plane[columns.WIDTH], plane[columns.RAW_BITS], plane[columns.PRECISION]
        drop -= width
        text, words = 0, 0
        if raw_bits == width:
            if width == 8:
                cut_plane(values, rotate, drop, payload[position : position + count])
            elif width == 16:
                cut_plane(values, rotate, drop, halves[position >> 1 : (position >> 1) + count])
            else:
                cut_plane(values, rotate, drop, longs[position >> 2 : (position >> 2) + count])
            position = _padded(payload, position + count * (width >> 3))
        else:
            symbols = plane[columns.SYMBOLS]
            if precision:
                text = write_tables(prefixes[number][:symbols], frequencies[number], payload[position:])
            else:
                payload[position], payload[position + 1] = plane[columns.CONSTANT] & 255, plane[columns.CONSTANT] >> 8
                text = 2
            position = _padded(payload, position + text)
            if precision:
                rans.encoding_table(frequencies[number, 0][:symbols], prefixes[number], table)
                counts_at, states_at = position >> 2, (position >> 2) + segments
                position += 4 * segments * (lanes + 1)
                words = rans.encode_segments(
                    values, rotate, drop, raw_bits, width - raw_bits, 0, segments, lanes, rows, precision, table, ids,
                    halves[position >> 1 :], longs[counts_at:], longs[states_at:], scratch, state, at,
                )  # fmt: skip
                position = words_end = _padded(payload, position + 2 * words)
            if raw_bits:
                pack_raw(values, rotate, drop, raw_bits, 0, segments, lanes, rows, longs[position >> 2 :])
                position += 4 * raw_words(count, lanes, rows, raw_bits)
        payload[entry], payload[entry + 1], payload[entry + 2] = width, raw_bits, precision
        payload[entry + 3] = plane[columns.TABLES]
        entry >>= 2
        longs[entry + 1], longs[entry + 2], longs[entry + 3] = text, words, 0
    size = whole_size(position, words_end, lanes)
    for k in range(position, size):
        payload[k] = 0
    return size


@inline
def _padded(payload, position):
    """Zeros up to where the next section begins; where that is."""
    while position & 3:
        payload[position] = 0
        position += 1
    return position


@kernel
def decode_whole(
    payload, halves, longs, out, bits, can_rotate, spread, layouts, fields, prefixes, frequencies, slots, state, at,
    starts,
):  # fmt: skip
    """Decode a payload, uint8 and as uint16 and uint32, into `out`; whether that was done.

    spread: leave what several threads would share. layouts: int64 [layouts, 8], widths of planes, 0 after the last.
    Working space: the rest, as `read_planes` and `decode_planes` have it.
    """
    if payload.size < HEAD_SIZE:
        return False
    layout, lanes, rows = payload[1], 1 << min(payload[3], 7), np.int64(longs[1])
    count = np.int64(longs[2])
    if payload[0] != FORMAT or layout >= layouts.shape[0] or payload[2] > can_rotate or longs[3]:
        return False
    if not 1 <= rows <= MAX_ROWS or lanes > rans.MAX_LANES or count != out.size or count < 1:
        return False
    planes, width = 0, 0
    for number in range(layouts.shape[1]):
        width += layouts[layout, number]
        planes += layouts[layout, number] > 0
    segments = (count + lanes * rows - 1) // (lanes * rows)
    if width != bits or (spread and segments >= FEW):
        return False
    fields = fields[:planes]
    for number in range(planes):
        for column in range(fields.shape[1]):
            fields[number, column] = 0
        fields[number, columns.WIDTH] = layouts[layout, number]
    if read_planes(payload, longs, count, lanes, rows, fields, prefixes, frequencies):
        return False
    last = fields[planes - 1]
    if last[columns.NAMES] + last[columns.TABLES] * rans.MAX_SYMBOLS > slots.size:
        return False
    fill_slots(fields, prefixes, frequencies, slots)
    step = segments if planes == 1 else max(TOGETHER // (lanes * rows), 1)
    bad = decode_planes(
        out, bits, payload[2] > 0, 0, segments, step, count, lanes, rows, fields, slots, payload, halves, longs, state,
        at, starts,
    )  # fmt: skip
    return bad < 0
