"""Products with packed integer weights on the CPU: codes are decoded in registers, so only codes are read from memory.

Activations become integers of 15 bits with one scale for every chunk of at most 256 inputs, which lies within a group.
The sum of a chunk is an integer: unsigned codes times activations in pairs, minus the zero point times the sum of
activations; then it is scaled. Rounding activations errs by at most 2^-15 of the largest one in the chunk, some
hundredths of the error of 4-bit weights. Words are little-endian, so bytes hold codes in order.
"""

from dataclasses import dataclass

import numpy as np
import torch

from squeeze.checkpoint import quantized as packing
from squeeze.kernels.dequant import Packed
from squeeze.kernels.w4a16.decoder import UNIT, decoder
from squeeze.numerics.exact import quantise
from squeeze.numerics.jit import inline, kernel
from squeeze.system.parallel import parallel_ranges

_TOP = 16383  # the largest activation: 256 of them times 255, and the same for zero points, fit 32 bits
_CHUNK = 256
_WIDTHS = (2, 4, 8)  # bits of codes that lie whole in bytes
_ROWS = 4  # output channels at a time
_LEAST_WORK = 1 << 21  # codes that are worth a thread


@dataclass(frozen=True)
class Prepared:
    """A weight as the CPU's kernels take it, with scales and zero points by chunk.

    bits: 2, 4 or 8; codes of 3 bits are widened to 4, and of 5, 6 and 7 to 8.
    """

    codes: np.ndarray  # uint8 [O, bytes]
    scales: np.ndarray  # float32 [O, C]
    zeros: np.ndarray  # uint8 [O, C]
    bits: int
    chunk: int


def prepare(packed: Packed) -> Prepared | None:
    """Prepare a weight; return None for codebooks, and for groups or inputs that are not multiples of 32."""
    size = min(packed.group_size, packed.inputs)
    if packed.codebook is not None or packed.global_scale is not None or size == 0:
        return None
    if packed.inputs % size or size % 32:
        return None
    chunk = max(n for n in range(32, min(size, _CHUNK) + 1, 32) if size % n == 0)
    bits, words = packed.bits, packed.words
    wide = 4 if bits == 2 and chunk % 64 else next(width for width in _WIDTHS if width >= bits)
    if wide != bits:
        words, bits = packing.pack(packing.unpack(words, bits, packed.inputs), wide), wide
    scales = packed.scales[0].to(torch.float32)
    zeros = packed.zeros
    if zeros is None:
        zeros = torch.full(scales.shape, 1 << (packed.bits - 1), dtype=torch.uint8)
    chunks_of_group = size // chunk
    return Prepared(
        words.contiguous().numpy().view(np.uint8),
        scales.repeat_interleave(chunks_of_group, 1).contiguous().numpy(),
        zeros.repeat_interleave(chunks_of_group, 1).contiguous().numpy(),
        bits,
        chunk,
    )


def matmul(x: torch.Tensor, weight: Prepared, threads: int = 1) -> torch.Tensor:
    """Multiply x float32 [R, I] to float32 [R, O]. It is meant for few rows, because each decodes the weight again."""
    values = x.numpy()
    (rows, inputs), outputs = values.shape, len(weight.codes)
    chunks = inputs // weight.chunk
    integers, scales = np.empty((rows, inputs), np.int16), np.empty((rows, chunks), np.float32)
    sums, out = np.empty((rows, chunks), np.int32), np.empty((rows, outputs), np.float32)
    _round(values, weight.chunk, 8 // weight.bits, np.empty(weight.chunk, np.int16), integers, scales, sums)

    def work(first: int, last: int) -> None:
        _multiply(
            *(weight.codes, weight.scales, weight.zeros, weight.bits, weight.chunk, integers, scales, sums),
            *(first * _ROWS, min(last * _ROWS, outputs), np.empty(_ROWS, np.float32), out),
        )

    workers = min(threads, outputs * inputs // _LEAST_WORK)
    parallel_ranges(work, -(-outputs // _ROWS), workers)
    return torch.from_numpy(out)


def dequantize(weight: Prepared, first: int, last: int, out: torch.Tensor) -> None:
    """Write output channels first to last to `out`, float32 [last - first, I]."""
    _expand(weight.codes, weight.scales, weight.zeros, weight.bits, weight.chunk, first, last, out.numpy())


_four2, _four4, _four8 = decoder(_ROWS, 2), decoder(_ROWS, 4), decoder(_ROWS, 8)
_one2, _one4, _one8 = decoder(1, 2), decoder(1, 4), decoder(1, 8)


@kernel
def _round(x, chunk, fields, scratch, integers, scales, sums):
    """Round activations to integers, grouped by the fields of bytes, with scales and sums by chunk."""
    unit = UNIT * fields
    for r in range(x.shape[0]):
        for c in range(scales.shape[1]):
            start = c * chunk
            scales[r, c] = quantise(x[r, start : start + chunk], np.float32(_TOP), scratch)
            total = np.int32(0)
            for i in range(chunk):
                total += np.int32(scratch[i])
            sums[r, c] = total
            for begin in range(0, chunk, unit):
                for field in range(fields):
                    for i in range(UNIT):
                        integers[r, start + begin + field * UNIT + i] = scratch[begin + i * fields + field]


@kernel
def _multiply(codes, scales, zeros, bits, chunk, integers, a_scales, a_sums, first, last, results, out):
    """Compute output channels first to last of out float32 [R, O], four at a time; results: scratch of 4."""
    stride, chunks = codes.shape[1], scales.shape[1]
    units = chunk * bits // (8 * UNIT)
    o = first
    while o < last:
        count = _ROWS if last - o >= _ROWS else 1
        for r in range(out.shape[0]):
            if count == _ROWS and bits == 4:
                _four4(codes, scales, zeros, integers, a_scales, a_sums, o, r, stride, chunks, units, results)
            elif count == _ROWS and bits == 8:
                _four8(codes, scales, zeros, integers, a_scales, a_sums, o, r, stride, chunks, units, results)
            elif count == _ROWS:
                _four2(codes, scales, zeros, integers, a_scales, a_sums, o, r, stride, chunks, units, results)
            elif bits == 4:
                _one4(codes, scales, zeros, integers, a_scales, a_sums, o, r, stride, chunks, units, results)
            elif bits == 8:
                _one8(codes, scales, zeros, integers, a_scales, a_sums, o, r, stride, chunks, units, results)
            else:
                _one2(codes, scales, zeros, integers, a_scales, a_sums, o, r, stride, chunks, units, results)
            for n in range(count):
                out[r, o + n] = results[n]
        o += count


@inline
def _expand_fields(codes, scale, zero, bits, out):
    fields = 8 // bits
    mask = (1 << bits) - 1
    for i in range(codes.size):
        byte = np.int32(codes[i])
        for field in range(fields):
            out[i * fields + field] = np.float32(((byte >> (bits * field)) & mask) - zero) * scale


@kernel
def _expand(codes, scales, zeros, bits, chunk, first, last, out):
    size = chunk * bits // 8
    for o in range(first, last):
        for c in range(scales.shape[1]):
            chunk_codes, target = codes[o, c * size : (c + 1) * size], out[o - first, c * chunk : (c + 1) * chunk]
            scale, zero = scales[o, c], np.int32(zeros[o, c])
            if bits == 4:
                _expand_fields(chunk_codes, scale, zero, 4, target)
            elif bits == 8:
                _expand_fields(chunk_codes, scale, zero, 8, target)
            else:
                _expand_fields(chunk_codes, scale, zero, 2, target)
