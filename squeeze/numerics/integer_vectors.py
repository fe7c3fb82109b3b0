"""LLVM vector code for short loops over integers: products, steps of learning, and search in a cache line.

numba vectorises such loops for many elements, and leaves a few to one at a time. Mixers have 9 to 40 inputs.
"""

from squeeze.numerics.codegen import intrinsic, ir, types
from squeeze.numerics.jit import inline
from squeeze.numerics.machine_code import INT8, INT32, INT64, loaded, looped, pointer, spread, stored

LANES = 8  # values at once
_WORDS, _WIDE = ir.VectorType(INT32, LANES), ir.VectorType(INT64, LANES)
_SLOT, _LINE = 16, 64  # bytes


def _size(context, builder, signature, args, i):
    """Return the size of argument `i`, an array of one dimension."""
    return builder.extract_value(context.make_array(signature.args[i])(context, builder, args[i]).shape, 0)


def _widened(builder, address):
    """Load values as int64."""
    return builder.sext(loaded(builder, address, _WORDS, 4), _WIDE)


def _added_up(builder, sums):
    width = LANES
    while width > 1:
        width //= 2
        low, high = (ir.Constant(ir.VectorType(INT32, width), list(range(k, k + width))) for k in (0, width))
        sums = builder.add(builder.shuffle_vector(sums, sums, low), builder.shuffle_vector(sums, sums, high))
    return builder.extract_element(sums, INT32(0))


@intrinsic
def dot(typingctx, weights, inputs):
    """Return the sum of weights[i] * inputs[i], int64, of two int32 arrays of one size."""

    def codegen(context, builder, signature, args):
        first, second = (pointer(context, builder, signature, args, i, INT32) for i in (0, 1))
        count = _size(context, builder, signature, args, 1)

        def step(index, sums):
            factors = [
                builder.sext(loaded(builder, builder.gep(p, [index]), _WORDS, 4), _WIDE) for p in (first, second)
            ]
            return [builder.add(sums[0], builder.mul(*factors))]

        def rest(index, sums):
            factors = [builder.sext(builder.load(builder.gep(p, [index])), INT64) for p in (first, second)]
            return [builder.add(sums[0], builder.mul(*factors))]

        whole = builder.and_(count, INT64(-LANES))
        (sums,) = looped(builder, whole, [ir.Constant(_WIDE, None)], step, LANES)
        (total,) = looped(builder, count, [_added_up(builder, sums)], rest, 1, whole)
        return total

    return types.int64(weights, inputs), codegen


def _adding(shift):
    """Return a compiled step of learning: weights[i] += (factor * inputs[i]) >> shift, rounded, int32."""

    @intrinsic
    def add_scaled(typingctx, weights, factor, inputs):
        def codegen(context, builder, signature, args):
            target, source = (pointer(context, builder, signature, args, i, INT32) for i in (0, 2))
            count = _size(context, builder, signature, args, 2)
            factors, half, places = (spread(builder, x, LANES) for x in (args[1], INT64(1 << shift - 1), INT64(shift)))

            # The low 32 bits of a shift by at most 32 are the same with and without the sign.
            def step(index, nothing):
                at = builder.gep(target, [index])
                product = builder.mul(
                    builder.sext(loaded(builder, builder.gep(source, [index]), _WORDS, 4), _WIDE), factors
                )
                change = builder.trunc(builder.lshr(builder.add(product, half), places), _WORDS)
                stored(builder, builder.add(loaded(builder, at, _WORDS, 4), change), at)
                return []

            def rest(index, nothing):
                at = builder.gep(target, [index])
                product = builder.mul(builder.sext(builder.load(builder.gep(source, [index])), INT64), args[1])
                change = builder.trunc(builder.lshr(builder.add(product, INT64(1 << shift - 1)), INT64(shift)), INT32)
                builder.store(builder.add(builder.load(at), change), at)
                return []

            whole = builder.and_(count, INT64(-LANES))
            looped(builder, whole, [], step, LANES)
            looped(builder, count, [], rest, 1, whole)
            return context.get_dummy_value()

        return types.void(weights, types.int64, inputs), codegen

    return add_scaled


add_scaled_22, add_scaled_24 = _adding(22), _adding(24)


@intrinsic
def word_at(typingctx, data, place):
    """Return the eight bytes of a uint8 array from a place on as uint64, the first in the low bits."""

    def codegen(context, builder, signature, args):
        at = builder.gep(pointer(context, builder, signature, args, 0, INT8), [args[1]])
        return loaded(builder, at, INT64)

    return types.uint64(data, types.int64), codegen


@intrinsic
def places_of(typingctx, slots, line, check):
    """Return where in a cache line the slots begin that start with a byte, int64: a set bit for each such place."""

    def codegen(context, builder, signature, args):
        at = builder.gep(pointer(context, builder, signature, args, 0, INT8), [args[1]])
        wanted = spread(builder, args[2], _LINE)
        equal = builder.icmp_unsigned("==", loaded(builder, at, ir.VectorType(INT8, _LINE)), wanted)
        begins = INT64(sum(1 << place for place in range(0, _LINE, _SLOT)))
        return builder.and_(builder.bitcast(equal, INT64), begins)

    return types.int64(slots, types.int64, types.uint8), codegen


@intrinsic
def first_place(typingctx, places):
    """Return the lowest bit of `places_of` that is set, or 64 if none is, int64."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.IntType(1)(0))

    return types.int64(types.int64), codegen


@inline
def find_check(slots, line, check):
    """Return where in a cache line of four slots the first one begins with a byte, or 64 if none does, int64."""
    return first_place(places_of(slots, line, check))
