"""Integer products of one row of activations and panels of weights: compiled as vectors, all sums in registers.

Matrices are *packed* for it: panels of 16 output channels, in each the inputs in pairs, int8
[outputs / 16, inputs / 2, 16, 2]. A product is a sum over pairs: every x86 processor since 2001 multiplies 16-bit
pairs and adds them in one instruction. exact.py says how long a sum may be.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from squeeze.numerics.jit import part

PANEL = 16  # output channels side by side
_AT_ONCE = 4  # panels


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


def _tile(panels: int) -> Any:
    """Return a compiled product of a row of activations and `panels` panels of packed weights.

    The intrinsic's arguments: int16 activations; packed weights, and the first panel; pairs of inputs (at least one);
    int32 results. All sums stay in registers. They are written as vectors of generic LLVM, which every processor's
    compiler turns into its own multiply-add of pairs (pmaddwd, vpdpwssd, smlal).
    """

    @intrinsic
    def tile(typingctx, a, b, panel, pairs, out):
        def codegen(context, builder, signature, arguments):
            _, _, panel, pairs, _ = arguments

            def pointer(i, kind):
                array = context.make_array(signature.args[i])(context, builder, arguments[i])
                return builder.bitcast(array.data, kind.as_pointer())

            sums = ir.VectorType(_INT32, PANEL)
            wide, weights = ir.VectorType(_INT32, 2 * PANEL), ir.VectorType(_INT8, 2 * PANEL)
            source, target = pointer(1, _INT8), pointer(4, _INT32)
            stride = builder.mul(pairs, _INT64(2 * PANEL))
            places = [builder.add(panel, _INT64(p)) for p in range(panels)]
            starts = [builder.gep(source, [builder.mul(place, stride)]) for place in places]
            before = builder.block
            body, after = builder.append_basic_block("pairs"), builder.append_basic_block("done")
            builder.branch(body)
            builder.position_at_end(body)
            k = builder.phi(_INT64)
            k.add_incoming(_INT64(0), before)
            totals = [builder.phi(sums) for _ in range(panels)]
            for total in totals:
                total.add_incoming(ir.Constant(sums, None), before)
            address = builder.bitcast(builder.gep(pointer(0, _INT16), [builder.mul(k, _INT64(2))]), _INT32.as_pointer())
            activations = spread_pair(builder, address)
            added = []
            for total, start in zip(totals, starts, strict=True):
                address = builder.bitcast(builder.gep(start, [builder.mul(k, _INT64(2 * PANEL))]), weights.as_pointer())
                weight = builder.sext(builder.load(address, align=1), wide)
                added.append(builder.add(total, pair_sums(builder, activations, weight)))
            following = builder.add(k, _INT64(1))
            k.add_incoming(following, builder.block)
            for total, value in zip(totals, added, strict=True):
                total.add_incoming(value, builder.block)
            builder.cbranch(builder.icmp_signed("<", following, pairs), body, after)
            builder.position_at_end(after)
            for place, value in zip(places, added, strict=True):
                address = builder.gep(target, [builder.mul(place, _INT64(PANEL))])
                builder.store(value, builder.bitcast(address, sums.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(a, b, types.int64, types.int64, out), codegen

    return tile


_several, _single = _tile(_AT_ONCE), _tile(1)


@part
def multiply(activations, weights, outputs, inputs, out):
    """int32 sums `out` [at least `outputs`]: int16 activations [inputs] times packed weights [bytes].

    `inputs` is at most exact.CHUNK.
    """
    panels, pairs, panel = outputs // PANEL, inputs // 2, 0
    while panels - panel >= _AT_ONCE:
        _several(activations, weights, panel, pairs, out)
        panel += _AT_ONCE
    while panel < panels:
        _single(activations, weights, panel, pairs, out)
        panel += 1
