"""A table's values by their codes are the same whatever instructions find them."""

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from squeeze.kv import unpacking
from squeeze.numerics import machine_code

_FEATURES = {"avx512f": {"avx512f", "avx2"}, "avx2": {"avx2"}, "plain": set()}


def _looked_up(size):
    @intrinsic
    def of_sixteen(typingctx, table, codes, out):
        def codegen(context, builder, signature, args):
            pointers = [
                context.make_array(kind)(context, builder, value).data
                for kind, value in zip(signature.args, args, strict=True)
            ]
            codes = ir.VectorType(ir.IntType(32), unpacking.LANES)
            floats = ir.VectorType(ir.FloatType(), unpacking.LANES)
            loaded = builder.load(builder.bitcast(pointers[1], codes.as_pointer()), align=4)
            values = unpacking.Table(builder, pointers[0], size).look_up(builder, loaded)
            builder.store(values, builder.bitcast(pointers[2], floats.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(table, codes, out), codegen

    @numba.njit
    def run(table, codes, out):
        of_sixteen(table, codes, out)

    return run


@pytest.mark.parametrize("instructions", _FEATURES)
@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_a_table_gives_the_values_of_codes(size, instructions, monkeypatch):
    features = _FEATURES[instructions]
    if not all(map(machine_code.has, features)):
        pytest.skip(f"this processor has no {instructions}")
    monkeypatch.setattr(unpacking, "has", features.__contains__)
    generator = np.random.default_rng(size)
    table, run = generator.standard_normal(64).astype(np.float32), _looked_up(size)
    for _ in range(8):
        codes, out = generator.integers(0, size, 16, np.int32), np.empty(16, np.float32)
        run(table, codes, out)
        assert np.array_equal(out, table[codes])
