"""Small tensors of floats.py: planned, written and decoded in one compiled call each.

For these, Python's steps for large tensors would take longer than coding. The bytes are those of float_plan.py.
"""

import threading
from dataclasses import dataclass

import numpy as np

from squeeze.numerics.jit import inline, kernel
from squeeze.packing.tensors import float_plan, plane as columns, rans
from squeeze.packing.tensors.content import Content, whole
from squeeze.packing.tensors.float_layout import LOGS, SAMPLE_RUN, SAMPLE_RUNS, choose_layout, fold, shapes, space
from squeeze.packing.tensors.float_models import LEAST_CLUSTERED, precision_of, used_prefixes
from squeeze.packing.tensors.float_payload import CHOICES, DTYPES, FORMAT, LAYOUTS, MAX_ROWS, MAX_TABLES, WORDS, Array
from squeeze.packing.tensors.float_plan import LEAST_VALUES, Plan
from squeeze.packing.tensors.float_writer import Writer, most_bytes
from squeeze.packing.tensors.plane_reader import ENTRY_SIZE, HEAD_SIZE, fill_slots, raw_words, read_planes, whole_size
from squeeze.packing.tensors.planes import TOGETHER, collect, cut_plane, decode_planes, pack_raw, tally
from squeeze.packing.tensors.tables import quantise, write_tables
from squeeze.system.arena import thread_buffer

__all__ = ["MOST", "SmallPlan", "decode", "plan_of"]

FEW = 4  # segments: fewer are not worth a second thread


@kernel
def plan_whole(
    values, sample, rotate, bits, lanes, rows, layouts, longest, logs, tables, sampled, kinds, room, measured, found,
    total, counts, worths, fields, prefixes, frequencies,
):  # fmt: skip
    """Choose how values are coded.

    The last three arrays are filled, see SmallPlan. Others are working space: sample, of the sample's size; counts
    int64 [1, 2^13]; worths float64 [256]; the rest as in `choose_layout`. Returns the number of the layout, or -1 if
    coding makes nothing shorter, and an upper bound of the values that are 0.
    """
    count, segments = values.size, (values.size + lanes * rows - 1) // (lanes * rows)
    taken = values if count < sample.size else sample
    step = (count - SAMPLE_RUN) // (SAMPLE_RUNS - 1)
    if count >= sample.size:
        length, stride = np.uint64(SAMPLE_RUN), np.uint64(step)
        for run in range(np.uint64(SAMPLE_RUNS)):  # unsigned places let vectors copy
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
        if count >= sample.size:  # values between the parts of the sample, and after
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
        for k in range(used):  # the prefixes that occur, one after the other
            counts[0, k] = counts[0, prefixes[number, k]]
        plane[columns.PRECISION], plane[columns.TABLES] = precision_of(count), 1
        quantise(counts[0][:used], plane[columns.PRECISION], frequencies[number, 0][:used], worths)
    return choice, zeros


@kernel
def write_whole(
    values, rotated, layout, planes, lanes, rows, fields, prefixes, frequencies, payload, halves, longs, table, ids,
    scratch, state, at,
):  # fmt: skip
    """Write a payload, given as uint8, uint16 and uint32, from the parts of a plan; return its size.

    ids: zeros, uint8, one for each segment. Working space: table uint32 [2^13]; the rest as in `encode_segments`.
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
    """Pad with zeros; return where the next section begins."""
    while position & 3:
        payload[position] = 0
        position += 1
    return position


@kernel
def decode_whole(
    payload, halves, longs, out, bits, can_rotate, spread, layouts, fields, prefixes, frequencies, slots, state, at,
    starts,
):  # fmt: skip
    """Decode a payload, given as uint8, uint16 and uint32, into `out`; return whether that was possible.

    can_rotate: whether the type is a float. spread: refuse what several threads would decode. layouts: widths of
    planes, int64 [layouts, 8], 0 after the last. Others are working space, as in `read_planes` and `decode_planes`.
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


MOST = 1 << 22  # bytes: larger tensors are not decoded in one call
_SLOTS = 1 << 16
_MOST_PLANES = 4  # of values of 32 bits
_own = threading.local()
_WIDTHS = np.array([widths + (0,) * (8 - len(widths)) for widths in LAYOUTS], np.int64)


class _Space:
    """Working space of a thread."""

    def __init__(self) -> None:
        self.counts, self.worths = np.empty((1, 1 << 13), np.int64), np.empty(rans.MAX_SYMBOLS)
        self.found, self.total = np.empty((4, 8), np.int64), np.empty(1)
        self.table, self.ids = np.empty(1 << 13, np.uint32), np.zeros(LEAST_CLUSTERED, np.uint8)
        self.state, self.at = np.empty(2 * rans.MAX_LANES, np.uint32), np.empty(3, np.int64)
        self.fields, self.starts = np.empty((8, columns.COLUMNS), np.int64), np.empty(8, np.int64)
        self.prefixes = np.empty((8, rans.MAX_SYMBOLS), np.int64)
        self.frequencies = np.empty((8, MAX_TABLES, rans.MAX_SYMBOLS), np.int64)
        self.slots, self.places = np.empty(_SLOTS, np.uint32), np.empty((2, 5), np.int64)


def _space() -> _Space:
    """Return the working space of this thread."""
    if not hasattr(_own, "space"):
        _own.space = _Space()
    own: _Space = _own.space
    return own


def plan_of(content: Content, dtype: str, threads: int) -> "SmallPlan | Plan | None":
    """Plan the coding of a tensor; return None if coding does not make it shorter."""
    bits, rotated = DTYPES[dtype]
    count = 8 * content.size // bits
    if count >= LEAST_VALUES and bits <= 32:
        lanes, rows = float_plan.geometry(count, dtype)
        segments = -(-count // (lanes * rows))
        if segments < (LEAST_CLUSTERED if threads == 1 else FEW):
            return SmallPlan.of(_as_compiled(whole(content).view(WORDS[bits])), bits, rotated, lanes, rows)
    return Plan.of(content, dtype, threads)


def _as_compiled(values: Array) -> Array:
    """Return the values as compiled code takes them: aligned and writable, although nothing is written."""
    return values if values.flags.carray else values.copy()


@dataclass(slots=True)  # a frozen one takes 2 us more to create, 5 % of coding 256 values
class SmallPlan:
    """The coding of a small tensor.

    fields: int64 [planes, COLUMNS], with the columns set that tell how each plane is coded. prefixes: int64 [planes,
    256]. frequencies: int64 [planes, 1, 256]. most_zeros: an upper bound of the values that are 0.
    """

    values: Array
    rotated: bool
    layout: int
    lanes: int
    rows: int
    fields: Array
    prefixes: Array
    frequencies: Array
    most_zeros: int

    @classmethod
    def of(cls, values: Array, bits: int, rotated: bool, lanes: int, rows: int) -> "SmallPlan | None":
        """Plan the coding of values; return None if coding does not make them shorter.

        Args:
            values: the tensor's values as words.
            bits: bits of a value.
            rotated: whether values are rotated.
            lanes: lanes of a segment.
            rows: rows of a segment.
        """
        widths, longest = shapes(bits, rotated)
        own, shared = _space(), space()
        fields = np.zeros((_MOST_PLANES, columns.COLUMNS), np.int64)
        prefixes = np.empty((_MOST_PLANES, rans.MAX_SYMBOLS), np.int64)
        frequencies = np.empty((_MOST_PLANES, 1, rans.MAX_SYMBOLS), np.int64)
        choice, zeros = plan_whole(
            *(
                values,
                thread_buffer("sample", 4 * SAMPLE_RUNS * SAMPLE_RUN).view(values.dtype)[: SAMPLE_RUNS * SAMPLE_RUN],
            ),
            *(bits if rotated else 0, bits, lanes, rows, widths, longest, LOGS),
            *(shared.tables, shared.sampled, shared.kinds),
            *(shared.room, shared.measured, own.found, own.total, own.counts, own.worths),
            *(fields, prefixes, frequencies),
        )
        if choice < 0:
            return None
        layout = CHOICES[bits, rotated][choice]
        return cls(values, rotated, layout, lanes, rows, fields, prefixes, frequencies, zeros)

    @property
    def count(self) -> int:
        return self.values.size

    def write(self, writer: Writer) -> int:
        """Write the payload; return its bytes."""
        own, widths = _space(), LAYOUTS[self.layout]
        most = most_bytes(self.count, widths, self.lanes, self.rows)
        writer.reserve(most)
        payload = writer.room(0, most // 8 * 8, np.uint8)
        scratch = thread_buffer("words", 2 * (self.lanes * self.rows + rans.SLACK)).view(np.uint16)
        size = write_whole(
            *(self.values, self.rotated, self.layout, len(widths), self.lanes, self.rows, self.fields),
            *(self.prefixes, self.frequencies, payload, payload.view(np.uint16), payload.view(np.uint32)),
            *(own.table, own.ids, scratch, own.state, own.at),
        )
        if not writer.in_place:
            writer.put(0, payload[:size])
        return int(size)


def decode(payload: Array, dtype: str, out: Array, threads: int) -> bool:
    """Decode a payload into `out`, uint8.

    Returns False if the payload is large or damaged; `out` then has undefined bytes. Args are as in `floats.decode`.
    """
    bits, can_rotate = DTYPES[dtype]
    if out.size > MOST or bits > 32 or payload.size % 8 or out.size % (bits // 8):
        return False
    values, longs, own = out.view(WORDS[bits]), _as_compiled(payload.view(np.uint32)), _space()
    if not values.flags.carray:
        return False
    return bool(
        decode_whole(
            *(longs.view(np.uint8), longs.view(np.uint16), longs, values),
            *(bits, can_rotate, threads > 1, _WIDTHS, own.fields),
            *(own.prefixes, own.frequencies, own.slots, own.state, own.places, own.starts),
        )
    )
