"""The loop that products share: it runs at least once, begins with what it is given, and nests."""

import numpy as np
import pytest
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from squeeze.numerics.integer_sums import pairs, pointer, spread, stored, summed
from squeeze.numerics.jit import kernel
from squeeze.numerics.words import INT32, INT64

FOUR = ir.VectorType(INT32, 4)


@intrinsic
def triangle(typingctx, rows, columns, out):
    """Adds row and 10 times the column for each of them to (1, 2, 3, 4); its first two results are sums of pairs."""

    def codegen(context, builder, signature, arguments):
        def row(r, sums):
            def column(c, sums):
                value = builder.add(builder.trunc(r, INT32), builder.trunc(builder.mul(c, INT64(10)), INT32))
                return [builder.add(sums[0], spread(builder, value, 4))]

            return summed(builder, arguments[1], sums, column)

        (total,) = summed(builder, arguments[0], [ir.Constant(FOUR, [1, 2, 3, 4])], row)
        stored(builder, pairs(builder, total), pointer(context, builder, signature, arguments, 2, INT32))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, out), codegen


@kernel
def run(rows, columns, out):
    triangle(rows, columns, out)


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 5), (4, 1), (0, 2)])
def test_a_nested_loop_adds_what_every_step_says(rows, columns):
    out = np.full(3, 7, np.int32)
    run(rows, columns, out)
    added = sum(r + 10 * c for r in range(max(rows, 1)) for c in range(columns))
    assert out.tolist() == [3 + 2 * added, 7 + 2 * added, 7]
