"""Machine code that multiplies packed codes by activations, in LLVM's generic vectors, which every processor has.

A product of 16-bit integers in pairs is one instruction everywhere (pmaddwd, vpdpwssd, smlal).
"""

from dataclasses import dataclass
from typing import Any

from squeeze.numerics.codegen import intrinsic, ir, types
from squeeze.numerics.machine_code import INT8, INT16, INT32, INT64, loaded, pairs, shuffle, spread, summed, zeros

UNIT = 16  # bytes decoded at a time: 16, 32 or 64 codes of 8, 4 or 2 bits

_LANES = UNIT // 2
_FLOAT = ir.FloatType()
_BYTES, _WIDE = ir.VectorType(INT8, UNIT), ir.VectorType(INT16, UNIT)
_LONGS, _SUMS = ir.VectorType(INT32, UNIT), ir.VectorType(INT32, _LANES)
_FLOATS = ir.VectorType(_FLOAT, _LANES)


def decoder(rows: int, bits: int) -> Any:
    """Return a compiled product of `rows` rows of codes with one row of activations.

    The intrinsic's arguments are: codes uint8 [O, stride], scales float32 and zeros uint8 [O, chunks], activations
    int16 [R, I], their scales float32 and sums int32 [R, chunks], the first row of codes, the row of activations,
    stride, chunks, units in a chunk, and out float32 [rows]. The fields of 16 bytes are extracted at once, so the
    activations of a unit are ordered by field.
    """

    @intrinsic
    def multiply(typingctx, codes, scales, zeros, a, a_scales, a_sums, first, row, stride, chunks, units, out):
        def codegen(context, builder, signature, arguments):
            operands = _operands(context, builder, signature, arguments, rows, 8 // bits)
            totals = _Products(builder, operands, bits).emit()
            for number, total in enumerate(totals):
                builder.store(_across(builder, total), builder.gep(operands.out, [INT64(number)]))
            return context.get_dummy_value()

        counts = (types.int64,) * 5
        return types.void(codes, scales, zeros, a, a_scales, a_sums, *counts, out), codegen

    return multiply


@dataclass(frozen=True)
class _Operands:
    """LLVM values: pointers to the rows of codes, scales and zeros and to the row of activations, and counts."""

    codes: list[Any]
    scales: list[Any]
    zeros: list[Any]
    values: Any
    value_scales: Any
    value_sums: Any
    chunks: Any
    units: Any
    out: Any


def _operands(context: Any, builder: Any, signature: Any, arguments: Any, rows: int, fields: int) -> _Operands:
    first, row, stride, chunks, units = arguments[6:11]

    def pointer(i: int, kind: Any, offset: Any) -> Any:
        data = context.make_array(signature.args[i])(context, builder, arguments[i]).data
        return builder.gep(builder.bitcast(data, kind.as_pointer()), [offset])

    def below(i: int, kind: Any, step: Any) -> list[Any]:
        return [pointer(i, kind, builder.mul(builder.add(first, INT64(n)), step)) for n in range(rows)]

    along = builder.mul(row, chunks)
    return _Operands(
        codes=below(0, INT8, stride),
        scales=below(1, _FLOAT, chunks),
        zeros=below(2, INT8, chunks),
        values=pointer(3, INT16, builder.mul(builder.mul(along, units), INT64(UNIT * fields))),
        value_scales=pointer(4, _FLOAT, along),
        value_sums=pointer(5, INT32, along),
        chunks=chunks,
        units=units,
        out=pointer(11, _FLOAT, INT64(0)),
    )


class _Products:
    """An emitter of the loop over chunks, which share scales, and of the loop over their units."""

    def __init__(self, builder: Any, operands: _Operands, bits: int) -> None:
        self.builder, self.operands, self.bits, self.fields = builder, operands, bits, 8 // bits

    def emit(self) -> list[Any]:
        """Emit the loop, and return float32 [8] for each row of codes, whose lanes add up to the product."""
        return summed(self.builder, self.operands.chunks, zeros(_FLOATS, len(self.operands.codes)), self._chunk)

    def _chunk(self, chunk: Any, results: list[Any]) -> list[Any]:
        """Add the products of a chunk, times its scales, to the results of each row."""
        builder, operands = self.builder, self.operands
        starts, begin = self._zero_points(chunk), builder.mul(chunk, operands.units)

        def unit(number: Any, totals: list[Any]) -> list[Any]:
            offset = builder.mul(builder.add(begin, number), INT64(UNIT))
            codes = [builder.gep(row, [offset]) for row in operands.codes]
            values = builder.gep(operands.values, [builder.mul(offset, INT64(self.fields))])
            return self._unit(codes, values, totals)

        return self._scaled(chunk, summed(builder, operands.units, starts, unit), results)

    def _zero_points(self, chunk: Any) -> list[Any]:
        """Return int32 [8] for each row: minus its zero point times the activations' sum, in the first lane."""
        builder, starts = self.builder, []
        value_sum = builder.load(builder.gep(self.operands.value_sums, [chunk]))
        for zero in self.operands.zeros:
            point = builder.zext(builder.load(builder.gep(zero, [chunk])), INT32)
            less = builder.neg(builder.mul(point, value_sum))
            starts.append(builder.insert_element(ir.Constant(_SUMS, None), less, INT32(0)))
        return starts

    def _unit(self, codes: list[Any], values: Any, totals: list[Any]) -> list[Any]:
        """Add the products of 16 bytes of each row."""
        builder, activations, added = self.builder, [], []
        for field in range(self.fields):
            activations.append(loaded(builder, builder.gep(values, [INT64(UNIT * field)]), _WIDE, align=2))
        for start, before in zip(codes, totals, strict=True):
            packed = builder.zext(loaded(builder, start, _BYTES), _WIDE)
            total = before
            for field, value in enumerate(activations):
                code = builder.lshr(packed, _constant(_WIDE, self.bits * field)) if field else packed
                if field < self.fields - 1:
                    code = builder.and_(code, _constant(_WIDE, (1 << self.bits) - 1))
                total = builder.add(total, _products(builder, code, value))
            added.append(total)
        return added

    def _scaled(self, chunk: Any, sums: list[Any], results: list[Any]) -> list[Any]:
        """Add the sums of a chunk, times the scales of codes and activations, to the results of each row."""
        builder, updated = self.builder, []
        value_scale = builder.load(builder.gep(self.operands.value_scales, [chunk]))
        for result, total, scale in zip(results, sums, self.operands.scales, strict=True):
            factor = builder.fmul(builder.load(builder.gep(scale, [chunk])), value_scale)
            factors = spread(builder, factor, _LANES)
            product = builder.fmul(builder.sitofp(total, _FLOATS), factors, flags=["contract"])
            updated.append(builder.fadd(result, product, flags=["contract"]))
        return updated


def _constant(vector: Any, value: int) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _products(builder: Any, code: Any, value: Any) -> Any:
    """Return the products summed in pairs, int32 [8]."""
    product = builder.mul(builder.sext(code, _LONGS), builder.sext(value, _LONGS), flags=["nsw"])
    return pairs(builder, product)


def _across(builder: Any, vector: Any) -> Any:
    """Return the sum of a vector's lanes."""
    width = _LANES
    while width > 1:
        width //= 2
        halves = shuffle(builder, vector, range(width)), shuffle(builder, vector, range(width, 2 * width))
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, INT32(0))
