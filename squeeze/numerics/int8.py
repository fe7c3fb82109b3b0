"""Products of rows of int8 activations and panels of int8 weights: sums of products of bytes in fours.

Matrices are *packed* for it: panels of 16 outputs, in each the inputs in fours, every weight plus 128: uint8
[outputs / 16, inputs / 4, 16, 4]. Processors with VNNI multiply four unsigned bytes by four signed ones and add the
products to a sum in one instruction; what the 128 adds to a sum follows from the sum of the activations. Those with
AVX2 or AVX512 alone widen both to words, and multiply these in pairs. On others the same integers come from vectors of
generic LLVM. Sums wrap at 32 bits, and the result does not, to LONGEST inputs.
"""

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from squeeze.numerics import int8_vectors
from squeeze.numerics.int8_vectors import STEP
from squeeze.numerics.jit import inline, part
from squeeze.numerics.machine_code import INT8, INT16, INT32, INT64, PANEL, pointer, stored

TOP = 127  # of activations and weights
TOP_16 = 32639  # of 16-bit activations, the largest of which both halves are signed bytes
SCRATCH = 24 * PANEL  # products of a step: of three rows and eight panels, or six rows and four
LONGEST = (1 << 31) // (TOP * TOP)  # inputs
_ISA = int8_vectors.fastest()
_TALLEST, _FEW, _MOST, _SOME = _ISA.tallest, _ISA.few, _ISA.most, _ISA.some
PARTS = 2 if _ISA.four is INT32 else 1  # into which an activation of 16 bits is split
ACTIVATION = np.int8 if PARTS == 2 else np.int16  # what holds an activation: what is multiplied


def pack(matrix: np.ndarray) -> np.ndarray:
    """int8 [N, K] -> uint8 [ceil(N / 16), ceil(K / 4), 16, 4], padded with what stands for zeros."""
    outputs, inputs = matrix.shape
    padded = np.full((-(-outputs // PANEL) * PANEL, -(-inputs // STEP) * STEP), 128, np.uint8)
    padded[:outputs, :inputs] = matrix.view(np.uint8) ^ 128
    panels = padded.reshape(-1, PANEL, padded.shape[1] // STEP, STEP)
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3))


def unpack(packed: np.ndarray, outputs: int, inputs: int) -> np.ndarray:
    """Undo `pack`."""
    rows = packed.transpose(0, 2, 1, 3).reshape(packed.shape[0] * PANEL, -1)
    return np.ascontiguousarray(rows[:outputs, :inputs] ^ 128).view(np.int8)


def _tile(rows: int, panels: int) -> Any:
    """A compiled product of `rows` rows of activations and of packed panels.

    The intrinsic's arguments: activations (ACTIVATION), their offset and row stride; packed weights, their offset and
    panel stride; fours of inputs (at least one); int32 results, their offset and row stride. All sums stay in
    registers: where these do not hold those of a panel, its outputs come in two runs over the inputs.
    """

    @intrinsic
    def tile(typingctx, a, a_offset, a_stride, b, b_offset, b_stride, fours, out, out_offset, out_stride):
        def codegen(context, builder, signature, arguments):
            _, a_offset, a_stride, _, b_offset, b_stride, fours, _, out_offset, out_stride = arguments
            isa = _ISA(builder)

            def at(i, kind):
                return pointer(context, builder, signature, arguments, i, kind)

            def moved(start, offset, stride, count):
                return builder.gep(start, [builder.add(offset, builder.mul(stride, INT64(count)))])

            kind = INT8 if isa.four is INT32 else INT16
            a_rows = [moved(at(0, kind), a_offset, a_stride, r) for r in range(rows)]
            b_panels = [moved(at(3, INT8), b_offset, b_stride, p) for p in range(panels)]
            runs = 2 if rows * panels * isa.vectors > isa.together else 1
            size = STEP * PANEL // isa.vectors  # bytes
            vectors = [(start, v * size) for start in b_panels for v in range(isa.vectors)]
            count = len(vectors) // runs
            for run in range(runs):
                totals = int8_vectors.sums(builder, isa, a_rows, vectors[run * count : (run + 1) * count], fours)
                for r in range(rows):
                    start, place = moved(at(7, INT32), out_offset, out_stride, r), run * PANEL // runs
                    for value in isa.folded(builder, totals[r * count : (r + 1) * count]):
                        stored(builder, value, builder.gep(start, [INT64(place)]))
                        place += value.type.count
            return context.get_dummy_value()

        count = types.int64
        return types.void(a, count, count, b, count, count, count, out, count, count), codegen

    return tile


def _of_height(panels: int, tallest: int) -> Any:
    """A compiled product of a few rows, at most `tallest`, and so many panels."""

    @inline
    def run(height, a, a_offset, a_stride, b, b_offset, b_stride, fours, out, out_offset, out_stride):
        pass

    for height in range(1, tallest + 1):
        run = _or_else(height, _tile(height, panels), run)
    return run


def _or_else(height: int, tile: Any, other: Any) -> Any:
    def run(rows, a, a_offset, a_stride, b, b_offset, b_stride, fours, out, out_offset, out_stride):  # type: ignore[no-untyped-def]
        if rows == height:
            tile(a, a_offset, a_stride, b, b_offset, b_stride, fours, out, out_offset, out_stride)
        else:
            other(rows, a, a_offset, a_stride, b, b_offset, b_stride, fours, out, out_offset, out_stride)

    return inline(run)


_few, _many, _single = (_of_height(_MOST, _FEW), _of_height(_SOME, _TALLEST), _of_height(1, _TALLEST))


@inline
def split(x, out, offset, stride):
    """int16 x within TOP_16 -> what is multiplied: high bytes from out[offset] on and low bytes from offset + stride
    on, or x itself where the processor multiplies words; returns the sum of x, int32."""
    total = np.int32(0)
    first, second = out[offset : offset + x.size], out[offset + stride : offset + stride + x.size]
    for i in range(x.size):
        value = np.int32(x[i])
        total = np.int32(total + value)
        if PARTS == 2:
            high = np.int32(np.int32(value + np.int32(128)) >> np.int32(8))
            first[i] = np.int8(high)
            second[i] = np.int8(np.int32(value - np.int32(high << np.int32(8))))
        else:
            first[i] = value
    return total


@inline
def joined(high, low):
    """The product of a split activation from those of its parts."""
    return np.int32(np.int32(high << 8) + low) if PARTS == 2 else high


@part
def products(rows, panels, a, a_offset, a_stride, b, b_offset, b_stride, fours, out, out_offset, out_stride):
    """int32 products of rows and panels: row r of panel p lies from out[out_offset + r * out_stride + 16 p] on.

    a is flat, of ACTIVATION; b are packed panels, `b_stride` apart; `fours` of inputs, at least one. To each product
    128 times the sum of its row is added.
    """
    panel = 0
    while panel < panels:
        start, target = b_offset + panel * b_stride, out_offset + panel * PANEL
        if rows <= _FEW and panels - panel >= _MOST:
            _few(rows, a, a_offset, a_stride, b, start, b_stride, fours, out, target, out_stride)
            panel += _MOST
            continue
        count = _SOME if panels - panel >= _SOME else 1
        for row in range(0, rows, _TALLEST):
            height = min(rows - row, _TALLEST)
            a_start, end = a_offset + row * a_stride, target + row * out_stride
            if count == _SOME:
                _many(height, a, a_start, a_stride, b, start, b_stride, fours, out, end, out_stride)
            else:
                _single(height, a, a_start, a_stride, b, start, b_stride, fours, out, end, out_stride)
        panel += count


@part
def matmul(a, sums, scales, weights, w_scales, first, last, add, out, found):
    """Columns 16 * first to 16 * last of out = (a * scales) @ (weights * w_scales), or += where `add`.

    a [R, K] of ACTIVATION with the sums of its rows int32 [R] and their scales float32 [R]; packed weights; w_scales
    float32 [N]; out float32 [R, N]. Scratch of this thread: found int32 [SCRATCH].
    """
    rows, fours, outputs, length = a.shape[0], weights.shape[1], w_scales.size, a.shape[1]
    stride, panel = STEP * PANEL * fours, first
    while panel < last:
        count = _SOME if last - panel >= _SOME else 1
        if rows <= _FEW and last - panel >= _MOST:
            count = _MOST
        width, start = count * PANEL, panel * PANEL
        columns = min(width, outputs - start)
        w = w_scales[start : start + columns]
        for row in range(0, rows, _TALLEST):
            height = min(rows - row, _TALLEST)
            products(height, count, a, row * length, length, weights, panel * stride, stride, fours, found, 0, width)
            for r in range(height):
                shift, scale = np.int32(128 * sums[row + r]), scales[row + r]
                product, target = found[r * width : r * width + columns], out[row + r, start : start + columns]
                if add:
                    for c in range(columns):
                        target[c] += np.float32(np.int32(product[c] - shift)) * scale * w[c]
                else:
                    for c in range(columns):
                        target[c] = np.float32(np.int32(product[c] - shift)) * scale * w[c]
        panel += count
