"""Machine code that multiplies packed codes by activations: vectors of generic LLVM, as every processor has them.

A product of 16-bit integers in pairs is one instruction everywhere (pmaddwd, vpdpwssd, smlal).
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

UNIT = 16  # bytes decoded at a time: 16, 32 or 64 codes of 8, 4 or 2 bits

_INT8, _INT16, _INT32, _INT64, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


def decoder(rows: int, bits: int) -> Any:
    """A compiled product of `rows` rows of codes with one row of activations.

    The intrinsic's arguments: codes uint8 [O, stride], scales float32 and zeros uint8 [O, chunks], activations int16
    [R, I], their scales float32 and sums int32 [R, chunks], the first row of codes, the row of activations, stride,
    chunks, units in a chunk, and out float32 [rows]. A byte's fields are taken apart for 16 bytes at once, so
    activations of a unit come field by field.
    """
    fields = 8 // bits
    bytes_, wide = ir.VectorType(_INT8, UNIT), ir.VectorType(_INT16, UNIT)
    longs, sums = ir.VectorType(_INT32, UNIT), ir.VectorType(_INT32, UNIT // 2)
    floats = ir.VectorType(_FLOAT, UNIT // 2)
    lanes = UNIT // 2

    def constant(vector: Any, value: int) -> Any:
        return ir.Constant(vector, [value] * vector.count)

    def shuffle(builder: Any, vector: Any, indices: Any) -> Any:
        mask = ir.Constant(ir.VectorType(_INT32, len(indices)), list(indices))
        return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)

    def products(builder: Any, code: Any, value: Any) -> Any:
        """int32 [8]: sums of pairs."""
        product = builder.mul(builder.sext(code, longs), builder.sext(value, longs), flags=["nsw"])
        even, odd = shuffle(builder, product, range(0, UNIT, 2)), shuffle(builder, product, range(1, UNIT, 2))
        return builder.add(even, odd)

    def unit(builder: Any, codes: Any, values: Any, totals: list[Any]) -> list[Any]:
        """Add the products of 16 bytes of each row."""
        activations = []
        for field in range(fields):
            address = builder.bitcast(builder.gep(values, [_INT64(UNIT * field)]), wide.as_pointer())
            activations.append(builder.load(address, align=2))
        added = []
        for start, before in zip(codes, totals, strict=True):
            packed, total = (
                builder.zext(builder.load(builder.bitcast(start, bytes_.as_pointer()), align=1), wide),
                before,
            )
            for field, value in enumerate(activations):
                code = builder.lshr(packed, constant(wide, bits * field)) if field else packed
                if field < fields - 1:
                    code = builder.and_(code, constant(wide, (1 << bits) - 1))
                total = builder.add(total, products(builder, code, value))
            added.append(total)
        return added

    def across(builder: Any, vector: Any) -> Any:
        """The sum of a vector's lanes."""
        width = lanes
        while width > 1:
            width //= 2
            halves = shuffle(builder, vector, range(width)), shuffle(builder, vector, range(width, 2 * width))
            vector = builder.fadd(*halves)
        return builder.extract_element(vector, _INT32(0))

    @intrinsic
    def multiply(typingctx, codes, scales, zeros, a, a_scales, a_sums, first, row, stride, chunks, units, out):
        def codegen(context, builder, signature, arguments):
            first, row, stride, chunks, units = arguments[6:11]

            def pointer(i, kind, offset):
                data = context.make_array(signature.args[i])(context, builder, arguments[i]).data
                return builder.gep(builder.bitcast(data, kind.as_pointer()), [offset])

            def below(i, kind, step):
                """Where each of the rows of codes, scales or zeros begins."""
                return [pointer(i, kind, builder.mul(builder.add(first, _INT64(n)), step)) for n in range(rows)]

            codes, scales, zeros = below(0, _INT8, stride), below(1, _FLOAT, chunks), below(2, _INT8, chunks)
            along = builder.mul(row, chunks)
            value_scales, value_sums = pointer(4, _FLOAT, along), pointer(5, _INT32, along)
            values = pointer(3, _INT16, builder.mul(builder.mul(along, units), _INT64(UNIT * fields)))
            before = builder.block
            outer, inner = builder.append_basic_block("chunk"), builder.append_basic_block("unit")
            scaled, done = builder.append_basic_block("scaled"), builder.append_basic_block("done")
            builder.branch(outer)

            builder.position_at_end(outer)
            chunk = builder.phi(_INT64)
            chunk.add_incoming(_INT64(0), before)
            results = [builder.phi(floats) for _ in range(rows)]
            for result in results:
                result.add_incoming(ir.Constant(floats, None), before)
            value_sum = builder.load(builder.gep(value_sums, [chunk]))
            starts = []
            for zero in zeros:
                point = builder.zext(builder.load(builder.gep(zero, [chunk])), _INT32)
                less = builder.neg(builder.mul(point, value_sum))
                starts.append(builder.insert_element(ir.Constant(sums, None), less, _INT32(0)))
            begin = builder.mul(chunk, units)
            builder.branch(inner)

            builder.position_at_end(inner)
            number = builder.phi(_INT64)
            number.add_incoming(_INT64(0), outer)
            totals = [builder.phi(sums) for _ in range(rows)]
            for total, start in zip(totals, starts, strict=True):
                total.add_incoming(start, outer)
            place = builder.mul(builder.add(begin, number), _INT64(UNIT))
            at = [builder.gep(start, [place]) for start in codes]
            added = unit(builder, at, builder.gep(values, [builder.mul(place, _INT64(fields))]), totals)
            following = builder.add(number, _INT64(1))
            number.add_incoming(following, inner)
            for total, value in zip(totals, added, strict=True):
                total.add_incoming(value, inner)
            builder.cbranch(builder.icmp_signed("<", following, units), inner, scaled)

            builder.position_at_end(scaled)
            value_scale = builder.load(builder.gep(value_scales, [chunk]))
            updated = []
            for result, total, scale in zip(results, added, scales, strict=True):
                factor = builder.fmul(builder.load(builder.gep(scale, [chunk])), value_scale)
                one = builder.insert_element(ir.Constant(floats, ir.Undefined), factor, _INT32(0))
                product = builder.fmul(
                    builder.sitofp(total, floats), shuffle(builder, one, [0] * lanes), flags=["contract"]
                )
                updated.append(builder.fadd(result, product, flags=["contract"]))
            next_chunk = builder.add(chunk, _INT64(1))
            chunk.add_incoming(next_chunk, scaled)
            for result, value in zip(results, updated, strict=True):
                result.add_incoming(value, scaled)
            builder.cbranch(builder.icmp_signed("<", next_chunk, chunks), outer, done)

            builder.position_at_end(done)
            target = pointer(11, _FLOAT, _INT64(0))
            for n, value in enumerate(updated):
                builder.store(across(builder, value), builder.gep(target, [_INT64(n)]))
            return context.get_dummy_value()

        counts = (types.int64,) * 5
        return types.void(codes, scales, zeros, a, a_scales, a_sums, *counts, out), codegen

    return multiply
