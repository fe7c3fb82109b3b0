"""Lossless coding of tensors: bf16, fp16, fp32, fp64, fp8 and integers, every bit pattern kept.

A float is rotated left by one bit, so that its exponent and the first bits of
its mantissa lead and the sign trails, and cut into *planes* (often one). In a
plane the leading bits of each value, its *prefix*, are coded by rANS (rans.py)
with up to MAX_TABLES frequency tables a tensor, and the bits behind it, which
are noise, stay raw. How many bits are prefix is measured on a sample. A plane
where nothing pays is raw, a tensor where nothing pays is stored.

`encode` and `decode` turn one tensor's bytes into a payload and back; how it
lies in bytes is float_payload.py's, how an encoder chooses and writes it float_plan.py's;
names, shapes and checksums are the container's (squeeze/packing).
"""

import numpy as np

from squeeze.packing.tensors import planes, rans, small
from squeeze.packing.tensors.content import Content, InMemory
from squeeze.packing.tensors.float_payload import CHOICES, DTYPES, LAYOUTS, WORDS, Array, Coded, geometry, parse
from squeeze.packing.tensors.float_plan import chosen
from squeeze.packing.tensors.float_writer import Writer, in_memory, most_bytes
from squeeze.packing.tensors.plane_fields import WIDTH
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import fresh
from squeeze.system.workers import parallel_ranges

__all__ = ["decode", "decode_segments", "decode_with", "encode", "estimate", "most", "write"]


def encode(data: Array, dtype: str, threads: int = 1, columns: int = 0) -> Array | None:
    """The payload (uint8, a multiple of 8 bytes) of a tensor's little-endian bytes, or None where it is no shorter.

    `dtype` is safetensors' name of the type, a key of DTYPES. `columns` makes no difference here.
    """
    return in_memory(lambda writer: write(InMemory(data), dtype, writer, threads))


def write(content: Content, dtype: str, writer: Writer, threads: int = 1, columns: int = 0) -> int:
    """The same payload, written; its bytes, or 0 where it is no shorter."""
    plan = small.plan_of(content, dtype, threads)
    size = plan.write(writer) if plan else 0
    return size if size < content.size else 0


def most(size: int, dtype: str) -> int:
    """More bytes than the payload of so many takes while it is written."""
    bits, rotated = DTYPES[dtype]
    count = 8 * size // bits
    return max(most_bytes(count, LAYOUTS[layout], *geometry(count)) for layout in CHOICES[bits, rotated])


def estimate(content: Array | Content, dtype: str) -> float:
    """About how many bits `encode` would need for a tensor's bytes."""
    if isinstance(content, np.ndarray):
        content = InMemory(content)
    choice = chosen(content, dtype)
    return min(choice.cost, 8.0 * content.size) if choice else 8.0 * content.size


def decode(payload: Array, dtype: str, size: int, threads: int = 1, out: Array | None = None) -> Array:
    """The `size` bytes that `payload` was coded from, into `out` (uint8) if given. Raises DamagedError."""
    if out is None and size <= small.MOST:
        out = fresh(size)
    if out is not None and small.decode(payload, dtype, out, threads):
        return out
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

    parallel_ranges(work, last - first, threads)


def decode_with(coded: Coded, slots: Array, out: Array) -> None:
    """Decode all segments into `out`, their values, with tables that `coded.slots` made. Raises DamagedError."""
    _decode(coded, slots, 0, coded.segments, out)


def _decode(coded: Coded, slots: Array, first: int, last: int, out: Array) -> None:
    per_segment = coded.lanes * coded.rows
    step = max(last - first, 1) if len(coded.fields) == 1 else max(planes.TOGETHER // per_segment, 1)
    if coded.bits <= 32:
        _decode_planes(coded, coded.fields, slots, coded.bits, coded.rotated, range(first, last, step), out)
        return
    for segment in range(first, last, step):  # planes of 64 bits are decoded by themselves
        end, drop = min(segment + step, last), coded.bits
        piece = out[(segment - first) * per_segment : (end - first) * per_segment]
        for number, width in enumerate(coded.fields[:, WIDTH].tolist()):
            drop -= width
            values = np.empty(piece.size, WORDS[width])
            fields, segments = coded.fields[number : number + 1], range(segment, end, step)
            _decode_planes(coded, fields, slots, width, False, segments, values)
            rotate = coded.bits if coded.rotated and drop == 0 else 0
            planes.put_plane(piece, rotate, drop, number > 0, values, 0)


def _decode_planes(
    coded: Coded, fields: Array, slots: Array, bits: int, rotated: bool, segments: range, out: Array
) -> None:
    """Values of some planes that are `bits` wide together; segments.step: how many are decoded at a time."""
    payload = coded.payload
    bad = planes.decode_planes(
        *(
            out,
            bits,
            rotated,
            segments.start,
            segments.stop,
            segments.step,
            coded.count,
            coded.lanes,
            coded.rows,
            fields,
            slots,
            payload,
        ),
        *(payload.view(np.uint16), payload.view(np.uint32), np.empty(2 * rans.MAX_LANES, np.uint32)),
        *(np.empty((2, 5), np.int64), np.empty(len(fields), np.int64)),
    )
    if bad >= 0:
        raise damaged(f"segment {bad} does not decode")
