"""Integer products of rows of activations and panels of weights: compiled as vectors, all sums in registers.

Matrices are *packed* for it: panels of 16 output channels, in each the inputs in pairs, int8
[outputs / 16, inputs / 2, 16, 2]. A product is a sum over pairs: every x86 processor since 2001 multiplies 16-bit
pairs and adds them in one instruction. exact.py says how long a sum may be, and scales the results.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from squeeze.numerics.jit import part

PANEL = 16  # output channels side by side

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


def spread_pair(builder: Any, address: Any) -> Any:
    """Two int16 side by side, where an int32 pointer points to, for each output of a panel: int32 [2 * PANEL]."""
    single = ir.Constant(ir.VectorType(_INT32, PANEL), _UNDEFINED)
    pair = builder.insert_element(single, builder.load(address, align=2), _INT32(0))
    everywhere = builder.bitcast(_shuffle(builder, pair, [0] * PANEL), ir.VectorType(_INT16, 2 * PANEL))
    return builder.sext(everywhere, ir.VectorType(_INT32, 2 * PANEL))


def pair_sums(builder: Any, activations: Any, weights: Any) -> Any:
    """int32 [PANEL]: products of int32 [2 * PANEL] that hold 16-bit values, added in pairs."""
    products = builder.mul(activations, weights, flags=["nsw"])
    even = _shuffle(builder, products, range(0, 2 * PANEL, 2))
    odd = _shuffle(builder, products, range(1, 2 * PANEL, 2))
    return builder.add(even, odd)


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
            wide, weights = ir.VectorType(_INT32, 2 * PANEL), ir.VectorType(element, 2 * PANEL)
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
                activations = spread_pair(builder, address)
                for weight in loaded:
                    added.append(builder.add(totals[len(added)], pair_sums(builder, activations, weight)))
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
        height = min(rows - row, _TILE_ROWS)
        if height == 4 and rows == 4:
            height = 2
        a_start, out_start = a_offset + row * a_stride, out_offset + row * out_stride
        panel = 0
        while panel < panels:
            remaining = panels - panel
            start, end = b_offset + panel * b_stride, out_start + panel * PANEL
            if height == 1 and remaining >= 4:
                _narrow1x4(a, a_start, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                panel += 4
            elif height <= 3 and remaining >= 2:
                if height == 1:
                    _narrow1x2(a, a_start, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                elif height == 2:
                    _narrow2x2(a, a_start, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                else:
                    _narrow3x2(a, a_start, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                panel += 2
            else:
                if height == 1:
                    _narrow1(a, a_start, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                elif height == 2:
                    _narrow2(a, a_start, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                elif height == 3:
                    _narrow3(a, a_start, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                elif height == 4:
                    _narrow4(a, a_start, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                elif height == 5:
                    _narrow5(a, a_start, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                else:
                    _narrow6(a, a_start, a_stride, b, start, b_stride, pairs, out, end, out_stride)
                panel += 1
        row += height


@part
def wide_tile(rows, a, a_offset, a_stride, b, pairs, out):
    """int32 products [rows, 16] of any number of rows and one panel that is already widened to int16."""
    row = 0
    while row < rows:
        height = min(rows - row, _TILE_ROWS)
        a_start, out_start = a_offset + row * a_stride, row * PANEL
        if height == 6:
            _wide6(a, a_start, a_stride, b, 0, 0, pairs, out, out_start, PANEL)
        elif height == 5:
            _wide5(a, a_start, a_stride, b, 0, 0, pairs, out, out_start, PANEL)
        elif height == 4:
            _wide4(a, a_start, a_stride, b, 0, 0, pairs, out, out_start, PANEL)
        elif height == 3:
            _wide3(a, a_start, a_stride, b, 0, 0, pairs, out, out_start, PANEL)
        elif height == 2:
            _wide2(a, a_start, a_stride, b, 0, 0, pairs, out, out_start, PANEL)
        else:
            _wide1(a, a_start, a_stride, b, 0, 0, pairs, out, out_start, PANEL)
        row += height


@intrinsic
def widen(typingctx, weights, offset, pairs, out):
    """out int16 = `pairs` times 32 weights int8 from `offset` on."""

    def codegen(context, builder, signature, arguments):
        def pointer(i, kind):
            array = context.make_array(signature.args[i])(context, builder, arguments[i])
            return builder.bitcast(array.data, kind.as_pointer())

        source, target = builder.gep(pointer(0, _INT8), [arguments[1]]), pointer(3, _INT16)
        with cgutils.for_range(builder, arguments[2], intp=_INT64) as loop:
            offset = builder.mul(loop.index, _INT64(2 * PANEL))
            narrow, wide = (ir.VectorType(kind, 2 * PANEL) for kind in (_INT8, _INT16))
            values = builder.load(builder.bitcast(builder.gep(source, [offset]), narrow.as_pointer()), align=1)
            address = builder.bitcast(builder.gep(target, [offset]), wide.as_pointer())
            builder.store(builder.sext(values, wide), address, align=2)
        return context.get_dummy_value()

    return types.void(weights, types.int64, types.int64, out), codegen
