"""LLVM vector code for float32 loops that numba might not vectorise.

Every product is rounded before it is added, and sums have one order: 16 partial sums, each over every 16th element, are
added by halves at the end. So the result does not depend on the processor's vectors.
"""

import numpy as np

from squeeze.numerics.codegen import intrinsic, ir, types
from squeeze.numerics.machine_code import looped

LANES = 16  # float32 values; lengths are multiples of it

_FLOAT = ir.FloatType()
VECTOR = ir.VectorType(_FLOAT, LANES)
_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)


def _start(context, builder, array_type, array, offset):
    """Return a pointer to array[offset]."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset])


def _load(builder, pointer, index):
    address = builder.bitcast(builder.gep(pointer, [index]), VECTOR.as_pointer())
    return builder.load(address, align=4)


def _store(builder, value, pointer, index):
    builder.store(value, builder.bitcast(builder.gep(pointer, [index]), VECTOR.as_pointer()), align=4)


def _spread(builder, value):
    single = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), value, _INT32(0))
    return builder.shuffle_vector(single, single, ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES))


def sum_of(builder, sums):
    """Emit the sum of a vector's elements, which are added by halves."""
    width = LANES
    while width > 1:
        width //= 2
        low = ir.Constant(ir.VectorType(_INT32, width), list(range(width)))
        high = ir.Constant(ir.VectorType(_INT32, width), list(range(width, 2 * width)))
        sums = builder.fadd(builder.shuffle_vector(sums, sums, low), builder.shuffle_vector(sums, sums, high))
    return builder.extract_element(sums, _INT32(0))


@intrinsic
def dot(typingctx, a, a_offset, b, b_offset, count):
    """Return the sum of a[a_offset + i] * b[b_offset + i] for i below `count`, float32."""

    def codegen(context, builder, signature, args):
        first = _start(context, builder, signature.args[0], args[0], args[1])
        second = _start(context, builder, signature.args[2], args[2], args[3])

        def step(index, carried):
            product = builder.fmul(_load(builder, first, index), _load(builder, second, index))
            return [builder.fadd(carried[0], product)]

        (total,) = looped(builder, args[4], [ir.Constant(VECTOR, [0.0] * LANES)], step, LANES)
        return sum_of(builder, total)

    count_type = types.int64
    return types.float32(a, count_type, b, count_type, count_type), codegen


@intrinsic
def add_scaled(typingctx, a, a_offset, scale, b, b_offset, count):
    """Add scale * b[b_offset + i] to a[a_offset + i] for i below `count`."""

    def codegen(context, builder, signature, args):
        target = _start(context, builder, signature.args[0], args[0], args[1])
        source = _start(context, builder, signature.args[3], args[3], args[4])
        factor = _spread(builder, args[2])

        def step(index, carried):
            product = builder.fmul(_load(builder, source, index), factor)
            _store(builder, builder.fadd(_load(builder, target, index), product), target, index)
            return []

        looped(builder, args[5], [], step, LANES)
        return context.get_dummy_value()

    count_type = types.int64
    return types.void(a, count_type, types.float32, b, count_type, count_type), codegen


def _dots(rows):
    """Return a compiled product of `rows` float32 rows and one row of weights.

    Weights are uint16 for bfloat16, int16 for float16, or uint32 for float32. The arguments of the result are the
    weights and their offset, the rows with their offset and stride, the number of inputs, and the sums with offset and
    stride.
    """

    @intrinsic
    def dots(typingctx, weights, begin, x, x_begin, x_stride, count, out, place, stride):
        def codegen(context, builder, signature, args):
            element = signature.args[0].dtype
            source = _start(context, builder, signature.args[0], args[0], args[1])
            first, target = (_start(context, builder, signature.args[i], args[i], args[i + 1]) for i in (2, 6))
            factors = [builder.gep(first, [builder.mul(args[4], _INT64(r))]) for r in range(rows)]

            def step(index, carried):
                added = []
                for half in range(2):
                    at = builder.add(index, _INT64(half * LANES))
                    weight = _widened(builder, element, builder.gep(source, [at]), LANES)
                    products = [builder.fmul(weight, _load(builder, factor, at)) for factor in factors]
                    added += [builder.fadd(carried[half * rows + r], products[r]) for r in range(rows)]
                return added

            def rest(index, carried):
                weight = _widened(builder, element, builder.gep(source, [index]), 1)
                weight = builder.extract_element(weight, _INT32(0))
                values = [builder.load(builder.gep(factor, [index])) for factor in factors]
                return [builder.fadd(s, builder.fmul(weight, x)) for s, x in zip(carried, values, strict=True)]

            whole = builder.and_(args[5], _INT64(-2 * LANES))
            zeros = [ir.Constant(VECTOR, [0.0] * LANES)] * (2 * rows)
            sums = looped(builder, whole, zeros, step, 2 * LANES)
            totals = [sum_of(builder, builder.fadd(sums[r], sums[rows + r])) for r in range(rows)]
            for r, total in enumerate(looped(builder, args[5], totals, rest, 1, whole)):
                builder.store(total, builder.gep(target, [builder.mul(args[8], _INT64(r))]))
            return context.get_dummy_value()

        n = types.int64
        return types.void(weights, n, x, n, n, n, out, n, n), codegen

    return dots


dots_of_one, dots_of_four = _dots(1), _dots(4)


def _widened(builder, element, pointer, count):
    """Load `count` weights as a vector of float32. See `_dots` for their types."""
    words = ir.VectorType(_INT32, count)

    def each(value):
        return ir.Constant(words, [value] * count)

    stored = ir.VectorType(ir.IntType(element.bitwidth), count)
    bits = builder.load(builder.bitcast(pointer, stored.as_pointer()), align=element.bitwidth // 8)
    floats = ir.VectorType(_FLOAT, count)
    if element == types.uint32:
        return builder.bitcast(bits, floats)
    bits = builder.zext(bits, words)
    if element == types.uint16:
        return builder.bitcast(builder.shl(bits, each(16)), floats)
    magnitude = builder.shl(builder.and_(bits, each(0x7FFF)), each(13))
    scaled = builder.fmul(builder.bitcast(magnitude, floats), ir.Constant(floats, [2.0**112] * count))
    is_finite = builder.icmp_unsigned("<", magnitude, each(0x7C00 << 13))
    magnitude = builder.select(is_finite, builder.bitcast(scaled, words), builder.or_(magnitude, each(0x7F800000)))
    return builder.bitcast(builder.or_(magnitude, builder.shl(builder.and_(bits, each(0x8000)), each(16))), floats)


_POLYNOMIAL = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
_LOG2_E, _ROUND, _LOWEST = 1.4426950408889634, 12582912.0, -87.0


def _constant(value):
    return ir.Constant(VECTOR, [float(np.float32(value))] * LANES)


def _exp_negative(builder, x):
    """Emit `exact.exp_negative` of each element."""
    words = ir.VectorType(_INT32, LANES)
    low = _constant(_LOWEST)
    t = builder.fmul(builder.select(builder.fcmp_ordered(">", x, low), x, low), _constant(_LOG2_E))
    rounded = builder.fadd(t, _constant(_ROUND))
    exponent = builder.sub(builder.bitcast(rounded, words), ir.Constant(words, [0x4B400000 - 127] * LANES))
    r = builder.fsub(t, builder.fsub(rounded, _constant(_ROUND)))
    p = _constant(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = builder.fadd(builder.fmul(p, r), _constant(coefficient))
    return builder.fmul(p, builder.bitcast(builder.shl(exponent, ir.Constant(words, [23] * LANES)), VECTOR))


@intrinsic
def exp_shares(typingctx, x, x_offset, count, top, unit, factors, factors_offset):
    """Replace each x by e^(x - top) * factor, and return the sum of round(e^(x - top) * unit), int32.

    Args:
        x: float32.
        x_offset: Where the values begin.
        count: The number of values.
        top: The largest of them.
        unit: A float32.
        factors: float32, a factor for each value.
        factors_offset: Where the factors begin.
    """

    def codegen(context, builder, signature, args):
        values = _start(context, builder, signature.args[0], args[0], args[1])
        factors = _start(context, builder, signature.args[5], args[5], args[6])
        top, unit = _spread(builder, args[3]), _spread(builder, args[4])
        words = ir.VectorType(_INT32, LANES)

        def step(index, carried):
            share = _exp_negative(builder, builder.fsub(_load(builder, values, index), top))
            rounded = builder.fadd(builder.fmul(share, unit), _constant(_ROUND))
            counted = builder.sub(builder.bitcast(rounded, words), ir.Constant(words, [0x4B400000] * LANES))
            _store(builder, builder.fmul(share, _load(builder, factors, index)), values, index)
            return [builder.add(carried[0], counted)]

        (total,) = looped(builder, args[2], [ir.Constant(words, None)], step, LANES)
        result = builder.extract_element(total, _INT32(0))
        for lane in range(1, LANES):
            result = builder.add(result, builder.extract_element(total, _INT32(lane)))
        return result

    n = types.int64
    return types.int32(x, n, n, types.float32, types.float32, factors, n), codegen
