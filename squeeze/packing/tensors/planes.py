"""Extraction of planes from values, whole or as packed raw bits, their insertion, and the counting of prefixes.

rans.py explains the position of a plane: values are rotated, and the plane is above the `drop` lowest bits.
"""

import numpy as np

from squeeze.numerics.jit import inline, kernel, lossy_kernel
from squeeze.packing.tensors import plane as columns
from squeeze.packing.tensors.plane import rotated, unrotated
from squeeze.packing.tensors.rans import decode_segments
from squeeze.packing.tensors.rans_vectors import AVAILABLE, HALF, LANES, packer

_pack, _pack_half = packer(), packer(HALF)
TOGETHER = 1 << 17  # values whose planes are decoded together, as many as a cache holds


@kernel
def pack_raw(values, rotate, drop, raw_bits, first, last, lanes, rows, raw):
    """Pack the raw bits of segments first to last into `raw`, uint32, which begins with the first of these segments."""
    per_segment, lane_count, raw_at = np.uint64(lanes * rows), np.uint64(lanes), np.uint64(0)
    field, shift, width = np.uint64(raw_bits), np.uint64(drop), np.uint64(rotate)
    low = (np.uint64(1) << field) - np.uint64(1)
    for segment in range(first, last):
        begin = np.uint64(segment) * per_segment
        count = min(np.uint64(values.size) - begin, per_segment)
        used_rows, whole = (count + lane_count - np.uint64(1)) // lane_count, np.uint64(0)
        end = raw_at + ((used_rows * field + np.uint64(31)) >> np.uint64(5)) * lane_count
        if AVAILABLE and lanes == LANES and count >= lane_count:
            whole = count // lane_count
            _pack(values, raw, begin, raw_at, whole, raw_bits, drop, rotate > 0)
        elif AVAILABLE and lanes == HALF and count >= lane_count:
            whole = count // lane_count
            _pack_half(values, raw, begin, raw_at, whole, raw_bits, drop, rotate > 0)
        for k in range(raw_at + ((whole * field + np.uint64(31)) >> np.uint64(5)) * lane_count, end):
            raw[k] = np.uint32(0)
        for row in range(whole, used_rows):
            bit = row * field
            word, offset = raw_at + (bit >> np.uint64(5)) * lane_count, bit & np.uint64(31)
            start = row * lane_count
            for lane in range(min(lane_count, count - start)):
                bits = ((rotated(values[begin + start + lane], width) >> shift) & low) << offset
                raw[word + lane] |= np.uint32(bits)
                if offset + field > np.uint64(32):
                    raw[word + lane_count + lane] |= np.uint32(bits >> np.uint64(32))
        raw_at = end


@kernel
def cut_plane(values, rotate, drop, out):
    """Fill `out` with the bits of each value above the `drop` lowest, as many as its type holds."""
    shift, width = np.uint64(drop), np.uint64(rotate)
    for i in range(np.uint64(values.size)):
        out[i] = out.dtype.type(rotated(values[i], width) >> shift)


@kernel
def put_plane(out, rotate, drop, merge, plane, begin):
    """Undo `cut_plane`: insert the values of `plane`, from `begin` on, into `out`.

    merge: keep the bits that are in `out`. rotate: 0 unless this is the last plane.
    """
    shift, start = np.uint64(drop), np.uint64(begin)
    for i in range(np.uint64(out.size)):
        value = np.uint64(plane[start + i]) << shift
        if merge:
            value |= np.uint64(out[i])
        out[i] = out.dtype.type(unrotated(value, rotate))


@kernel
def decode_planes(
    out, bits, rotated, first, last, step, count, lanes, rows, fields, slots, payload, halves, longs, state, at, starts
):
    """Decode segments first to last of all planes, `step` segments at a time, into `out`.

    Values have `bits` bits, at most 32. starts: int64 [planes], working space; other arguments as in `decode_segments`.
    Returns -1, or the first damaged segment.
    """
    per_segment = lanes * rows
    for number in range(fields.shape[0]):
        starts[number], counts_at = 0, fields[number, columns.COUNTS] >> 2
        if fields[number, columns.PRECISION]:
            for segment in range(first):
                starts[number] += np.int64(longs[counts_at + segment])
    for segment in range(first, last, step):
        end, drop = min(segment + step, last), bits
        piece = out[(segment - first) * per_segment : min((end - first) * per_segment, out.size)]
        for number in range(fields.shape[0]):
            plane = fields[number]
            drop -= plane[columns.WIDTH]
            rotate = bits if rotated and drop == 0 else 0
            if plane[columns.RAW_BITS] == plane[columns.WIDTH]:
                begin = plane[columns.RAW] // (plane[columns.WIDTH] >> 3) + segment * per_segment
                if plane[columns.WIDTH] == 8:
                    put_plane(piece, rotate, drop, number > 0, payload, begin)
                elif plane[columns.WIDTH] == 16:
                    put_plane(piece, rotate, drop, number > 0, halves, begin)
                else:
                    put_plane(piece, rotate, drop, number > 0, longs, begin)
                continue
            starts[number] = decode_segments(
                piece, rotate, drop, number > 0, segment, end, starts[number], count, lanes, rows, plane, slots,
                payload, halves, longs, state, at,
            )  # fmt: skip
            if starts[number] < 0:
                return -1 - starts[number]
    return -1


@kernel
def count_prefixes(values, rotate, below, tables, row):
    """Add the number of each prefix to `row`, integers [2^prefix bits].

    A prefix is above the `below` lowest bits and has as many bits as the row has places for. tables: working space
    uint32 [4, n], n at least the size of the row; zeroed before and after.
    """
    for begin in range(0, values.size, 1 << 24):  # 32 bits do not overflow
        end = min(np.uint64(begin + (1 << 24)), np.uint64(values.size))
        tally(values, rotate, below, np.uint64(begin), end, row.size, tables)
        collect(tables, row)


@kernel
def count_segments(values, rotate, below, per_segment, step, first, last, tables, rows):
    """Count the prefixes of every `step`th segment, as `count_prefixes` does, in rows first to last of `rows`."""
    for row in range(first, last):
        begin = np.uint64(row * step * per_segment)
        end = min(begin + np.uint64(per_segment), np.uint64(values.size))
        tally(values, rotate, below, begin, end, rows.shape[1], tables)
        collect(tables, rows[row])


@kernel
def choose_groups(values, rotate, below, first, last, per_segment, lengths, tables, counts, ids, sums):
    """Assign each of segments first to last to the group whose code lengths code it shortest, in `ids`.

    Its prefixes are added to those of the group. lengths: float32 [groups, 2^prefix bits]. tables: see
    `count_prefixes`. counts: uint32 [2^prefix bits], working space. sums: int64 [groups, 2^prefix bits].
    """
    for segment in range(first, last):
        begin = np.uint64(segment * per_segment)
        end = min(begin + np.uint64(per_segment), np.uint64(values.size))
        tally(values, rotate, below, begin, end, counts.size, tables)
        for k in range(counts.size):
            counts[k] = 0
        collect(tables, counts)
        best, least = 0, np.float32(1e30)
        for group in range(lengths.shape[0]):
            cost = _cost(counts, lengths[group])
            if cost < least:
                best, least = group, cost
        ids[segment] = best
        for k in range(counts.size):
            sums[best, k] += counts[k]


@lossy_kernel(fastmath=True)
def _cost(counts, lengths):
    """Return about the bits of these counts of prefixes with these code lengths."""
    cost = np.float32(0.0)
    for k in range(counts.size):
        cost += np.float32(np.int32(counts[k])) * lengths[k]
    return cost


@inline
def tally(values, rotate, below, begin, end, size, tables):
    """Count the prefixes of values in four tables in turn, so that equal ones need not wait for each other.

    size: number of possible prefixes.
    """
    every = np.uint64(size - 1)
    shift, turn = np.uint64(below), np.uint64(rotate)
    if rotate and below:  # the rotated bit is not counted
        shift, turn = shift - np.uint64(1), np.uint64(0)
    whole = begin + ((end - begin) & np.uint64(0xFFFFFFFFFFFFFFFC))
    if turn:
        for i in range(begin, whole, np.uint64(4)):
            for k in range(4):
                tables[k, (rotated(values[i + np.uint64(k)], turn) >> shift) & every] += np.uint32(1)
    else:
        for i in range(begin, whole, np.uint64(4)):
            for k in range(4):
                tables[k, (np.uint64(values[i + np.uint64(k)]) >> shift) & every] += np.uint32(1)
    for i in range(whole, end):
        tables[0, (rotated(values[i], turn) >> shift) & every] += np.uint32(1)


@inline
def collect(tables, histogram):
    """Add the tables to a histogram, and zero them."""
    for k in range(histogram.size):
        histogram[k] += tables[0, k] + tables[1, k] + tables[2, k] + tables[3, k]
    for table in range(4):
        for k in range(histogram.size):
            tables[table, k] = 0
