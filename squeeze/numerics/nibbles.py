"""Compiled products of one row of 16-bit activations and 4-bit weights, by multiplying pairs.

A row times weights that are used once is bound by the memory traffic of the weights, and these take half the bytes of
tiles.py for the same integers. Weights are odd, from -15 to 15, and stored as their half plus 7.5. The sum of the
activations tells what that adds.

Panels of 16 outputs follow each other. A panel has the inputs in eights, [panels, inputs / 8, 16, 2] of 16 bits. The
first word has inputs 0, 2, 4 and 6 of an output from the lowest bits up, the second 1, 3, 5 and 7.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from squeeze.numerics.jit import part
from squeeze.numerics.machine_code import INT16, INT32, INT64, PANEL, loaded, pointer, stored, summed, zeros
from squeeze.numerics.tiles import pair_sums, spread_pair

STEP = 8  # inputs of a step
_WORDS = 2 * PANEL  # words of a step of one panel
_PAIRS = STEP // 2
_AT_ONCE = 4  # panels


def pack(matrix: np.ndarray) -> np.ndarray:
    """Pack int8 [N, K], odd and from -15 to 15, to uint16 [N / 16, K / 8, 16, 2]. N is a multiple of 16, K of 8."""
    stored = (matrix + 15 >> 1).astype(np.uint16).reshape(-1, PANEL, matrix.shape[1] // STEP, _PAIRS, 2)
    words = (stored << np.arange(0, 16, 4, dtype=np.uint16)[:, None]).sum(3, dtype=np.uint16)
    return np.ascontiguousarray(words.transpose(0, 2, 1, 3))


def _tile(panels: int) -> Any:
    """Return a compiled product of one row and `panels` panels, without the correction for the stored form.

    Its arguments are int16 activations; weights and the number of the first panel; the number of steps, at least one;
    and int32 results.
    """

    @intrinsic
    def tile(typingctx, activations, weights, panel, steps, out):
        def codegen(context, builder, signature, arguments):
            _, _, panel, steps, _ = arguments
            row, source, target = (
                pointer(context, builder, signature, arguments, i, kind)
                for i, kind in ((0, INT32), (1, INT16), (4, INT32))  # a pair of activations each
            )
            sums, packed, wide = (ir.VectorType(*of) for of in ((INT32, PANEL), (INT16, _WORDS), (INT32, _WORDS)))
            stride = builder.mul(steps, INT64(_WORDS))
            start = builder.gep(source, [builder.mul(panel, stride)])

            def step(k, totals):
                first = builder.gep(row, [builder.mul(k, INT64(_PAIRS))])
                pairs = [spread_pair(builder, builder.gep(first, [INT64(i)])) for i in range(_PAIRS)]
                added = list(totals)
                for p in range(panels):
                    place = builder.add(builder.mul(stride, INT64(p)), builder.mul(k, INT64(_WORDS)))
                    words = loaded(builder, builder.gep(start, [place]), packed, align=2)
                    for i, pair in enumerate(pairs):
                        shifted = builder.lshr(words, ir.Constant(packed, [4 * i] * _WORDS))
                        values = builder.zext(builder.and_(shifted, ir.Constant(packed, [15] * _WORDS)), wide)
                        added[p] = builder.add(added[p], pair_sums(builder, pair, values))
                return added

            for p, value in enumerate(summed(builder, steps, zeros(sums, panels), step)):
                place = builder.mul(builder.add(panel, INT64(p)), INT64(PANEL))
                stored(builder, value, builder.gep(target, [place]))
            return context.get_dummy_value()

        return types.void(activations, weights, types.int64, types.int64, out), codegen

    return tile


_several, _single = _tile(_AT_ONCE), _tile(1)


@part
def multiply(activations, weights, outputs, inputs, out):
    """int32 sums `out` [at least `outputs`]: int16 activations [inputs] times packed weights [bytes].

    `inputs` is at most exact.CHUNK.
    """
    panels, steps, panel = outputs // PANEL, inputs // STEP, 0
    while panels - panel >= _AT_ONCE:
        _several(activations, weights, panel, steps, out)
        panel += _AT_ONCE
    while panel < panels:
        _single(activations, weights, panel, steps, out)
        panel += 1
    total = np.int32(0)
    for i in range(inputs):
        total += np.int32(activations[i])
    added = 15 * total
    for i in range(outputs):
        out[i] = 2 * out[i] - added
