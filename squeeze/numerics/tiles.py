"""Compiled products of one row of 16-bit activations and 8-bit weights, by multiplying pairs.

Weights are packed in panels of 16 outputs with the inputs in pairs: int8 [outputs / 16, inputs / 2, 16, 2]. Every x86
processor since 2001 multiplies pairs of 16-bit integers and adds them in one instruction. exact.py defines how long a
sum may be.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from squeeze.numerics.jit import part
from squeeze.numerics.machine_code import (
    INT8,
    INT16,
    INT32,
    INT64,
    PANEL,
    loaded,
    pairs,
    pointer,
    spread,
    stored,
    summed,
    zeros,
)

_AT_ONCE = 4  # panels


def pack(matrix: np.ndarray) -> np.ndarray:
    """Pack int8 [N, K] to int8 [ceil(N / 16), ceil(K / 2), 16, 2], zero-padded; [p, k, c, j] is [16 p + c, 2 k + j]."""
    outputs, inputs = matrix.shape
    padded = np.zeros((-(-outputs // PANEL) * PANEL, -(-inputs // 2) * 2), np.int8)
    padded[:outputs, :inputs] = matrix
    panels = padded.reshape(-1, PANEL, padded.shape[1] // 2, 2)
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3))


def spread_pair(builder: Any, address: Any) -> Any:
    """Load two adjacent int16 from an int32 pointer and repeat them for each output of a panel: int32 [2 * PANEL]."""
    words = builder.bitcast(spread(builder, builder.load(address, align=2), PANEL), ir.VectorType(INT16, 2 * PANEL))
    return builder.sext(words, ir.VectorType(INT32, 2 * PANEL))


def pair_sums(builder: Any, activations: Any, weights: Any) -> Any:
    """Multiply two int32 [2 * PANEL] of 16-bit values and add the products in pairs: int32 [PANEL]."""
    return pairs(builder, builder.mul(activations, weights, flags=["nsw"]))


def _tile(panels: int) -> Any:
    """Return a compiled product of one row of activations and `panels` panels of packed weights.

    Its arguments are int16 activations; packed weights and the first panel; the number of pairs of inputs, at least
    one; and int32 results. All sums stay in registers. Vectors are generic LLVM, which every processor's compiler turns
    into its own multiply-add of pairs (pmaddwd, vpdpwssd, smlal).
    """

    @intrinsic
    def tile(typingctx, a, b, panel, pairs, out):
        def codegen(context, builder, signature, arguments):
            _, _, panel, pairs, _ = arguments
            row, source, target = (
                pointer(context, builder, signature, arguments, i, kind)
                for i, kind in ((0, INT16), (1, INT8), (4, INT32))
            )
            wide, bytes_ = ir.VectorType(INT32, 2 * PANEL), ir.VectorType(INT8, 2 * PANEL)
            stride = builder.mul(pairs, INT64(2 * PANEL))
            places = [builder.add(panel, INT64(p)) for p in range(panels)]
            starts = [builder.gep(source, [builder.mul(place, stride)]) for place in places]

            def step(k, totals):
                first = builder.bitcast(builder.gep(row, [builder.mul(k, INT64(2))]), INT32.as_pointer())
                activations, place = spread_pair(builder, first), builder.mul(k, INT64(2 * PANEL))
                added = []
                for total, start in zip(totals, starts, strict=True):
                    weights = builder.sext(loaded(builder, builder.gep(start, [place]), bytes_), wide)
                    added.append(builder.add(total, pair_sums(builder, activations, weights)))
                return added

            sums = summed(builder, pairs, zeros(ir.VectorType(INT32, PANEL), panels), step)
            for place, value in zip(places, sums, strict=True):
                stored(builder, value, builder.gep(target, [builder.mul(place, INT64(PANEL))]))
            return context.get_dummy_value()

        return types.void(a, b, types.int64, types.int64, out), codegen

    return tile


_several, _single = _tile(_AT_ONCE), _tile(1)


@part
def multiply(activations, weights, outputs, inputs, out):
    """Multiply int16 activations [inputs] by packed weights, and write int32 to `out` [at least `outputs`].

    Args:
        activations: int16 [inputs].
        weights: The packed weights, flat.
        outputs: A multiple of 16.
        inputs: A multiple of 2, at most exact.CHUNK.
        out: The results.
    """
    panels, pairs, panel = outputs // PANEL, inputs // 2, 0
    while panels - panel >= _AT_ONCE:
        _several(activations, weights, panel, pairs, out)
        panel += _AT_ONCE
    while panel < panels:
        _single(activations, weights, panel, pairs, out)
        panel += 1
