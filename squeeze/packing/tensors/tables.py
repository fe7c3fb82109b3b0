"""Tables of prefixes in a payload: the prefixes that occur, and a number of each, its frequency or its depth."""

import numpy as np

from squeeze.errors import DamagedError
from squeeze.numerics.jit import inline, kernel
from squeeze.packing.tensors.rans import MAX_SYMBOLS

__all__ = [
    "EARLY",
    "FAULTS",
    "IMPOSSIBLE",
    "VARINT",
    "damaged",
    "parse_symbols",
    "quantise",
    "read_tables",
    "tables_text",
]

Array = np.ndarray
VARINT = 5  # maximal bytes of a varint


@kernel
def quantise(counts, precision, frequencies, worths):
    """Fill `frequencies`, int64, with counts scaled to a sum of 2^precision; no present symbol gets 0.

    Remaining units go to (or come from) the symbols where they change the coded length most (least). worths: working
    space, float64, one for each symbol.
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
    if remaining == 0:
        return
    step = 1 if remaining > 0 else -1
    for symbol in range(counts.size):
        worths[symbol] = _worth(counts[symbol], frequencies[symbol], step)
    while remaining != 0:
        best = 0
        for symbol in range(counts.size):
            best = symbol if worths[symbol] > worths[best] else best
        frequencies[best] += step
        worths[best] = _worth(counts[best], frequencies[best], step)
        remaining -= step


@inline
def _worth(count, frequency, step):
    """Return the bits of code that `step` more units save."""
    if frequency == 0 or frequency + step == 0:
        return -1e300
    return np.float64(count) * np.log2(np.float64(frequency + step) / np.float64(frequency))


def tables_text(used: Array, tables: Array) -> bytes:
    """Return tables as bytes: runs of used prefixes, then all frequencies.

    First is the number of runs; a run is its gap to the one before and its length - 1. All numbers are varints. used:
    int64 [symbols], ascending; tables: int64 [tables, symbols].
    """
    text = np.empty(VARINT * (1 + 2 * used.size + tables.size), np.uint8)
    return text[: write_tables(used, tables, text)].tobytes()


@kernel
def write_tables(used, tables, text):
    """Write the bytes of `tables_text` to `text`; return their number."""
    runs, end, place = 1, 0, 0
    for k in range(1, used.size):
        runs += used[k] != used[k - 1] + 1
    place = _write_varint(text, place, runs)
    first = 0
    for k in range(used.size):
        if k + 1 == used.size or used[k + 1] != used[k] + 1:
            place = _write_varint(text, place, used[first] - end)
            place = _write_varint(text, place, k - first)
            first, end = k + 1, used[k] + 1
    for table in range(tables.shape[0]):
        for k in range(used.size):
            place = _write_varint(text, place, tables[table, k])
    return place


@inline
def _write_varint(text, place, value):
    while value > 127:
        text[place] = (value & 127) | 128
        value >>= 7
        place += 1
    text[place] = value
    return place + 1


def parse_symbols(text: bytes, tables: int, limit: int) -> tuple[Array, Array]:
    """Parse the bytes of `tables_text`.

    Args:
        text: the bytes.
        tables: number of tables.
        limit: the symbols must be below it.

    Returns the symbols, int64 [symbols], and their numbers, int64 [tables, symbols].
    """
    symbols, rows = np.empty(MAX_SYMBOLS, np.int64), np.empty((tables, MAX_SYMBOLS), np.int64)
    count = read_tables(np.frombuffer(text, np.uint8), limit, symbols, rows)
    if count < 0:
        raise damaged(FAULTS[-count])
    return symbols[:count], rows[:, :count]


FAULTS = (
    "",
    "its symbols are invalid",
    "it ends too early",
    "its tables are too long",
    "its tables are invalid",
    "its planes are unknown",
    "its index is wrong",
    "its constant is invalid",
    "its length is not that of its parts",
)
EARLY, IMPOSSIBLE = 2, 4


@kernel
def read_tables(text, limit, symbols, rows):
    """Fill `symbols` and `rows` from the bytes of `tables_text`; return the number of symbols, or minus a fault."""
    place, runs = _read_varint(text, 0)
    if place < 0:
        return place
    count, end = 0, 0
    for _ in range(runs):
        place, gap = _read_varint(text, place)
        if place < 0:
            return place
        place, length = _read_varint(text, place)
        if place < 0:
            return place
        if end + gap + length + 1 > limit or count + length + 1 > symbols.size:
            return -1
        for k in range(length + 1):
            symbols[count + k] = end + gap + k
        count += length + 1
        end += gap + length + 1
    for table in range(rows.shape[0]):
        for k in range(count):
            place, rows[table, k] = _read_varint(text, place)
            if place < 0:
                return place
    return count if place == text.size else -3


@inline
def _read_varint(text, place):
    """Return where the next varint begins, and the value; the place is -2 or -4 if the text is invalid."""
    value, shift = 0, 0
    while place < text.size:
        byte = np.int64(text[place])
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return place, value
        if shift > 28:
            return -4, 0
    return -2, 0


def damaged(why: str) -> DamagedError:
    """Return the error for a damaged tensor."""
    return DamagedError(f"a coded tensor is damaged: {why}")
