"""Trellis codes on the CPU: levels, and products that decode a column 16 rows at a time.

16 rows take a whole number of bits, so each begins at the same place within them everywhere. Eight rows and a state fit
a word of 64 bits.
"""

import numpy as np
import torch

from squeeze.kernels.trellis.reference import STATE_BITS, levels
from squeeze.numerics.codegen import intrinsic, ir, types
from squeeze.numerics.jit import inline, kernel
from squeeze.system.parallel import parallel_ranges

__all__ = ["decode", "matmul"]

_UNIT, _HALF = 16, 8  # rows
_TILE = 512  # rows of a column that are decoded at once
_PADDING = 16  # bytes after a column that a unit may read
_MASK = (1 << STATE_BITS) - 1
_LEAST_WORK = 1 << 19  # weights that are worth a thread


def padded(codes: torch.Tensor) -> np.ndarray:
    """Return codes uint8 [I, bytes] with zeros after each column, as `matmul` takes them."""
    return torch.nn.functional.pad(codes, (0, _PADDING)).numpy()


def decode(codes: torch.Tensor, rows: int, rate: int) -> torch.Tensor:
    """Decode as `reference.decode` does; the columns of the result are contiguous."""
    out = np.empty((len(codes), -(-rows // _UNIT) * _UNIT), np.float32)
    _decode_all(padded(codes), rate, *_tables(rate), out)
    return torch.from_numpy(out)[:, :rows].T


def matmul(x: torch.Tensor, codes: np.ndarray, rows: int, rate: int, threads: int = 1) -> torch.Tensor:
    """Multiply x float32 [R, I] by the levels [O, I] to float32 [R, O].

    Args:
        x: activations.
        codes: the result of `padded`.
        rows: output channels, O.
        rate: bits of a weight, in sixteenths.
        threads: threads that share the rows of the weight.
    """
    values = x.contiguous().numpy()
    tiles = -(-rows // _TILE)
    out = np.zeros((len(values), tiles * _TILE), np.float32)
    tables, units = _tables(rate), -(-rows // _UNIT)

    def work(first: int, last: int) -> None:
        _multiply(values, codes, rate, *tables, first, last, units, np.empty(_TILE, np.float32), out)

    parallel_ranges(work, tiles, min(threads, rows * len(codes) // _LEAST_WORK))
    return torch.from_numpy(out)[:, :rows]


def _tables(rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels, and where each of 16 rows begins in its half of their bits."""
    first = np.arange(_UNIT, dtype=np.uint64) * np.uint64(rate) >> np.uint64(4)
    first[_HALF:] -= first[_HALF]
    return levels().numpy(), first


@intrinsic
def _word(typingctx, column, place):
    """Load 64 bits from a byte of a column on, lowest first; assembling eight bytes would take 16 steps."""

    def codegen(context, builder, signature, arguments):
        bytes_ = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        start = builder.bitcast(builder.gep(bytes_, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(start, align=1)

    return types.uint64(column, types.int64), codegen


@inline
def _half(column, bit, table, starts, first, out, place):
    word = _word(column, bit >> 3) >> np.uint64(bit & 7)
    for i in range(_HALF):
        out[place + i] = table[(word >> starts[first + i]) & np.uint64(_MASK)]


@inline
def _decode(column, rate, table, starts, first, last, out):
    """Decode units of rows first to last, to the start of `out`."""
    for unit in range(first, last):
        place, bit = (unit - first) * _UNIT, unit * rate
        _half(column, bit, table, starts, 0, out, place)
        _half(column, bit + (rate >> 1), table, starts, _HALF, out, place + _HALF)


@kernel
def _decode_all(codes, rate, table, starts, out):
    for i in range(codes.shape[0]):
        _decode(codes[i], rate, table, starts, 0, out.shape[1] // _UNIT, out[i])


@kernel
def _multiply(x, codes, rate, table, starts, first, last, units, scratch, out):
    """Multiply by tiles first to last of the rows of the weight; scratch: rows of a tile."""
    for tile in range(first, last):
        begin = tile * (_TILE // _UNIT)
        end = min(begin + _TILE // _UNIT, units)
        start, count = tile * _TILE, (end - begin) * _UNIT
        for i in range(codes.shape[0]):
            _decode(codes[i], rate, table, starts, begin, end, scratch)
            for r in range(x.shape[0]):
                factor, sums = x[r, i], out[r, start : start + count]
                for row in range(sums.size):
                    sums[row] += factor * scratch[row]
