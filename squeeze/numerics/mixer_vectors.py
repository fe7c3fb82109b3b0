"""LLVM vector code of float32 mixers: several products at once, and values less their means.

Elements are added in the order of vectors.py, so results do not depend on the processor's vectors.
"""

from squeeze.numerics.codegen import intrinsic, ir, types
from squeeze.numerics.jit import inline
from squeeze.numerics.machine_code import INT32, INT64, loaded, looped, pointer, spread
from squeeze.numerics.vectors import LANES, VECTOR, sum_of

FLOAT = ir.FloatType()
_KINDS = 4  # values of a group whose means are subtracted
_FOUR = ir.VectorType(FLOAT, _KINDS)


def _load(builder, start, index, kind):
    return loaded(builder, builder.gep(start, [index]), kind, 4)


def _store(builder, value, start, index):
    builder.store(value, builder.bitcast(builder.gep(start, [index]), value.type.as_pointer()), align=4)


def _sums_of_four(builder, vectors):
    """Return a vector of what `sum_of` returns for each of four vectors."""

    def halved(first, second, size):
        """Add the second half of each `size` elements to the first half; `second` None leaves it out."""
        count = first.type.count * (1 if second is None else 2)
        second, chosen = first if second is None else second, ir.VectorType(INT32, count // 2)
        low, high = (
            ir.Constant(chosen, [start + i for start in range(half, count, size) for i in range(size // 2)])
            for half in (0, size // 2)
        )
        return builder.fadd(builder.shuffle_vector(first, second, low), builder.shuffle_vector(first, second, high))

    sums = halved(halved(*vectors[:2], LANES), halved(*vectors[2:], LANES), LANES // 2)
    return halved(halved(sums, None, 4), None, 2)


def _products_of(count):
    """Return a compiled product of `count` rows, 1 or 4, of a matrix with one vector, as `dot` computes it.

    The arguments of the result are the matrix, flat, row numbers, which of them is the first, the vector and its
    length, the results, and their largest magnitude. Results are clamped, and stored where their row numbers are.
    """

    @intrinsic
    def products(typingctx, matrix, rows, first, vector, length, out, limit):
        def codegen(context, builder, signature, args):
            numbers, target = (
                builder.gep(pointer(context, builder, signature, args, i, kind), [args[2]])
                for i, kind in ((1, INT64), (5, FLOAT))
            )
            source = pointer(context, builder, signature, args, 0, FLOAT)
            factors = pointer(context, builder, signature, args, 3, FLOAT)
            starts = [
                builder.gep(source, [builder.mul(builder.load(builder.gep(numbers, [INT64(k)])), args[4])])
                for k in range(count)
            ]

            def step(index, carried):
                factor = _load(builder, factors, index, VECTOR)
                products = [builder.fmul(_load(builder, start, index, VECTOR), factor) for start in starts]
                return [builder.fadd(total, product) for total, product in zip(carried, products, strict=True)]

            sums = looped(builder, args[4], [ir.Constant(VECTOR, [0.0] * LANES)] * count, step, LANES)
            if count == 1:
                lowest, found = builder.fneg(args[6]), sum_of(builder, sums[0])
            else:
                lowest, found = spread(builder, builder.fneg(args[6]), count), _sums_of_four(builder, sums)
            highest = builder.fneg(lowest)
            found = builder.select(builder.fcmp_ordered(">", found, lowest), found, lowest)
            found = builder.select(builder.fcmp_ordered("<", found, highest), found, highest)
            builder.store(found, builder.bitcast(target, found.type.as_pointer()), align=4)
            return context.get_dummy_value()

        n = types.int64
        return types.void(matrix, rows, n, vector, n, out, types.float32), codegen

    return products


_product_of_one, _products_of_four = _products_of(1), _products_of(4)


@inline
def products(matrix, rows, count, vector, length, out, limit):
    """Multiply rows of a matrix by a vector, as `dot` does, and clamp the results to a magnitude.

    Args:
        matrix: float32, flat.
        rows: int64, numbers of its rows.
        count: how many of them.
        vector: float32, whose `length` values are multiplied.
        length: a multiple of LANES.
        out: float32, a result for each row.
        limit: the largest magnitude, float32.
    """
    whole = count & ~3
    for k in range(0, whole, 4):
        _products_of_four(matrix, rows, k, vector, length, out, limit)
    for k in range(whole, count):
        _product_of_one(matrix, rows, k, vector, length, out, limit)


def _known(builder, values):
    return builder.fcmp_unordered("!=", values, ir.Constant(values.type, None))


def _place_of(builder, means, part):
    """Emit where the means of a part are: `means` is where those of all begin."""
    return builder.add(means, builder.mul(builder.add(part, INT64(1)), INT64(_KINDS)))


def _averaged(builder, data, begins, parts, means):
    """Emit the loops that store the means of parts, and return the means of all."""
    zero, one = (ir.Constant(_FOUR, [value] * _KINDS) for value in (0.0, 1.0))

    def mean_of(total, count):
        return builder.fdiv(total, builder.select(builder.fcmp_ordered(">", count, one), count, one))

    def add_up(index, carried):
        values = _load(builder, data, index, _FOUR)
        counted = builder.select(_known(builder, values), one, zero)
        return [builder.fadd(carried[0], values), builder.fadd(carried[1], counted)]

    def average(part, carried):
        numbers = (builder.load(builder.gep(begins, [builder.add(part, INT64(k))])) for k in (0, 1))
        begin, end = (builder.mul(number, INT64(_KINDS)) for number in numbers)
        found = looped(builder, end, [zero, zero], add_up, _KINDS, begin)
        _store(builder, mean_of(*found), data, _place_of(builder, means, part))
        return [builder.fadd(before, more) for before, more in zip(carried, found, strict=True)]

    return mean_of(*looped(builder, parts, [zero, zero], average))


def _subtracting(builder, data, mean, kind):
    """Return a step of a loop that subtracts the means from vectors of a kind."""
    mask = ir.Constant(ir.VectorType(INT32, kind.count), [i % _KINDS for i in range(kind.count)])
    less = builder.shuffle_vector(mean, mean, mask)

    def step(index, nothing):
        values = _load(builder, data, index, kind)
        rest = builder.select(_known(builder, values), builder.fsub(values, less), ir.Constant(kind, None))
        _store(builder, rest, data, index)
        return []

    return step


@intrinsic
def centre(typingctx, values, groups, scale):
    """Subtract from groups of four values their mean over all groups, and append the means.

    Args:
        values: float32: 4 n values, then the means of all and of each part, four each. A value 0 is not known: it stays
            0 and counts for no mean.
        groups: int64 [parts + 1]: where each part of the n groups begins, and n.
        scale: float32, a factor of means. The mean of all is subtracted from those of parts.
    """

    def codegen(context, builder, signature, args):
        data = pointer(context, builder, signature, args, 0, FLOAT)
        begins = pointer(context, builder, signature, args, 1, INT64)
        parts = builder.sub(context.make_array(signature.args[1])(context, builder, args[1]).nitems, INT64(1))
        means = builder.mul(builder.load(builder.gep(begins, [parts])), INT64(_KINDS))
        scale = spread(builder, args[2], _KINDS)
        mean = _averaged(builder, data, begins, parts, means)
        whole = builder.and_(means, INT64(-LANES))
        looped(builder, whole, [], _subtracting(builder, data, mean, VECTOR), LANES)
        looped(builder, means, [], _subtracting(builder, data, mean, _FOUR), _KINDS, whole)
        _store(builder, builder.fmul(mean, scale), data, means)

        def scaled(part, nothing):
            place = _place_of(builder, means, part)
            rest = builder.fsub(_load(builder, data, place, _FOUR), mean)
            _store(builder, builder.fmul(rest, scale), data, place)
            return []

        looped(builder, parts, [], scaled)
        return context.get_dummy_value()

    return types.void(values, groups, types.float32), codegen
