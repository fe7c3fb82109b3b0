"""Tiles of a packed tensor on the CPU: each is decoded by the thread that takes it, and multiplied at once if wanted.

Threads are torch's. A job is an array of integers, with the addresses of other arrays. A tile that is multiplied is
decoded into memory of its thread that stays in the cache. If a row of the weight spans tiles, its partial sums are
added in order at the end, so the result depends neither on threads nor on the other rows of x.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from squeeze.numerics import openmp
from squeeze.numerics.codegen import cgutils, intrinsic, ir, populate_array, types
from squeeze.numerics.jit import callback, compiling_copy, inline
from squeeze.numerics.team import add_atomic
from squeeze.numerics.vectors import dots_of_four, dots_of_one
from squeeze.packing.tensors import fixed, rans
from squeeze.packing.tensors.fixed_blocks import KNOWN, LEVELS, SLACK, decode_blocks
from squeeze.packing.tensors.fixed_groups import GROUP, KINDS
from squeeze.packing.tensors.float_payload import Coded
from squeeze.packing.tensors.plane import COLUMNS as PLANE_COLUMNS
from squeeze.packing.tensors.planes import decode_planes
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import scratch

__all__ = ["DTYPES", "Tiles"]

_LINE = 8
# Shared by threads, a cache line each: the next tile, the threads so far, the tiles done, 1 + a damaged segment.
NEXT, CAME, DONE, FAULT = range(0, 4 * _LINE, _LINE)
(
    FIRST, LAST, PER_TILE, COUNT,  # tiles; values of a tile and of the tensor
    OUT, SPACE, SPACE_SIZE,  # working space, and the bytes of a thread's
    ROWS, X, OUTPUTS, INPUTS, PARTS,  # x [rows, inputs], out [rows, outputs], parts [tiles, rows], float32
    PAYLOAD, PAYLOAD_SIZE,
    BLOCKS, RECORD, NAMES, COUNTS, STARTS,  # of fixed.Coded
    BITS, ROTATED, LANES, SEGMENT_ROWS, PLANES, FIELDS, SLOTS, SLOTS_SIZE,  # of float_payload.Coded
) = range(4 * _LINE, 4 * _LINE + 27)  # fmt: skip
SIZE = SLOTS_SIZE + 1
SEGMENTS = 2  # of a tile: decoded side by side


@intrinsic
def _array(typingctx, address, shape, kind):
    """Return the array of numbers of a type at an address; shape: int64, or two."""
    sizes = list(shape) if isinstance(shape, types.BaseTuple) else [shape]
    array_type = types.Array(kind.dtype, len(sizes), "C")

    def codegen(context, builder, signature, arguments):
        array = context.make_array(array_type)(context, builder)
        itemsize = ir.IntType(64)(kind.dtype.bitwidth // 8)
        lengths = cgutils.unpack_tuple(builder, arguments[1]) if len(sizes) > 1 else [arguments[1]]
        strides = [builder.mul(itemsize, lengths[1]), itemsize] if len(sizes) > 1 else [itemsize]
        data = builder.inttoptr(arguments[0], array.data.type)
        populate_array(array, data=data, shape=lengths, strides=strides, itemsize=itemsize, meminfo=None)
        return array._getvalue()

    given = types.UniTuple(types.int64, 2) if len(sizes) > 1 else types.int64
    return array_type(types.int64, given, kind), codegen


@intrinsic
def _address(typingctx, pointer):
    def codegen(context, builder, signature, arguments):
        return builder.ptrtoint(arguments[0], ir.IntType(64))

    return types.int64(types.voidptr), codegen


@inline
def _arrive(job, tile):
    """Return where the working space of a thread that took a tile begins."""
    return job[SPACE] + add_atomic(job, CAME, 1) * job[SPACE_SIZE] if tile < job[LAST] else 0


@inline
def _take(job):
    return job[FIRST] + add_atomic(job, NEXT, 1)


@inline
def _size(job, tile):
    return min(job[COUNT] - tile * job[PER_TILE], job[PER_TILE])


@inline
def _target(job, tile, space, itemsize):
    """Return where a tile is decoded."""
    return space if job[ROWS] else job[OUT] + (tile - job[FIRST]) * job[PER_TILE] * itemsize


@inline
def _finish(job, tile, bad, values):
    if bad >= 0:
        job[FAULT] = bad + 1
    elif job[ROWS]:
        _multiply(job, tile, values)
    is_last = add_atomic(job, DONE, 1) == job[LAST] - job[FIRST] - 1
    if is_last and job[ROWS]:
        _add_parts(job)


@inline
def _multiply(job, tile, values):
    """Multiply a tile's rows by those of x, to `out`; the sums of a row that began in an earlier tile go to `parts`."""
    rows, inputs, outputs, begin = job[ROWS], job[INPUTS], job[OUTPUTS], tile * job[PER_TILE]
    x, out = _array(job[X], rows * inputs, np.float32), _array(job[OUT], rows * outputs, np.float32)
    parts = _array(job[PARTS], (job[LAST] + 1) * rows, np.float32)
    at, output, column = 0, begin // inputs, begin % inputs
    while at < values.size:
        count = min(inputs - column, values.size - at)
        target, place, stride = (parts, tile * rows, 1) if column else (out, output, outputs)
        row = 0
        while row + 4 <= rows:
            dots_of_four(values, at, x, row * inputs + column, inputs, count, target, place + row * stride, stride)
            row += 4
        while row < rows:
            dots_of_one(values, at, x, row * inputs + column, inputs, count, target, place + row * stride, stride)
            row += 1
        at, output, column = at + count, output + 1, 0


@inline
def _add_parts(job):
    rows, inputs, outputs = job[ROWS], job[INPUTS], job[OUTPUTS]
    out = _array(job[OUT], rows * outputs, np.float32)
    parts = _array(job[PARTS], job[LAST] * rows, np.float32)
    for tile in range(job[LAST]):
        begin = tile * job[PER_TILE]
        if begin % inputs:
            for row in range(rows):
                out[row * outputs + begin // inputs] += parts[tile * rows + row]


def fixed_worker(view: type):
    """Compile the work of a thread on a tensor of fixed.py; `view` is a type of fixed_groups.KINDS."""
    itemsize = np.dtype(view).itemsize

    def work(pointer):
        job = _array(_address(pointer), SIZE, np.int64)
        tile = _take(job)
        space = _arrive(job, tile)
        while tile < job[LAST]:
            values = _array(_target(job, tile, space, itemsize), _size(job, tile), view)
            rest = space + job[PER_TILE] * itemsize
            _finish(job, tile, _decode_fixed(job, tile, values, rest, view), values)
            tile = _take(job)

    return callback(work)


@inline
def _decode_fixed(job, block, values, space, view):
    shape, size = job[BLOCKS], job[PER_TILE] + SLACK
    payload = _array(job[PAYLOAD], job[PAYLOAD_SIZE], np.uint8)
    longs = _array(job[PAYLOAD], job[PAYLOAD_SIZE] >> 2, np.uint32)
    names = _array(job[NAMES], (shape, LEVELS * KNOWN), np.uint8)
    counts = _array(job[COUNTS], (shape, LEVELS), np.uint32)
    starts = _array(job[STARTS], shape, np.int64)
    one_level, other = _array(space, size, np.uint8), _array(space + size, size, np.uint8)
    tail, prefixes = _array(space + 2 * size, GROUP, view), _array(space + 2 * size + 256, GROUP, np.uint8)
    return decode_blocks(
        values, block, block + 1, job[PER_TILE], job[RECORD], names, counts, payload, longs, starts[block],
        one_level, other, prefixes, tail,
    )  # fmt: skip


def rans_worker(view: type):
    """Compile the work of a thread on a tensor of floats.py."""
    itemsize = np.dtype(view).itemsize
    words = np.dtype(f"u{itemsize}").type

    def work(pointer):
        job = _array(_address(pointer), SIZE, np.int64)
        tile = _take(job)
        space = _arrive(job, tile)
        while tile < job[LAST]:
            target, size = _target(job, tile, space, itemsize), _size(job, tile)
            bad = _decode_rans(job, tile, _array(target, size, words), space + job[PER_TILE] * itemsize)
            _finish(job, tile, bad, _array(target, size, view))
            tile = _take(job)

    return callback(work)


@inline
def _decode_rans(job, tile, values, space):
    first, size, planes = tile * SEGMENTS, job[PAYLOAD_SIZE], job[PLANES]
    last = first + -(-values.size // (job[LANES] * job[SEGMENT_ROWS]))
    payload, halves = _array(job[PAYLOAD], size, np.uint8), _array(job[PAYLOAD], size >> 1, np.uint16)
    longs, slots = _array(job[PAYLOAD], size >> 2, np.uint32), _array(job[SLOTS], job[SLOTS_SIZE], np.uint32)
    fields = _array(job[FIELDS], (planes, PLANE_COLUMNS), np.int64)
    at, starts = _array(space, (2, 5), np.int64), _array(space + 128, planes, np.int64)
    state = _array(space + 256, 2 * rans.MAX_LANES, np.uint32)
    return decode_planes(
        values, job[BITS], job[ROTATED] > 0, first, last, last - first, job[COUNT], job[LANES], job[SEGMENT_ROWS],
        fields, slots, payload, halves, longs, state, at, starts,
    )  # fmt: skip


DTYPES = ("BF16", "F16", "F32")
_REST = 1 << 10  # bytes of working space besides tiles


class Tiles:
    """A parsed payload in tiles of `values` values."""

    def __init__(self, coded: Coded | fixed.Coded, dtype: str) -> None:
        """Take a parsed payload; dtype is one of DTYPES."""
        self.coded, self.itemsize = coded, np.dtype(KINDS[dtype][0]).itemsize
        self._is_fixed = isinstance(coded, fixed.Coded)
        self.segments = 1 if self._is_fixed else SEGMENTS  # of a tile
        self.values = coded.lanes * coded.rows * self.segments
        self.count = -(-coded.count // self.values)
        self._worker = _worker(dtype, self._is_fixed)
        self._job = self._template()

    def _template(self) -> np.ndarray:
        coded, job = self.coded, np.zeros(SIZE, np.int64)
        job[PER_TILE], job[COUNT] = self.values, coded.count
        job[PAYLOAD], job[PAYLOAD_SIZE] = coded.payload.ctypes.data, coded.payload.size
        space = self.values * self.itemsize + _REST
        if isinstance(coded, fixed.Coded):
            job[BLOCKS], job[RECORD] = coded.segments, coded.record
            for place, array in ((NAMES, coded.names), (COUNTS, coded.counts), (STARTS, coded.starts)):
                job[place] = array.ctypes.data
            space += 2 * (self.values + SLACK)
        else:
            job[BITS], job[ROTATED], job[LANES] = coded.bits, coded.rotated, coded.lanes
            job[SEGMENT_ROWS], job[PLANES] = coded.rows, len(coded.fields)
            job[FIELDS] = coded.fields.ctypes.data
        job[SPACE_SIZE] = -(-space // 64) * 64
        return job

    def decode(self, first: int, last: int, out: np.ndarray, threads: int) -> None:
        """Decode tiles first to last into the memory of `out`, contiguous. Raises DamagedError."""
        self._run(first, last, out.ctypes.data, threads, self._job.copy())

    def multiply(self, x: torch.Tensor, outputs: int, threads: int) -> torch.Tensor:
        """Multiply x [..., I] by the tensor as a matrix [outputs, I] to float32 [..., outputs].

        Args:
            x: activations.
            outputs: rows of the matrix.
            threads: threads of torch.

        Raises DamagedError.
        """
        inputs, x, job = x.shape[-1], x.float().contiguous(), self._job.copy()
        out = torch.empty((*x.shape[:-1], outputs), dtype=torch.float32)
        job[ROWS], job[INPUTS], job[OUTPUTS] = x.numel() // inputs, inputs, outputs
        job[X] = x.data_ptr()
        self._run(0, self.count, out.data_ptr(), threads, job)
        return out

    def _run(self, first: int, last: int, out: int, threads: int, job: np.ndarray) -> None:
        threads = threads if last - first > 1 else 1
        size = min(threads, last - first) * int(job[SPACE_SIZE])
        space = scratch(size + 4 * last * int(job[ROWS]))
        job[FIRST], job[LAST], job[OUT], job[SPACE] = first, last, out, space.ctypes.data
        job[PARTS] = job[SPACE] + size
        if isinstance(self.coded, Coded):
            slots = self.coded.slots()
            job[SLOTS], job[SLOTS_SIZE] = slots.ctypes.data, slots.size
        openmp.run(self._worker, job, threads)
        if job[FAULT]:
            raise damaged(f"{'block' if self._is_fixed else 'segment'} {job[FAULT] - 1} does not decode")


@cache
def _worker(dtype: str, is_fixed: bool) -> Any:
    here = compiling_copy(__name__)  # no library has callbacks
    return (here.fixed_worker if is_fixed else here.rans_worker)(KINDS[dtype][0])
