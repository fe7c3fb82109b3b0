"""The arithmetic of exact inference: the same integers on every machine. docs/exactness.md states the contract.

Sums of more than one term are sums of integers; what is floating point is elementwise and uses only
operations that IEEE 754 defines. Activations are 16-bit integers with one float32 scale a row, weights and
cached keys and values are 8-bit integers. A product of the two is a sum over pairs: every x86 processor
since 2001 multiplies 16-bit pairs and adds them in one instruction, so exactness is not paid for with speed.

Matrices are *packed* for it: panels of 16 output channels, in each the inputs in pairs, int8
[outputs / 16, inputs / 2, 16, 2].
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from squeeze.numerics.jit import inline, kernel, part
from squeeze.numerics.trie import FREQUENCY_BITS

PANEL = 16  # output channels side by side
CHUNK = 512  # inputs in one integer sum: 512 * 127 * 32767 < 2^31
TOP = 32767  # of a 16-bit activation
_TILE_ROWS = 6  # six rows by one panel fill the registers of AVX2


def pack(matrix: np.ndarray) -> np.ndarray:
    """int8 [N, K] -> int8 [ceil(N / 16), ceil(K / 2), 16, 2], zero padded; [p, k, c, j] is [16 p + c, 2 k + j]."""
    outputs, inputs = matrix.shape
    padded = np.zeros((-(-outputs // PANEL) * PANEL, -(-inputs // 2) * 2), np.int8)
    padded[:outputs, :inputs] = matrix
    panels = padded.reshape(-1, PANEL, padded.shape[1] // 2, 2)
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3))


def unpack(packed: np.ndarray, outputs: int, inputs: int) -> np.ndarray:
    """Undo `pack`."""
    rows = packed.transpose(0, 2, 1, 3).reshape(packed.shape[0] * PANEL, -1)
    return np.ascontiguousarray(rows[:outputs, :inputs])


_INT8, _INT16, _INT32, _INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_UNDEFINED = ir.Undefined


def _shuffle(builder: Any, vector: Any, indices: Any) -> Any:
    mask = ir.Constant(ir.VectorType(_INT32, len(indices)), [ir.Constant(_INT32, i) for i in indices])
    return builder.shuffle_vector(vector, ir.Constant(vector.type, _UNDEFINED), mask)


def _tile(rows: int, panels: int, element: ir.IntType) -> Any:
    """A compiled product of `rows` rows of activations and `panels` panels of packed weights.

    The intrinsic's arguments: activations int16, their offset and row stride; packed weights (`element`),
    their offset and panel stride; pairs of inputs (at least one); int32 results, their offset and row stride.
    All sums stay in registers. Written as vectors of generic LLVM, which every processor's compiler turns
    into its own multiply-add of pairs (pmaddwd, vpdpwssd, smlal).
    """

    @intrinsic
    def tile(typingctx, a, a_offset, a_stride, b, b_offset, b_stride, pairs, out, out_offset, out_stride):
        def codegen(context, builder, signature, arguments):
            _, a_offset, a_stride, _, b_offset, b_stride, pairs, _, out_offset, out_stride = arguments

            def pointer(i, kind):
                array = context.make_array(signature.args[i])(context, builder, arguments[i])
                return builder.bitcast(array.data, kind.as_pointer())

            def moved(start, offset, stride, count):
                return builder.gep(start, [builder.add(offset, builder.mul(stride, _INT64(count)))])

            sums = ir.VectorType(_INT32, PANEL)
            pair_vector, wide = ir.VectorType(_INT16, 2 * PANEL), ir.VectorType(_INT32, 2 * PANEL)
            weights = ir.VectorType(element, 2 * PANEL)
            a_rows = [moved(pointer(0, _INT16), a_offset, a_stride, r) for r in range(rows)]
            b_panels = [moved(pointer(3, element), b_offset, b_stride, p) for p in range(panels)]
            before = builder.block
            body, after = builder.append_basic_block("pairs"), builder.append_basic_block("done")
            builder.branch(body)
            builder.position_at_end(body)
            k = builder.phi(_INT64)
            k.add_incoming(_INT64(0), before)
            totals = [builder.phi(sums) for _ in range(rows * panels)]
            for total in totals:
                total.add_incoming(ir.Constant(sums, None), before)
            loaded = []
            for start in b_panels:
                address = builder.bitcast(builder.gep(start, [builder.mul(k, _INT64(2 * PANEL))]), weights.as_pointer())
                loaded.append(builder.sext(builder.load(address, align=element.width // 8), wide))
            added = []
            for start in a_rows:
                address = builder.bitcast(builder.gep(start, [builder.mul(k, _INT64(2))]), _INT32.as_pointer())
                pair = builder.insert_element(ir.Constant(sums, _UNDEFINED), builder.load(address, align=2), _INT32(0))
                everywhere = builder.bitcast(_shuffle(builder, pair, [0] * PANEL), pair_vector)
                activations = builder.sext(everywhere, wide)
                for weight in loaded:
                    products = builder.mul(activations, weight, flags=["nsw"])
                    even = _shuffle(builder, products, range(0, 2 * PANEL, 2))
                    odd = _shuffle(builder, products, range(1, 2 * PANEL, 2))
                    added.append(builder.add(totals[len(added)], builder.add(even, odd)))
            following = builder.add(k, _INT64(1))
            k.add_incoming(following, builder.block)
            for total, value in zip(totals, added, strict=True):
                total.add_incoming(value, builder.block)
            builder.cbranch(builder.icmp_signed("<", following, pairs), body, after)
            builder.position_at_end(after)
            for i, value in enumerate(added):
                start = moved(pointer(7, _INT32), out_offset, out_stride, i // panels)
                address = builder.gep(start, [_INT64(i % panels * PANEL)])
                builder.store(value, builder.bitcast(address, sums.as_pointer()), align=4)
            return context.get_dummy_value()

        count = types.int64
        return types.void(a, count, count, b, count, count, count, out, count, count), codegen

    return tile


_narrow1x4, _narrow1x2, _narrow2x2, _narrow3x2 = (_tile(r, p, _INT8) for r, p in ((1, 4), (1, 2), (2, 2), (3, 2)))
_narrow1, _narrow2, _narrow3, _narrow4, _narrow5, _narrow6 = (_tile(r, 1, _INT8) for r in range(1, 7))
_wide1, _wide2, _wide3, _wide4, _wide5, _wide6 = (_tile(r, 1, _INT16) for r in range(1, 7))


@part
def narrow_tile(rows, panels, a, a_offset, a_stride, b, b_offset, b_stride, pairs, out, out_offset, out_stride):
    """int32 products of any number of rows and panels of int8 weights: for few rows, or weights used once.

    Row r of panel p lands at out[out_offset + r * out_stride + 16 p]. `pairs` times the magnitudes must fit 32 bits.
    """
    row = 0
    while row < rows:
        left = min(rows - row, _TILE_ROWS)
        if left == 4 and rows == 4:
            left = 2
        at, to = a_offset + row * a_stride, out_offset + row * out_stride
        panel = 0
        while panel < panels:
            more = panels - panel
            start, end = b_offset + panel * b_stride, to + panel * PANEL
            if left == 1 and more >= 4:
                _narrow1x4(a, at, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                panel += 4
            elif left <= 3 and more >= 2:
                if left == 1:
                    _narrow1x2(a, at, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                elif left == 2:
                    _narrow2x2(a, at, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                else:
                    _narrow3x2(a, at, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                panel += 2
            else:
                if left == 1:
                    _narrow1(a, at, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                elif left == 2:
                    _narrow2(a, at, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                elif left == 3:
                    _narrow3(a, at, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                elif left == 4:
                    _narrow4(a, at, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                elif left == 5:
                    _narrow5(a, at, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                else:
                    _narrow6(a, at, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                panel += 1
        row += left


@part
def wide_tile(rows, a, a_offset, a_stride, b, pairs, out):
    """int32 products [rows, 16] of any number of rows and one panel that is already widened to int16."""
    row = 0
    while row < rows:
        left = min(rows - row, _TILE_ROWS)
        at, to = a_offset + row * a_stride, row * PANEL
        if left == 6:
            _wide6(a, at, a_stride, b, 0, 0, pairs, out, to, PANEL)
        elif left == 5:
            _wide5(a, at, a_stride, b, 0, 0, pairs, out, to, PANEL)
        elif left == 4:
            _wide4(a, at, a_stride, b, 0, 0, pairs, out, to, PANEL)
        elif left == 3:
            _wide3(a, at, a_stride, b, 0, 0, pairs, out, to, PANEL)
        elif left == 2:
            _wide2(a, at, a_stride, b, 0, 0, pairs, out, to, PANEL)
        else:
            _wide1(a, at, a_stride, b, 0, 0, pairs, out, to, PANEL)
        row += left


@intrinsic
def _widen(typingctx, weights, offset, pairs, out):
    """out int16 = `pairs` times 32 weights int8 from `offset` on."""

    def codegen(context, builder, signature, arguments):
        def pointer(i, kind):
            array = context.make_array(signature.args[i])(context, builder, arguments[i])
            return builder.bitcast(array.data, kind.as_pointer())

        source, target = builder.gep(pointer(0, _INT8), [arguments[1]]), pointer(3, _INT16)
        with cgutils.for_range(builder, arguments[2], intp=_INT64) as loop:
            at = builder.mul(loop.index, _INT64(2 * PANEL))
            narrow, wide = (ir.VectorType(kind, 2 * PANEL) for kind in (_INT8, _INT16))
            values = builder.load(builder.bitcast(builder.gep(source, [at]), narrow.as_pointer()), align=1)
            address = builder.bitcast(builder.gep(target, [at]), wide.as_pointer())
            builder.store(builder.sext(values, wide), address, align=2)
        return context.get_dummy_value()

    return types.void(weights, types.int64, types.int64, out), codegen


@part
def matmul(a, a_scales, weights, w_scales, first, last, add, out, widened, sums, totals):
    """Columns 16 * first to 16 * last of out = (a * a_scales) @ (weights * w_scales), or += where `add`.

    a int16 [R, K], a_scales float32 [R], weights packed int8 [panels, K / 2, 16, 2], w_scales float32 [N],
    out float32 [R, N]. Scratch of this thread: widened int16 [CHUNK * 16], sums int32 [R * 64],
    totals float32 [R * 64]. Each chunk of at most 512 inputs is one integer sum; chunks are added in order.
    """
    rows, outputs = a.shape[0], w_scales.size
    pairs = weights.shape[1]
    chunks = (2 * pairs + CHUNK - 1) // CHUNK
    chunk = (pairs + chunks - 1) // chunks
    stride = 2 * PANEL * pairs
    panel = first
    while panel < last:
        group = 1 if rows > 3 else min(last - panel, 4)
        width = group * PANEL
        for begin in range(0, pairs, chunk):
            count = min(chunk, pairs - begin)
            at = panel * stride + begin * 2 * PANEL
            if rows > 3:
                _widen(weights, at, count, widened)
                wide_tile(rows, a, 2 * begin, a.shape[1], widened, count, sums)
            else:
                narrow_tile(rows, group, a, 2 * begin, a.shape[1], weights, at, stride, count, sums, 0, width)
            if begin == 0:
                for i in range(rows * width):
                    totals[i] = np.float32(sums[i])
            else:
                for i in range(rows * width):
                    totals[i] += np.float32(sums[i])
        start = panel * PANEL
        columns = min(width, outputs - start)
        scales = w_scales[start : start + columns]
        for r in range(rows):
            scale, row, products = a_scales[r], out[r, start : start + columns], totals[r * width : (r + 1) * width]
            if add:
                for c in range(columns):
                    row[c] += products[c] * scale * scales[c]
            else:
                for c in range(columns):
                    row[c] = products[c] * scale * scales[c]
        panel += group


_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, half to even
_LEAST = np.float32(1e-20)


@inline
def _magnitude_bits(x):
    """An integer that grows with |x|, so that a maximum is one of integers, which vectorises."""
    return np.int32(np.float32(x).view(np.int32) & np.int32(0x7FFFFFFF))


@inline
def to_integer(x):
    """float32 within 2^22 -> the nearest int32, half to even."""
    return np.int32(np.float32(x + _ROUND).view(np.int32) - np.int32(0x4B400000))


@inline
def quantise(x, top, out):
    """Integers `out` = round(x / scale), the largest of magnitude `top`; returns the float32 scale."""
    bits = np.int32(0)
    for i in range(x.size):
        bits = np.int32(max(bits, _magnitude_bits(x[i])))
    largest = max(np.int32(bits).view(np.float32), _LEAST)
    inverse = np.float32(top) / largest
    for i in range(x.size):
        out[i] = to_integer(x[i] * inverse)
    return largest / np.float32(top)


@inline
def maximum(x):
    """The largest float32 of an array, found as a maximum of integers that have the same order."""
    best = np.int32(-0x7FFFFFFF)
    for i in range(x.size):
        bits = np.int32(np.float32(x[i]).view(np.int32))
        best = np.int32(max(best, np.int32(bits ^ np.int32((bits >> 31) & np.int32(0x7FFFFFFF)))))
    return np.int32(best ^ np.int32((best >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)


@inline
def rms_inverse(x, epsilon):
    """float32 1 / sqrt(mean(x^2) + epsilon), the mean over integers of 21 bits."""
    top = np.int32(0)
    for i in range(x.size):
        top = np.int32(max(top, _magnitude_bits(x[i])))
    largest = max(np.int32(top).view(np.float32), _LEAST)
    inverse = np.float32(1 << 21) / largest
    total = np.int64(0)
    for i in range(x.size):
        q = np.int64(to_integer(x[i] * inverse))
        total += q * q
    unit = np.float64(largest) / np.float64(1 << 21)
    mean = np.float64(total) * (unit * unit) / np.float64(x.size)
    return np.float32(np.float64(1.0) / np.sqrt(mean + np.float64(epsilon)))


@inline
def exp_negative(x):
    """e^x of a float32 x <= 0: 2^k times a polynomial on [-1/2, 1/2]; below -87 as at -87."""
    t = max(x, np.float32(-87.0)) * np.float32(1.4426950408889634)
    rounded = t + _ROUND
    k = np.int32(np.float32(rounded).view(np.int32) - np.int32(0x4B400000 - 127))
    r = t - (rounded - _ROUND)
    p = np.float32(1.5403530e-4)
    p = p * r + np.float32(1.3333558e-3)
    p = p * r + np.float32(9.6181291e-3)
    p = p * r + np.float32(5.5504109e-2)
    p = p * r + np.float32(2.4022651e-1)
    p = p * r + np.float32(6.9314718e-1)
    p = p * r + np.float32(1.0)
    return p * np.int32(k << 23).view(np.float32)


@inline
def cumulate(logits, bias, cdf):
    """Logits plus bias, float32 [leaves], to cumulative frequencies uint64 [leaves + 1], every leaf's at least 1.

    The logits are overwritten.
    """
    for i in range(logits.size):
        logits[i] += bias[i]
    total, top = np.uint64(0), maximum(logits)
    for i in range(logits.size):
        logits[i] = exp_negative(logits[i] - top) * np.float32(1 << FREQUENCY_BITS)
    cdf[0] = total
    after = cdf[1:]
    for i in range(logits.size):
        total += np.uint64(np.int64(logits[i]) + np.int64(1))
        after[i] = total


@kernel
def cumulate_rows(logits, leaves, bias, picked, cdf):
    """The same of the tokens `leaves`, int32, of rows of logits float32 [R, vocabulary]; numbers that are not finite
    count as a logit far below all others. `picked` is scratch, float32 [leaves]."""
    for r in range(logits.shape[0]):
        for i in range(leaves.size):
            value = logits[r, leaves[i]]
            picked[i] = value if abs(value) < np.float32(1e30) else np.float32(-1e30)
        cumulate(picked, bias, cdf[r])
