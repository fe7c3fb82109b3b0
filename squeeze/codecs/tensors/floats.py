"""Lossless coding of tensors: bf16, fp16, fp32, fp64, fp8 and integers, every bit pattern kept.

A float is rotated left by one bit, so that its exponent and the first bits of
its mantissa lead and the sign trails, and cut into *planes* (often one). In a
plane the leading bits of each value, its *prefix*, are coded by rANS (rans.py)
with up to MAX_TABLES frequency tables a tensor, and the bits behind it, which
are noise, stay raw. How many bits are prefix is measured on a sample. A plane
where nothing pays is raw, a tensor where nothing pays is stored.

`encode` and `decode` turn one tensor's bytes into a payload and back; how it
lies in bytes is float_payload.py's, how an encoder chooses float_layout.py's and
float_models.py's; names, shapes and checksums are the container's (squeeze/packing).
"""

import ctypes
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.tensors import planes, rans
from squeeze.codecs.tensors.float_layout import choose
from squeeze.codecs.tensors.float_models import PlaneModel, spread
from squeeze.codecs.tensors.float_payload import (
    DTYPES,
    FORMAT,
    HEAD,
    LAYOUTS,
    WORDS,
    Array,
    Coded,
    geometry,
    parse,
    raw_size,
)
from squeeze.codecs.tensors.float_writer import Writer, most_bytes
from squeeze.codecs.tensors.plane_fields import WIDTH
from squeeze.codecs.tensors.tables import damaged
from squeeze.system.arena import fresh

__all__ = ["decode", "decode_segments", "encode", "estimate", "spread"]

_LEAST_VALUES = 32  # below this a tensor is stored
_TOGETHER = 1 << 17  # values of which all planes are decoded before the next ones: as many as a cache holds


def encode(data: Array, dtype: str, threads: int = 1, columns: int = 0) -> Array | None:
    """The payload (uint8, a multiple of 8 bytes) of a tensor's little-endian bytes, or None where it is no shorter.

    `dtype` is safetensors' name of the type, a key of DTYPES. `columns` makes no difference here.
    """
    bits, rotated = DTYPES[dtype]
    values = data.view(WORDS[bits])
    if values.size < _LEAST_VALUES:
        return None
    lanes, rows = geometry(values.size)
    choice = choose(values, bits, rotated, lanes, rows)
    if choice.cost >= bits * values.size:
        return None
    widths, drop, rotate = LAYOUTS[choice.layout], bits, bits if rotated else 0
    head = HEAD.pack(FORMAT, choice.layout, rotated, lanes.bit_length() - 1, rows, values.size)
    writer = Writer(most_bytes(values.size, widths, lanes, rows), head, len(widths))
    for number, (width, prefix) in enumerate(zip(widths, choice.prefixes, strict=True)):
        counts = choice.counts[number] if choice.counts else None
        drop -= width
        source = _Source(values, rotate, drop, lanes, rows, threads)
        if bits == 64:
            plane = np.empty(values.size, WORDS[width])
            planes.cut_plane(values, rotate, drop, plane)
            source = _Source(plane, 0, 0, lanes, rows, threads)
        _encode_plane(writer, source, width, prefix, counts)
    payload = writer.payload(lanes)
    return payload if payload.size < data.size else None


def estimate(data: Array, dtype: str) -> float:
    """About how many bits `encode` would need for a tensor's bytes."""
    bits, rotated = DTYPES[dtype]
    values = data.view(WORDS[bits])
    if values.size < _LEAST_VALUES:
        return 8.0 * data.size
    return min(choose(values, bits, rotated, *geometry(values.size)).cost, 8.0 * data.size)


def decode(payload: Array, dtype: str, size: int, threads: int = 1, out: Array | None = None) -> Array:
    """The `size` bytes that `payload` was coded from, into `out` (uint8) if given. Raises DamagedError."""
    coded = parse(payload, dtype, size)
    if out is None:
        out = fresh(size)
    decode_segments(coded, 0, coded.segments, out.view(WORDS[coded.bits]), threads)
    return out


def decode_segments(coded: Coded, first: int, last: int, out: Array, threads: int = 1) -> None:
    """Decode segments first to last into `out`, their values. Raises DamagedError."""
    per_segment, slots = coded.lanes * coded.rows, coded.slots()

    def work(begin: int, end: int) -> None:
        _decode(coded, slots, first + begin, first + end, out[begin * per_segment : end * per_segment])

    spread(work, last - first, threads)


def _decode(coded: Coded, slots: Array, first: int, last: int, out: Array) -> None:
    per_segment = coded.lanes * coded.rows
    step = last - first if len(coded.fields) == 1 else max(_TOGETHER // per_segment, 1)
    if coded.bits <= 32:
        _decode_planes(coded, coded.fields, slots, coded.bits, coded.rotated, first, last, step, out)
        return
    for segment in range(first, last, step):  # planes of 64 bits are decoded by themselves
        end, drop = min(segment + step, last), coded.bits
        piece = out[(segment - first) * per_segment : (end - first) * per_segment]
        for number, width in enumerate(coded.fields[:, WIDTH].tolist()):
            drop -= width
            values = np.empty(piece.size, WORDS[width])
            _decode_planes(coded, coded.fields[number : number + 1], slots, width, False, segment, end, step, values)
            rotate = coded.bits if coded.rotated and drop == 0 else 0
            planes.put_plane(piece, rotate, drop, number > 0, values, 0)


def _decode_planes(
    coded: Coded, fields: Array, slots: Array, bits: int, rotated: bool, first: int, last: int, step: int, out: Array
) -> None:
    """Values of some planes that are `bits` wide together."""
    payload = coded.payload
    bad = planes.decode_planes(
        *(out, bits, rotated, first, last, step, coded.count, coded.lanes, coded.rows, fields, slots, payload),
        *(payload.view(np.uint16), payload.view(np.uint32), np.empty(2 * rans.MAX_LANES, np.uint32)),
        *(np.empty((2, 5), np.int64), np.empty(len(fields), np.int64)),
    )
    if bad >= 0:
        raise damaged(f"segment {bad} does not decode")


@dataclass(frozen=True)
class _Source:
    """Values that a plane is taken out of, as rans.py says, and how they are coded."""

    values: Array
    rotate: int
    drop: int
    lanes: int
    rows: int
    threads: int

    @property
    def per_segment(self) -> int:
        return self.lanes * self.rows

    def raw_size(self, count: int, raw_bits: int) -> int:
        return raw_size(count, self.lanes, self.rows, raw_bits)


def _encode_plane(writer: Writer, source: _Source, width: int, prefix: int, prefix_counts: Array | None) -> None:
    """Write a plane's entry in the directory and its sections."""
    values, rotate, drop, per_segment = source.values, source.rotate, source.drop, source.per_segment
    segments = -(-values.size // per_segment)
    if prefix == 0 and not (rotate and width == rotate):
        raw = writer.room(values.size, WORDS[width])

        def cut(first: int, last: int) -> None:
            part = slice(first * per_segment, last * per_segment)
            planes.cut_plane(values[part], rotate, drop, raw[part])

        spread(cut, segments, source.threads)
        writer.add_plane(width, width, 0, 0, 0, 0)
        writer.close(raw.view(np.uint8))
        return
    below = drop + width - prefix
    model = PlaneModel.build(values, rotate, below, prefix, per_segment, source.threads, prefix_counts)
    raw_bits, words = width - model.prefix_bits, 0
    writer.add(model.text)
    if model.precision:
        if len(model.frequencies) > 1:
            writer.add(model.ids.tobytes())
        words = _encode_words(writer, source, raw_bits, model)
    raw = writer.room(source.raw_size(values.size, raw_bits), np.uint32)
    if raw_bits:

        def pack(first: int, last: int) -> None:
            part = raw[source.raw_size(first * per_segment, raw_bits) :]
            planes.pack_raw(values, rotate, drop, raw_bits, first, last, source.lanes, source.rows, part)

        spread(pack, segments, source.threads)
    writer.close(raw)
    tables = len(model.frequencies) if model.precision else 0
    writer.add_plane(width, raw_bits, model.precision, tables, len(model.text), words)


def _encode_words(writer: Writer, source: _Source, raw_bits: int, model: PlaneModel) -> int:
    """Write counts of words, states and words of all segments; how many words."""
    values, per_segment, bits = source.values, source.per_segment, model.prefix_bits
    counts = writer.room(model.ids.size, np.uint32)
    writer.close(counts)
    states = writer.room(model.ids.size * source.lanes, np.uint32)
    writer.close(states)
    words, states = writer.room(values.size, np.uint16), states.reshape(-1, source.lanes)
    table = np.zeros((len(model.frequencies), 1 << bits), np.uint32)
    for row, frequencies in zip(table, model.frequencies, strict=True):
        rans.encoding_table(frequencies, model.prefixes, row)
    flat = table.reshape(-1)

    def work(first: int, last: int) -> tuple[int, int]:
        scratch = np.empty(per_segment + rans.SLACK, np.uint16)
        state, at = np.empty(rans.MAX_LANES, np.uint32), np.empty(3, np.int64)
        written = rans.encode_segments(
            *(values, source.rotate, source.drop, raw_bits, bits, first, last, source.lanes, source.rows),
            *(model.precision, flat, model.ids, words[first * per_segment : last * per_segment], counts, states),
            *(scratch, state, at),
        )
        return first * per_segment, int(written)

    end = 0
    for start, count in spread(work, model.ids.size, source.threads):
        if start != end:  # what other threads wrote moves up
            ctypes.memmove(words.ctypes.data + 2 * end, words.ctypes.data + 2 * start, 2 * count)
        end += count
    writer.close(words[:end])
    return end
