"""Lossless coding of tensors: bf16, fp16, fp32, fp64, fp8 and integers, every bit pattern kept.

A float is rotated left by one bit, so that its exponent and the first bits of
its mantissa lead and the sign trails, and cut into *planes* (often one). In a
plane the leading bits of each value, its *prefix*, are coded by rANS (rans.py)
with up to MAX_TABLES frequency tables a tensor, and the bits behind it, which
are noise, stay raw. How many bits are prefix is measured on a sample. A plane
where nothing pays is raw, a tensor where nothing pays is stored.

`encode` and `decode` turn one tensor's bytes into a payload and back; how it
lies in bytes is float_payload.py's, how an encoder chooses float_models.py's;
names, shapes and checksums are the container's (squeeze/packing).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np

from squeeze.codecs.tensors import rans
from squeeze.codecs.tensors.float_models import PlaneModel, choose, take_plane
from squeeze.codecs.tensors.float_payload import (
    DTYPES,
    FORMAT,
    HEAD,
    LAYOUTS,
    PLANE,
    WORDS,
    Array,
    Coded,
    Plane,
    damaged,
    geometry,
    join,
    parse,
    raw_size,
)

T = TypeVar("T")
_LEAST_VALUES = 32  # below this a tensor is stored
_LEAST_PIECE = 1 << 12  # values of small segments that are put together at a time


def encode(data: Array, dtype: str, threads: int = 1, columns: int = 0) -> Array | None:
    """The payload (uint8, a multiple of 8 bytes) of a tensor's little-endian bytes, or None where it is no shorter.

    `dtype` is safetensors' name of the type, a key of DTYPES. `columns` makes no difference here.
    """
    bits, rotated = DTYPES[dtype]
    values = data.view(WORDS[bits])
    if values.size < _LEAST_VALUES:
        return None
    lanes, rows = geometry(values.size)
    layout, prefixes, cost = choose(values, bits, rotated, lanes, rows)
    if cost >= bits * values.size:
        return None
    widths = LAYOUTS[layout]
    heads = [HEAD.pack(FORMAT, layout, rotated, lanes.bit_length() - 1, rows, values.size)]
    directory: list[bytes] = []
    sections: list[list[Array]] = []
    for number, (width, prefix) in enumerate(zip(widths, prefixes, strict=True)):
        if len(widths) == 1:
            plane, rotate = values, width if rotated else 0
        else:
            plane, rotate = take_plane(values, widths, number, bits, rotated), 0
        entry, arrays = _encode_plane(plane, width, rotate, prefix, lanes, rows, threads)
        directory.append(entry)
        sections += arrays
        del plane, arrays
    payload = join([*heads, *directory], sections, lanes)
    return payload if payload.size < data.size else None


def estimate(data: Array, dtype: str) -> float:
    """About how many bits `encode` would need for a tensor's bytes."""
    bits, rotated = DTYPES[dtype]
    values = data.view(WORDS[bits])
    if values.size < _LEAST_VALUES:
        return 8.0 * data.size
    return min(choose(values, bits, rotated, *geometry(values.size))[2], 8.0 * data.size)


def decode(payload: Array, dtype: str, size: int, threads: int = 1, out: Array | None = None) -> Array:
    """The `size` bytes that `payload` was coded from, into `out` (uint8) if given. Raises DamagedError."""
    coded = parse(payload, dtype, size)
    if out is None:
        out = np.empty(size, np.uint8)
    values = out.view(WORDS[coded.bits])

    def work(first: int, last: int) -> None:
        begin = first * coded.lanes * coded.rows
        decode_segments(coded, first, last, values[begin : last * coded.lanes * coded.rows])

    spread(work, coded.segments, threads)
    return out


def decode_segments(coded: Coded, first: int, last: int, out: Array) -> None:
    """Decode segments first to last into `out`, their values. Raises DamagedError."""
    if len(coded.planes) == 1:
        plane = coded.planes[0]
        _decode_plane(coded, plane, first, last, out, plane.width if coded.rotated else 0)
        return
    per_segment = coded.lanes * coded.rows
    step = max(_LEAST_PIECE // per_segment, 1)
    for segment in range(first, last, step):
        begin = (segment - first) * per_segment
        piece = out[begin : begin + step * per_segment]
        piece[:] = 0
        for plane in coded.planes:
            values = np.empty(piece.size, WORDS[plane.width])
            _decode_plane(coded, plane, segment, min(segment + step, last), values, 0)
            np.left_shift(piece, plane.width, out=piece)
            np.bitwise_or(piece, values, out=piece)
        if coded.rotated:
            one = piece.dtype.type(1)
            np.bitwise_or(piece >> one, piece << piece.dtype.type(coded.bits - 1), out=piece)


def _encode_plane(
    values: Array, width: int, rotate: int, prefix: int, lanes: int, rows: int, threads: int
) -> tuple[bytes, list[list[Array]]]:
    """A plane's entry in the directory, and its sections, each in pieces."""
    if prefix == 0 and not rotate:
        return PLANE.pack(width, width, 0, 0, 0, 0), [[values.view(np.uint8)]]
    per_segment = lanes * rows
    segments = -(-values.size // per_segment)
    histogram = np.zeros((segments, 1 << prefix), np.uint32)
    raw_bits = width - prefix

    def count(first: int, last: int) -> None:
        segment_values = values[first * per_segment : last * per_segment]
        rans.count_prefixes(segment_values, rotate, raw_bits, per_segment, histogram[first:last])

    spread(count, segments, threads)
    while np.count_nonzero(total := histogram.sum(0, dtype=np.int64)) > rans.MAX_SYMBOLS:
        histogram = histogram[:, ::2] + histogram[:, 1::2]
        raw_bits += 1
    used = np.flatnonzero(total)
    model = PlaneModel.build(np.ascontiguousarray(histogram[:, used]), used, histogram.shape[1])
    words, counts, states, raw = _code_segments(values, rotate, raw_bits, lanes, rows, model, threads)
    sections = [[np.frombuffer(model.text, np.uint8)]]
    if model.precision:
        sections += [[model.ids]] * (len(model.frequencies) > 1) + [[counts], [states], words]
    entry = PLANE.pack(
        *(width, raw_bits, model.precision, len(model.frequencies) if model.precision else 0),
        *(len(model.text), int(counts.sum())),
    )
    return entry, [*sections, raw]


def _code_segments(
    values: Array, rotate: int, raw_bits: int, lanes: int, rows: int, model: PlaneModel, threads: int
) -> tuple[list[Array], Array, Array, list[Array]]:
    """Words (a piece a range), word counts, states and packed raw bits (in one piece) of all segments."""
    per_segment = lanes * rows
    segments = -(-values.size // per_segment)
    steps = np.zeros((len(model.frequencies), 5, rans.MAX_SYMBOLS), np.uint64)
    for table, frequencies in zip(steps, model.frequencies, strict=True):
        rans.encoding_table(frequencies, model.precision, table)
    counts = np.zeros(segments, np.uint32)
    states = np.zeros((segments, lanes), np.uint32)

    words = np.empty(values.size if model.precision else 0, np.uint16)
    raw = np.zeros(raw_size(values.size, lanes, rows, raw_bits), np.uint32)

    def work(first: int, last: int) -> Array:
        range_words = words[first * per_segment : last * per_segment]
        written = rans.encode_segments(
            *(values, rotate, raw_bits, first, last, lanes, rows, model.symbols, steps, len(model.frequencies)),
            *(model.ids, np.empty(per_segment if model.precision else 0, np.uint16), range_words, counts, states),
            *(raw[raw_size(first * per_segment, lanes, rows, raw_bits) :], np.empty(lanes, np.uint8)),
        )
        return range_words[: int(written)]

    return spread(work, segments, threads), counts, states, [raw]


def _decode_plane(coded: Coded, plane: Plane, first: int, last: int, out: Array, rotate: int) -> None:
    if plane.raw_bits == plane.width:
        begin = first * coded.lanes * coded.rows
        out[:] = plane.raw[begin : begin + out.size]
        return
    bad = rans.decode_segments(
        *(out, rotate, plane.raw_bits, first, last, coded.count, coded.lanes, coded.rows, plane.constant),
        *(plane.precision, plane.entries, plane.ids, plane.starts, plane.states, plane.words, plane.raw),
        np.empty(coded.lanes, np.uint32),
    )
    if bad >= 0:
        raise damaged(f"segment {bad} does not decode")


def spread(work: Callable[[int, int], T], segments: int, threads: int) -> list[T]:
    """`work(first, last)` over all segments, some of them at a time on `threads` threads; results in order."""
    if threads <= 1 or segments < 4:
        return [work(0, segments)]
    edges = np.linspace(0, segments, min(2 * threads, segments) + 1).astype(int).tolist()
    return list(_pool(threads).map(work, edges[:-1], edges[1:]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="squeeze-floats")
