"""Reading the directory and the tables of a coded tensor; each length is checked before anything is decoded."""

import numpy as np

from squeeze.numerics.jit import inline, kernel
from squeeze.packing.tensors import plane as columns
from squeeze.packing.tensors.rans import MAX_PRECISION, MAX_SYMBOLS, decoding_table
from squeeze.packing.tensors.tables import EARLY, IMPOSSIBLE, read_tables

HEAD_SIZE = ENTRY_SIZE = 16  # bytes
PLANES, INDEX, CONSTANTS, LENGTH = 5, 6, 7, 8  # faults after those of tables.py


@kernel
def raw_words(count, lanes, rows, raw_bits):
    """Return the uint32 words for the raw bits of `count` values from the start of a segment on."""
    full, rest = count // (lanes * rows), count % (lanes * rows)
    rest_rows = (rest + lanes - 1) // lanes
    return lanes * (full * ((rows * raw_bits + 31) >> 5) + ((rest_rows * raw_bits + 31) >> 5))


@kernel
def whole_size(end, words_end, lanes):
    """Return the size of a payload from the ends of sections and words; a decoder may read `lanes` words further."""
    return (max(end, words_end + 2 * lanes if words_end else 0) + 7) // 8 * 8


@kernel
def read_planes(payload, longs, count, lanes, rows, fields, prefixes, frequencies):
    """Fill the rows of `fields`, whose WIDTHs are known; return 0 or a fault.

    Args:
        payload: uint8.
        longs: the same as uint32.
        count: number of values.
        lanes: lanes of a segment.
        rows: rows of a segment.
        fields: int64 [planes, COLUMNS], see plane.py.
        prefixes: filled, int64 [planes, 256].
        frequencies: filled, int64 [planes, tables, 256], with the most tables that are allowed.
    """
    segments, slots, words_end = (count + lanes * rows - 1) // (lanes * rows), 0, 0
    position = HEAD_SIZE + ENTRY_SIZE * fields.shape[0]
    if position > payload.size:
        return EARLY
    for number in range(fields.shape[0]):
        plane, at = fields[number], HEAD_SIZE + ENTRY_SIZE * number
        width, raw_bits = plane[columns.WIDTH], np.int64(payload[at + 1])
        precision, tables = np.int64(payload[at + 2]), np.int64(payload[at + 3])
        text_size, words = np.int64(longs[at // 4 + 1]), np.int64(longs[at // 4 + 2])
        prefix_bits = width - raw_bits
        if payload[at] != width or prefix_bits < 0 or (prefix_bits > 16 and raw_bits != width):
            return PLANES
        if precision > MAX_PRECISION or tables > frequencies.shape[1]:
            return PLANES
        plane[columns.RAW_BITS], plane[columns.TABLE], plane[columns.NAMES] = raw_bits, slots, slots
        if prefix_bits == 0:
            plane[columns.RAW] = position
            position = _after(position, count * (width >> 3), payload)
            if position < 0:
                return EARLY
            continue
        text = position
        position = _after(position, text_size, payload)
        if position < 0:
            return EARLY
        if precision == 0:
            constant = np.int64(payload[text]) | np.int64(payload[text + 1]) << 8 if text_size == 2 else -1
            if constant < 0 or constant >> prefix_bits:
                return CONSTANTS
            plane[columns.CONSTANT] = constant
        else:
            plane[columns.PRECISION], plane[columns.TABLES] = precision, tables
            fault = _read_models(
                payload[text : text + text_size], prefix_bits, plane, prefixes[number], frequencies[number, :tables]
            )
            if fault:
                return fault
            if longs[at // 4 + 3]:  # the upper half of the number of words
                return INDEX
            plane[columns.NAMES] = slots + (tables << precision)
            slots = plane[columns.NAMES] + tables * MAX_SYMBOLS
            position, fault = _read_index(payload, longs, plane, position, segments, lanes, words)
            if fault:
                return fault
            words_end = position
        plane[columns.RAW] = position
        position = _after(position, 4 * raw_words(count, lanes, rows, raw_bits), payload)
        if position < 0:
            return EARLY
    return 0 if payload.size == whole_size(position, words_end, lanes) else LENGTH


@inline
def _read_models(text, prefix_bits, plane, prefixes, frequencies):
    """Fill a plane's prefixes, int64 [256], frequencies, int64 [tables, 256], and fields; return 0 or a fault."""
    symbols, most = read_tables(text, 1 << prefix_bits, prefixes, frequencies), 0
    if symbols < 0:
        return -symbols
    for table in range(frequencies.shape[0]):
        total = 0
        for k in range(symbols):
            total += frequencies[table, k]
            most = max(most, frequencies[table, k])
        if total != 1 << plane[columns.PRECISION]:
            return IMPOSSIBLE
    if not frequencies.shape[0]:
        return IMPOSSIBLE
    field = 0
    while (1 << field) <= most:
        field += 1
    plane[columns.FIELD] = field if 2 * field + prefix_bits <= 32 else 0
    plane[columns.SYMBOLS] = symbols
    return 0


@inline
def _read_index(payload, longs, plane, position, segments, lanes, words):
    """Read the index of a plane's segments; return where the next section begins, and 0 or a fault."""
    plane[columns.IDS], tables = position, plane[columns.TABLES]
    position = _after(position, segments if tables > 1 else 0, payload)
    if position < 0:
        return position, EARLY
    if tables > 1:
        for k in range(segments):
            if payload[plane[columns.IDS] + k] >= tables:
                return position, INDEX
    plane[columns.COUNTS] = position
    position = _after(position, 4 * segments, payload)
    if position < 0:
        return position, EARLY
    total = 0
    for k in range(segments):
        total += np.int64(longs[(plane[columns.COUNTS] >> 2) + k])
    plane[columns.STATES] = position
    position = _after(position, 4 * segments * lanes, payload)
    if position < 0:
        return position, EARLY
    if total != words:
        return position, INDEX
    plane[columns.WORDS_AT] = position
    position = _after(position, 2 * words, payload)
    if position < 0 or plane[columns.WORDS_AT] + 2 * (words + lanes) > payload.size:
        return position, EARLY
    return position, 0


@inline
def _after(position, size, payload):
    """Return where the next section begins after one of `size` bytes, or -1 if the payload ends before."""
    return -1 if size > payload.size - position else (position + size + 3) // 4 * 4


@kernel
def fill_slots(fields, prefixes, frequencies, slots):
    """Fill the decoding tables of all planes, uint32: see rans.decoding_table."""
    for number in range(fields.shape[0]):
        plane = fields[number]
        for table in range(plane[columns.TABLES]):
            size, names = 1 << plane[columns.PRECISION], plane[columns.NAMES] + table * MAX_SYMBOLS
            begin = plane[columns.TABLE] + table * size
            decoding_table(
                frequencies[number, table, : plane[columns.SYMBOLS]], prefixes[number], plane[columns.FIELD],
                slots[begin : begin + size], slots[names : names + MAX_SYMBOLS],
            )  # fmt: skip
