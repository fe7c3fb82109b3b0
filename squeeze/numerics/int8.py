"""Compiled products of int8 activations and int8 weights, which add products of bytes in fours.

Weights are packed in panels of 16 outputs. A panel has the inputs in fours, with 128 added to every weight: uint8
[outputs / 16, inputs / 4, 16, 4]. A VNNI instruction multiplies four unsigned bytes by four signed ones and adds the
products to a sum. The sum of the activations tells what the 128 adds. Processors with only AVX2 or AVX512 widen both to
16 bits and multiply pairs; on others the same integers come from vectors of generic LLVM. Sums wrap at 32 bits, but the
result does not for up to LONGEST inputs.

Weights of 4 bits are odd, from -15 to 15, and stored as their half plus 7.5. A byte holds two fours of inputs, the
first one low. They take half the memory traffic, which bounds a product with few rows.
"""

from typing import Any

import numpy as np

from squeeze.numerics import int8_vectors
from squeeze.numerics.codegen import intrinsic, types
from squeeze.numerics.int8_vectors import STEP
from squeeze.numerics.jit import inline, part
from squeeze.numerics.machine_code import INT8, INT16, INT32, INT64, PANEL, pointer, stored

TOP = 127  # the largest magnitude of activations and weights
TOP_16 = 32639  # the largest 16-bit activation whose halves are both signed bytes
SCRATCH = 24 * PANEL  # products of a step: of three rows and eight panels, or six rows and four
LONGEST = (1 << 31) // (TOP * TOP)  # inputs
_ISA = int8_vectors.fastest()
_TALLEST, _FEW, _MOST, _SOME = _ISA.tallest, _ISA.few, _ISA.most, _ISA.some
PARTS = _ISA.parts  # the number of operands that a 16-bit activation is split into
ACTIVATION = np.int8 if PARTS == 2 else np.int16  # the dtype of the operands


def pack(matrix: np.ndarray) -> np.ndarray:
    """Pack int8 [N, K] to uint8 [ceil(N / 16), ceil(K / 4), 16, 4], padded with zeros (128)."""
    outputs, inputs = matrix.shape
    padded = np.full((-(-outputs // PANEL) * PANEL, -(-inputs // STEP) * STEP), 128, np.uint8)
    np.bitwise_xor(matrix.view(np.uint8), 128, out=padded[:outputs, :inputs])
    panels = padded.view(np.uint32).reshape(-1, PANEL, padded.shape[1] // STEP)  # four bytes at a time are faster
    return np.ascontiguousarray(panels.transpose(0, 2, 1)).view(np.uint8).reshape(len(panels), -1, PANEL, STEP)


def pack_halves(matrix: np.ndarray) -> np.ndarray:
    """Pack int8 [N, K], odd and from -15 to 15, to uint8 [N / 16, K / 8, 16, 4]. N is a multiple of 16, K of 8."""
    outputs, inputs = matrix.shape
    stored = (matrix + 15 >> 1).astype(np.uint8).reshape(outputs // PANEL, PANEL, inputs // (2 * STEP), 2, STEP)
    return np.ascontiguousarray((stored[:, :, :, 0] | stored[:, :, :, 1] << 4).transpose(0, 2, 1, 3))


def unpack(packed: np.ndarray, outputs: int, inputs: int) -> np.ndarray:
    """Undo `pack`."""
    rows = packed.transpose(0, 2, 1, 3).reshape(packed.shape[0] * PANEL, -1)
    return np.ascontiguousarray(rows[:outputs, :inputs] ^ 128).view(np.int8)


def _tile(rows: int, panels: int, bits: int) -> Any:
    """Return a compiled product of `rows` rows of activations and `panels` panels of weights.

    All sums stay in registers. If the registers do not hold a whole panel, its outputs take two passes over the inputs.
    The arguments of the result are those of `products` without the counts.
    """

    @intrinsic
    def tile(typingctx, a, a_offset, a_stride, b, b_offset, b_stride, steps, out, out_offset, out_stride):
        def codegen(context, builder, signature, arguments):
            _, a_offset, a_stride, _, b_offset, b_stride, steps, _, out_offset, out_stride = arguments
            isa = _ISA(builder)

            def at(i, kind):
                return pointer(context, builder, signature, arguments, i, kind)

            def moved(start, offset, stride, count):
                return builder.gep(start, [builder.add(offset, builder.mul(stride, INT64(count)))])

            kind = INT8 if isa.parts == 2 else INT16
            a_rows = [moved(at(0, kind), a_offset, a_stride, r) for r in range(rows)]
            b_panels = [moved(at(3, INT8), b_offset, b_stride, p) for p in range(panels)]
            runs = 2 if rows * panels * isa.vectors > isa.together else 1
            size = STEP * PANEL // isa.vectors  # bytes
            vectors = [(start, v * size) for start in b_panels for v in range(isa.vectors)]
            count = len(vectors) // runs
            for run in range(runs):
                totals = int8_vectors.sums(builder, isa, a_rows, vectors[run * count : (run + 1) * count], steps, bits)
                for r in range(rows):
                    start, place = moved(at(7, INT32), out_offset, out_stride, r), run * PANEL // runs
                    for value in isa.folded(builder, totals[r * count : (r + 1) * count]):
                        stored(builder, value, builder.gep(start, [INT64(place)]))
                        place += value.type.count
            return context.get_dummy_value()

        count = types.int64
        return types.void(a, count, count, b, count, count, count, out, count, count), codegen

    return tile


def _of_height(panels: int, tallest: int, bits: int) -> Any:
    """Return a compiled product of up to `tallest` rows and `panels` panels."""

    @inline
    def run(height, a, a_offset, a_stride, b, b_offset, b_stride, steps, out, out_offset, out_stride):
        pass

    for height in range(1, tallest + 1):
        run = _or_else(height, _tile(height, panels, bits), run)
    return run


def _or_else(height: int, tile: Any, other: Any) -> Any:
    def run(rows, a, a_offset, a_stride, b, b_offset, b_stride, steps, out, out_offset, out_stride):  # type: ignore[no-untyped-def]
        if rows == height:
            tile(a, a_offset, a_stride, b, b_offset, b_stride, steps, out, out_offset, out_stride)
        else:
            other(rows, a, a_offset, a_stride, b, b_offset, b_stride, steps, out, out_offset, out_stride)

    return inline(run)


@inline
def split(x, out, offset, stride):
    """Write an int16 vector within TOP_16 in the form that is multiplied, and return its sum, int32.

    With VNNI that is the high bytes at out[offset:] and the low bytes at out[offset + stride:], otherwise x itself.
    """
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
    """Return the product of a split activation from the products of its high and low bytes."""
    return np.int32(np.int32(high << 8) + low) if PARTS == 2 else high


def _products(bits: int) -> Any:
    few, many, single = (_of_height(*of, bits) for of in ((_MOST, _FEW), (_SOME, _TALLEST), (1, _TALLEST)))

    @part
    def products(rows, panels, a, a_offset, a_stride, b, b_offset, b_stride, steps, out, out_offset, out_stride):
        """Multiply rows of activations by panels of weights, and write int32 to `out`.

        Row r of panel p is written to out[out_offset + r * out_stride + 16 p:]. The products are those of the stored
        weights: with 8 bits, each exceeds the true one by 128 times the sum of its row.

        Args:
            rows: The number of rows.
            panels: The number of panels.
            a: Activations, flat.
            a_offset: Where the first row begins.
            a_stride: The distance between rows.
            b: Packed weights, flat.
            b_offset: Where the first panel begins.
            b_stride: The distance between panels.
            steps: Fours of inputs, or eights with 4 bits; at least one.
            out: The results, flat.
            out_offset: Where the first result goes.
            out_stride: The distance between rows of results.
        """
        panel = 0
        while panel < panels:
            start, target = b_offset + panel * b_stride, out_offset + panel * PANEL
            if rows <= _FEW and panels - panel >= _MOST:
                few(rows, a, a_offset, a_stride, b, start, b_stride, steps, out, target, out_stride)
                panel += _MOST
                continue
            count = _SOME if panels - panel >= _SOME else 1
            for row in range(0, rows, _TALLEST):
                height = min(rows - row, _TALLEST)
                a_start, end = a_offset + row * a_stride, target + row * out_stride
                if count == _SOME:
                    many(height, a, a_start, a_stride, b, start, b_stride, steps, out, end, out_stride)
                else:
                    single(height, a, a_start, a_stride, b, start, b_stride, steps, out, end, out_stride)
            panel += count

    return products


def _matmul(products: Any, factor: int, offset: int) -> Any:
    """Return a compiled product of scaled matrices; a weight is `factor` times what is stored minus `offset`."""
    times, shift = np.int32(factor), np.int32(offset)

    @part
    def matmul(a, sums, scales, weights, w_scales, first, last, add, out, found):
        """Compute columns 16 * first to 16 * last of out = (a * scales) @ (weights * w_scales).

        Args:
            a: Activations [R, K] of ACTIVATION.
            sums: The sums of their rows, int32 [R].
            scales: The scales of their rows, float32 [R].
            weights: Packed weights.
            w_scales: The scales of their outputs, float32 [N].
            first: The first panel.
            last: The panel after the last one.
            add: Whether to add to `out`.
            out: float32 [R, N].
            found: int32 [SCRATCH], memory of this thread.
        """
        rows, steps, outputs, length = a.shape[0], weights.shape[1], w_scales.size, a.shape[1]
        stride, panel = STEP * PANEL * steps, first
        while panel < last:
            count = _SOME if last - panel >= _SOME else 1
            if rows <= _FEW and last - panel >= _MOST:
                count = _MOST
            width, start = count * PANEL, panel * PANEL
            columns = min(width, outputs - start)
            w = w_scales[start : start + columns]
            for row in range(0, rows, _TALLEST):
                height = min(rows - row, _TALLEST)
                products(
                    height, count, a, row * length, length, weights, panel * stride, stride, steps, found, 0, width
                )
                for r in range(height):
                    excess, scale = np.int32(shift * sums[row + r]), scales[row + r]
                    product, target = found[r * width : r * width + columns], out[row + r, start : start + columns]
                    if add:
                        for c in range(columns):
                            target[c] += np.float32(np.int32(times * product[c] - excess)) * scale * w[c]
                    else:
                        for c in range(columns):
                            target[c] = np.float32(np.int32(times * product[c] - excess)) * scale * w[c]
            panel += count

    return matmul


products = _products(8)
matmul = _matmul(products, 1, 128)
matmul_halves = _matmul(_products(4), 2, 15)
