"""Which bytes of a coded tensor some of its segments take, so that the rest need not be there.

The parts are those of float_payload.py. Each says where the next ones lie, so they are fetched
step by step.
"""

from collections.abc import Callable

import numpy as np

from squeeze.codecs.tensors import plane_fields as columns
from squeeze.codecs.tensors.float_payload import HEAD, LAYOUTS, PLANE, Coded, parse
from squeeze.codecs.tensors.tables import damaged

__all__ = ["Fetch", "fetch_segments", "parse_fetched"]

Array = np.ndarray
Fetch = Callable[[int, int], None]  # fills a payload from one place to another


def parse_fetched(payload: Array, dtype: str, size: int, fetch: Fetch) -> Coded:
    """As `parse`, of a payload of zeros, of which `fetch` fills what is read here: all but states, words and raw bits.

    payload: uint8, aligned to 8 bytes. Raises DamagedError.
    """
    fetch(0, min(HEAD.size, payload.size))
    if payload.size < HEAD.size:
        raise damaged("its length is impossible")
    _, layout, _, log_lanes, rows, count = HEAD.unpack(payload[: HEAD.size].tobytes())
    if layout >= len(LAYOUTS) or log_lanes > 32 or not rows:
        raise damaged("its coding is unknown")
    place = HEAD.size + PLANE.size * len(LAYOUTS[layout])
    fetch(HEAD.size, min(place, payload.size))
    lanes = 1 << log_lanes
    segments = -(-count // (lanes * rows))
    for number, width in enumerate(LAYOUTS[layout]):
        start = HEAD.size + PLANE.size * number
        entry = payload[start : start + PLANE.size].tobytes()
        if len(entry) < PLANE.size:
            break
        _, raw_bits, precision, tables, text, words = PLANE.unpack(entry)
        if raw_bits >= width:
            place = _after(place, count * (width >> 3))
            continue
        begin, place = place, _after(place, text)
        if precision:
            place = _after(_after(place, segments * (tables > 1)), 4 * segments)
        fetch(min(begin, payload.size), min(place, payload.size))
        if precision:
            place = _after(_after(place, 4 * segments * lanes), 2 * words)
        place = _after(place, 4 * _raw_words(count, lanes, rows, raw_bits))
    return parse(payload, dtype, size)


def fetch_segments(coded: Coded, first: int, last: int, fetch: Fetch) -> None:
    """Fetch what decoding segments first to last reads of a payload that `parse_fetched` parsed."""
    for row in coded.fields.tolist():
        width, raw_bits, raw = row[columns.WIDTH], row[columns.RAW_BITS], row[columns.RAW]
        per_segment = coded.lanes * coded.rows
        if raw_bits == width:
            size = width // 8
            fetch(raw + first * per_segment * size, raw + min(last * per_segment, coded.count) * size)
            continue
        if row[columns.PRECISION]:
            place = row[columns.COUNTS]
            counts = coded.payload[place : place + 4 * coded.segments].view(np.uint32).astype(np.int64)
            begin, end = int(counts[:first].sum()), int(counts[:last].sum())
            states, words = row[columns.STATES], row[columns.WORDS_AT]
            fetch(states + 4 * coded.lanes * first, states + 4 * coded.lanes * last)
            fetch(words + 2 * begin, min(words + 2 * (end + coded.lanes), coded.payload.size))
        stop = min(last * per_segment, coded.count)
        begin, end = (4 * _raw_words(n, coded.lanes, coded.rows, raw_bits) for n in (first * per_segment, stop))
        fetch(raw + begin, raw + end)


def _after(place: int, size: int) -> int:
    """Where the next section begins."""
    return (place + size + 3) // 4 * 4


def _raw_words(count: int, lanes: int, rows: int, raw_bits: int) -> int:
    full, rest = divmod(count, lanes * rows)
    rest_rows = -(-rest // lanes)
    return lanes * (full * (rows * raw_bits + 31 >> 5) + (rest_rows * raw_bits + 31 >> 5))
