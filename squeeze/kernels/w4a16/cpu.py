"""Products with packed integers on the CPU: codes are decoded in registers, so only they are read from memory.

Activations become integers of 15 bits with one scale for every chunk of at most 256 inputs, which lies within a group.
A chunk's sum is one of integers: unsigned codes times activations in pairs, less the zero point times the sum of
activations; then it is scaled. The rounding of activations errs by at most 2^-15 of the largest one in the chunk, some
hundredths of what 4-bit rounding of the weights does. Words are little-endian, so bytes hold codes in order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from squeeze.codecs.bitmodels.jit import inline, kernel
from squeeze.codecs.floats import spread
from squeeze.kernels.dequant import Packed
from squeeze.lm.exact import quantise
from squeeze.quant.formats import bits as packing

_UNIT = 16  # bytes decoded at a time: 16, 32 or 64 codes of 8, 4 or 2 bits
_TOP = 16383  # of an activation: a chunk of 256 times 255, and as much for the zero point, fit 32 bits
_CHUNK = 256
_ROWS = 4  # output channels at a time
_LEAST_WORK = 1 << 21  # codes that are worth a thread

_INT8, _INT16, _INT32, _INT64, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


@dataclass(frozen=True)
class Prepared:
    """A weight as the CPU's kernels take it: `bits` 2, 4 or 8 (3 are widened to 4), scales and zeros by chunk."""

    codes: np.ndarray  # uint8 [O, bytes]
    scales: np.ndarray  # float32 [O, C]
    zeros: np.ndarray  # uint8 [O, C]
    bits: int
    chunk: int


def prepare(packed: Packed) -> Prepared | None:
    """None for what the kernels cannot multiply: codebooks, and groups or inputs that are not multiples of 32."""
    size = min(packed.group_size, packed.inputs)
    if packed.codebook is not None or packed.global_scale is not None or size == 0:
        return None
    if packed.inputs % size or size % 32:
        return None
    chunk = max(n for n in range(32, min(size, _CHUNK) + 1, 32) if size % n == 0)
    bits, words = packed.bits, packed.words
    if bits == 3 or (bits == 2 and chunk % 64):
        words, bits = packing.pack(packing.unpack(words, bits, packed.inputs), 4), 4
    scales = packed.scales[0].to(torch.float32)
    zeros = packed.zeros
    if zeros is None:
        zeros = torch.full(scales.shape, 1 << (packed.bits - 1), dtype=torch.uint8)
    each = size // chunk
    return Prepared(
        words.contiguous().numpy().view(np.uint8),
        scales.repeat_interleave(each, 1).contiguous().numpy(),
        zeros.repeat_interleave(each, 1).contiguous().numpy(),
        bits,
        chunk,
    )


def matmul(x: torch.Tensor, weight: Prepared, threads: int = 1) -> torch.Tensor:
    """x float32 [R, I] -> float32 [R, O]. For few rows: each decodes the weight again."""
    values = x.numpy()
    (rows, inputs), outputs = values.shape, len(weight.codes)
    chunks = inputs // weight.chunk
    whole, scales = np.empty((rows, inputs), np.int16), np.empty((rows, chunks), np.float32)
    sums, out = np.empty((rows, chunks), np.int32), np.empty((rows, outputs), np.float32)
    _round(values, weight.chunk, 8 // weight.bits, np.empty(weight.chunk, np.int16), whole, scales, sums)

    def work(first: int, last: int) -> None:
        _multiply(
            *(weight.codes, weight.scales, weight.zeros, weight.bits, weight.chunk, whole, scales, sums),
            *(first * _ROWS, min(last * _ROWS, outputs), np.empty(_ROWS, np.float32), out),
        )

    parts = min(threads, outputs * inputs // _LEAST_WORK)
    spread(work, -(-outputs // _ROWS), parts)
    return torch.from_numpy(out)


def dequantize(weight: Prepared, first: int, last: int, out: torch.Tensor) -> None:
    """Output channels first to last into float32 [last - first, I]."""
    _expand(weight.codes, weight.scales, weight.zeros, weight.bits, weight.chunk, first, last, out.numpy())


def _decoder(rows: int, bits: int) -> Any:
    """A compiled product of `rows` rows of codes with one row of activations.

    The intrinsic's arguments: codes uint8, offset and row stride; scales float32 and zeros uint8, offset and row
    stride; activations int16, their scales float32 and sums int32; chunks, units in a chunk; out float32 [rows].
    A byte's fields are taken apart for 16 bytes at once, so activations of a unit come field by field.
    """
    fields = 8 // bits
    bytes_, wide = ir.VectorType(_INT8, _UNIT), ir.VectorType(_INT16, _UNIT)
    longs, sums = ir.VectorType(_INT32, _UNIT), ir.VectorType(_INT32, _UNIT // 2)
    floats = ir.VectorType(_FLOAT, _UNIT // 2)
    lanes = _UNIT // 2

    def constant(vector: Any, value: int) -> Any:
        return ir.Constant(vector, [value] * vector.count)

    def shuffle(builder: Any, vector: Any, indices: Any) -> Any:
        mask = ir.Constant(ir.VectorType(_INT32, len(indices)), list(indices))
        return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)

    def products(builder: Any, code: Any, value: Any) -> Any:
        """int32 [8]: sums of pairs."""
        product = builder.mul(builder.sext(code, longs), builder.sext(value, longs), flags=["nsw"])
        even, odd = shuffle(builder, product, range(0, _UNIT, 2)), shuffle(builder, product, range(1, _UNIT, 2))
        return builder.add(even, odd)

    def unit(builder: Any, codes: Any, values: Any, totals: list[Any]) -> list[Any]:
        """Add the products of 16 bytes of each row."""
        activations = []
        for field in range(fields):
            address = builder.bitcast(builder.gep(values, [_INT64(_UNIT * field)]), wide.as_pointer())
            activations.append(builder.load(address, align=2))
        added = []
        for start, before in zip(codes, totals, strict=True):
            packed, total = (
                builder.zext(builder.load(builder.bitcast(start, bytes_.as_pointer()), align=1), wide),
                before,
            )
            for field, value in enumerate(activations):
                code = builder.lshr(packed, constant(wide, bits * field)) if field else packed
                if field < fields - 1:
                    code = builder.and_(code, constant(wide, (1 << bits) - 1))
                total = builder.add(total, products(builder, code, value))
            added.append(total)
        return added

    def across(builder: Any, vector: Any) -> Any:
        """The sum of a vector's lanes."""
        width = lanes
        while width > 1:
            width //= 2
            halves = shuffle(builder, vector, range(width)), shuffle(builder, vector, range(width, 2 * width))
            vector = builder.fadd(*halves)
        return builder.extract_element(vector, _INT32(0))

    @intrinsic
    def multiply(typingctx, c, c_at, c_step, s, z, s_at, s_step, a, a_at, a_scales, a_sums, r_at, chunks, units, out):
        def codegen(context, builder, signature, arguments):
            _, c_at, c_step, _, _, s_at, s_step, _, a_at, _, _, r_at, chunks, units, _ = arguments

            def pointer(i, kind, offset):
                data = context.make_array(signature.args[i])(context, builder, arguments[i]).data
                return builder.gep(builder.bitcast(data, kind.as_pointer()), [offset])

            def row(i, kind, at, step, number):
                return pointer(i, kind, builder.add(at, builder.mul(step, _INT64(number))))

            codes = [row(0, _INT8, c_at, c_step, n) for n in range(rows)]
            scales = [row(3, _FLOAT, s_at, s_step, n) for n in range(rows)]
            zeros = [row(4, _INT8, s_at, s_step, n) for n in range(rows)]
            values = pointer(7, _INT16, a_at)
            value_scales, value_sums = pointer(9, _FLOAT, r_at), pointer(10, _INT32, r_at)
            before = builder.block
            outer, inner = builder.append_basic_block("chunk"), builder.append_basic_block("unit")
            scaled, done = builder.append_basic_block("scaled"), builder.append_basic_block("done")
            builder.branch(outer)

            builder.position_at_end(outer)
            chunk = builder.phi(_INT64)
            chunk.add_incoming(_INT64(0), before)
            results = [builder.phi(floats) for _ in range(rows)]
            for result in results:
                result.add_incoming(ir.Constant(floats, None), before)
            value_sum = builder.load(builder.gep(value_sums, [chunk]))
            starts = []
            for zero in zeros:
                point = builder.zext(builder.load(builder.gep(zero, [chunk])), _INT32)
                less = builder.neg(builder.mul(point, value_sum))
                starts.append(builder.insert_element(ir.Constant(sums, None), less, _INT32(0)))
            first = builder.mul(chunk, units)
            builder.branch(inner)

            builder.position_at_end(inner)
            number = builder.phi(_INT64)
            number.add_incoming(_INT64(0), outer)
            totals = [builder.phi(sums) for _ in range(rows)]
            for total, start in zip(totals, starts, strict=True):
                total.add_incoming(start, outer)
            place = builder.mul(builder.add(first, number), _INT64(_UNIT))
            at = [builder.gep(start, [place]) for start in codes]
            added = unit(builder, at, builder.gep(values, [builder.mul(place, _INT64(fields))]), totals)
            following = builder.add(number, _INT64(1))
            number.add_incoming(following, inner)
            for total, value in zip(totals, added, strict=True):
                total.add_incoming(value, inner)
            builder.cbranch(builder.icmp_signed("<", following, units), inner, scaled)

            builder.position_at_end(scaled)
            value_scale = builder.load(builder.gep(value_scales, [chunk]))
            updated = []
            for result, total, scale in zip(results, added, scales, strict=True):
                factor = builder.fmul(builder.load(builder.gep(scale, [chunk])), value_scale)
                one = builder.insert_element(ir.Constant(floats, ir.Undefined), factor, _INT32(0))
                product = builder.fmul(
                    builder.sitofp(total, floats), shuffle(builder, one, [0] * lanes), flags=["contract"]
                )
                updated.append(builder.fadd(result, product, flags=["contract"]))
            next_chunk = builder.add(chunk, _INT64(1))
            chunk.add_incoming(next_chunk, scaled)
            for result, value in zip(results, updated, strict=True):
                result.add_incoming(value, scaled)
            builder.cbranch(builder.icmp_signed("<", next_chunk, chunks), outer, done)

            builder.position_at_end(done)
            target = pointer(14, _FLOAT, _INT64(0))
            for n, value in enumerate(updated):
                builder.store(across(builder, value), builder.gep(target, [_INT64(n)]))
            return context.get_dummy_value()

        count = types.int64
        return types.void(
            *(c, count, count, s, z, count, count, a, count, a_scales, a_sums, count, count, count, out)
        ), codegen

    return multiply


_four2, _four4, _four8 = _decoder(_ROWS, 2), _decoder(_ROWS, 4), _decoder(_ROWS, 8)
_one2, _one4, _one8 = _decoder(1, 2), _decoder(1, 4), _decoder(1, 8)


@kernel
def _round(x, chunk, fields, scratch, whole, scales, sums):
    """Activations as integers, the fields of a unit's bytes apart; their scales and sums by chunk."""
    unit = _UNIT * fields
    for r in range(x.shape[0]):
        for c in range(scales.shape[1]):
            at = c * chunk
            scales[r, c] = quantise(x[r, at : at + chunk], np.float32(_TOP), scratch)
            total = np.int32(0)
            for i in range(chunk):
                total += np.int32(scratch[i])
            sums[r, c] = total
            for begin in range(0, chunk, unit):
                for field in range(fields):
                    for i in range(_UNIT):
                        whole[r, at + begin + field * _UNIT + i] = scratch[begin + i * fields + field]


@kernel
def _multiply(codes, scales, zeros, bits, chunk, whole, a_scales, a_sums, first, last, results, out):
    """Output channels first to last of out float32 [R, O], four at a time; results: scratch of 4."""
    stride, chunks = codes.shape[1], scales.shape[1]
    units = chunk * bits // (8 * _UNIT)
    o = first
    while o < last:
        count = _ROWS if last - o >= _ROWS else 1
        at, scale = o * stride, o * chunks
        for r in range(out.shape[0]):
            a, s = r * whole.shape[1], r * chunks
            if count == _ROWS:
                if bits == 4:
                    _four4(
                        codes,
                        at,
                        stride,
                        scales,
                        zeros,
                        scale,
                        chunks,
                        whole,
                        a,
                        a_scales,
                        a_sums,
                        s,
                        chunks,
                        units,
                        results,
                    )
                elif bits == 8:
                    _four8(
                        codes,
                        at,
                        stride,
                        scales,
                        zeros,
                        scale,
                        chunks,
                        whole,
                        a,
                        a_scales,
                        a_sums,
                        s,
                        chunks,
                        units,
                        results,
                    )
                else:
                    _four2(
                        codes,
                        at,
                        stride,
                        scales,
                        zeros,
                        scale,
                        chunks,
                        whole,
                        a,
                        a_scales,
                        a_sums,
                        s,
                        chunks,
                        units,
                        results,
                    )
            else:
                if bits == 4:
                    _one4(
                        codes,
                        at,
                        stride,
                        scales,
                        zeros,
                        scale,
                        chunks,
                        whole,
                        a,
                        a_scales,
                        a_sums,
                        s,
                        chunks,
                        units,
                        results,
                    )
                elif bits == 8:
                    _one8(
                        codes,
                        at,
                        stride,
                        scales,
                        zeros,
                        scale,
                        chunks,
                        whole,
                        a,
                        a_scales,
                        a_sums,
                        s,
                        chunks,
                        units,
                        results,
                    )
                else:
                    _one2(
                        codes,
                        at,
                        stride,
                        scales,
                        zeros,
                        scale,
                        chunks,
                        whole,
                        a,
                        a_scales,
                        a_sums,
                        s,
                        chunks,
                        units,
                        results,
                    )
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
            part, target = codes[o, c * size : (c + 1) * size], out[o - first, c * chunk : (c + 1) * chunk]
            scale, zero = scales[o, c], np.int32(zeros[o, c])
            if bits == 4:
                _expand_fields(part, scale, zero, 4, target)
            elif bits == 8:
                _expand_fields(part, scale, zero, 8, target)
            else:
                _expand_fields(part, scale, zero, 2, target)
