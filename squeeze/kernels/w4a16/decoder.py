"""Machine code that multiplies packed codes by activations: vectors of generic LLVM, as every processor has them.

A product of 16-bit integers in pairs is one instruction everywhere (pmaddwd, vpdpwssd, smlal).
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

UNIT = 16  # bytes decoded at a time: 16, 32 or 64 codes of 8, 4 or 2 bits

_LANES = UNIT // 2
_INT8, _INT16, _INT32, _INT64, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_BYTES, _WIDE = ir.VectorType(_INT8, UNIT), ir.VectorType(_INT16, UNIT)
_LONGS, _SUMS = ir.VectorType(_INT32, UNIT), ir.VectorType(_INT32, _LANES)
_FLOATS = ir.VectorType(_FLOAT, _LANES)


def decoder(rows: int, bits: int) -> Any:
    """A compiled product of `rows` rows of codes with one row of activations.

    The intrinsic's arguments: codes uint8 [O, stride], scales float32 and zeros uint8 [O, chunks], activations int16
    [R, I], their scales float32 and sums int32 [R, chunks], the first row of codes, the row of activations, stride,
    chunks, units in a chunk, and out float32 [rows]. A byte's fields are taken apart for 16 bytes at once, so
    activations of a unit come field by field.
    """

    @intrinsic
    def multiply(typingctx, codes, scales, zeros, a, a_scales, a_sums, first, row, stride, chunks, units, out):
        def codegen(context, builder, signature, arguments):
            operands = _operands(context, builder, signature, arguments, rows, 8 // bits)
            totals = _Chunks(builder, operands, bits).emit()
            for number, total in enumerate(totals):
                builder.store(_across(builder, total), builder.gep(operands.out, [_INT64(number)]))
            return context.get_dummy_value()

        counts = (types.int64,) * 5
        return types.void(codes, scales, zeros, a, a_scales, a_sums, *counts, out), codegen

    return multiply


@dataclass(frozen=True)
class _Operands:
    """Pointers to where each row of codes, scales and zeros, and the row of activations, begins; and LLVM integers."""

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
        return [pointer(i, kind, builder.mul(builder.add(first, _INT64(n)), step)) for n in range(rows)]

    along = builder.mul(row, chunks)
    return _Operands(
        codes=below(0, _INT8, stride),
        scales=below(1, _FLOAT, chunks),
        zeros=below(2, _INT8, chunks),
        values=pointer(3, _INT16, builder.mul(builder.mul(along, units), _INT64(UNIT * fields))),
        value_scales=pointer(4, _FLOAT, along),
        value_sums=pointer(5, _INT32, along),
        chunks=chunks,
        units=units,
        out=pointer(11, _FLOAT, _INT64(0)),
    )


class _Chunks:
    """The loop over chunks, which share scales, and within it the loop over their units."""

    def __init__(self, builder: Any, operands: _Operands, bits: int) -> None:
        self.builder, self.operands, self.bits, self.fields = builder, operands, bits, 8 // bits

    def emit(self) -> list[Any]:
        """float32 [8] for each row of codes, whose lanes add up to the product; code goes on behind the loop."""
        builder = self.builder
        before = builder.block
        outer, inner, scaled, done = map(builder.append_basic_block, ("chunk", "unit", "scaled", "done"))
        builder.branch(outer)
        builder.position_at_end(outer)
        chunk = builder.phi(_INT64)
        chunk.add_incoming(_INT64(0), before)
        results = [builder.phi(_FLOATS) for _ in self.operands.codes]
        starts = self._zero_points(chunk)
        begin = builder.mul(chunk, self.operands.units)
        builder.branch(inner)
        sums = self._units(begin, starts, outer, inner, scaled)
        updated = self._scaled(chunk, sums, results)
        following = builder.add(chunk, _INT64(1))
        chunk.add_incoming(following, scaled)
        for result, value in zip(results, updated, strict=True):
            result.add_incoming(ir.Constant(_FLOATS, None), before)
            result.add_incoming(value, scaled)
        builder.cbranch(builder.icmp_signed("<", following, self.operands.chunks), outer, done)
        builder.position_at_end(done)
        return updated

    def _zero_points(self, chunk: Any) -> list[Any]:
        """int32 [8] of each row: what its zero point takes from the sums of a chunk, in the first lane."""
        builder, starts = self.builder, []
        value_sum = builder.load(builder.gep(self.operands.value_sums, [chunk]))
        for zero in self.operands.zeros:
            point = builder.zext(builder.load(builder.gep(zero, [chunk])), _INT32)
            less = builder.neg(builder.mul(point, value_sum))
            starts.append(builder.insert_element(ir.Constant(_SUMS, None), less, _INT32(0)))
        return starts

    def _units(self, begin: Any, starts: list[Any], outer: Any, inner: Any, scaled: Any) -> list[Any]:
        """int32 [8] of each row: `starts` and the products of a chunk. begin: its first unit."""
        builder, operands = self.builder, self.operands
        builder.position_at_end(inner)
        number = builder.phi(_INT64)
        number.add_incoming(_INT64(0), outer)
        totals = [builder.phi(_SUMS) for _ in operands.codes]
        offset = builder.mul(builder.add(begin, number), _INT64(UNIT))
        codes = [builder.gep(row, [offset]) for row in operands.codes]
        values = builder.gep(operands.values, [builder.mul(offset, _INT64(self.fields))])
        added = self._unit(codes, values, totals)
        following = builder.add(number, _INT64(1))
        number.add_incoming(following, inner)
        for total, start, value in zip(totals, starts, added, strict=True):
            total.add_incoming(start, outer)
            total.add_incoming(value, inner)
        builder.cbranch(builder.icmp_signed("<", following, operands.units), inner, scaled)
        builder.position_at_end(scaled)
        return added

    def _unit(self, codes: list[Any], values: Any, totals: list[Any]) -> list[Any]:
        """Add the products of 16 bytes of each row."""
        builder, activations, added = self.builder, [], []
        for field in range(self.fields):
            address = builder.bitcast(builder.gep(values, [_INT64(UNIT * field)]), _WIDE.as_pointer())
            activations.append(builder.load(address, align=2))
        for start, before in zip(codes, totals, strict=True):
            packed = builder.zext(builder.load(builder.bitcast(start, _BYTES.as_pointer()), align=1), _WIDE)
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
            single = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), factor, _INT32(0))
            factors = _shuffle(builder, single, [0] * _LANES)
            product = builder.fmul(builder.sitofp(total, _FLOATS), factors, flags=["contract"])
            updated.append(builder.fadd(result, product, flags=["contract"]))
        return updated


def _constant(vector: Any, value: int) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _shuffle(builder: Any, vector: Any, indices: Any) -> Any:
    mask = ir.Constant(ir.VectorType(_INT32, len(indices)), list(indices))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def _products(builder: Any, code: Any, value: Any) -> Any:
    """int32 [8]: sums of pairs."""
    product = builder.mul(builder.sext(code, _LONGS), builder.sext(value, _LONGS), flags=["nsw"])
    even, odd = _shuffle(builder, product, range(0, UNIT, 2)), _shuffle(builder, product, range(1, UNIT, 2))
    return builder.add(even, odd)


def _across(builder: Any, vector: Any) -> Any:
    """The sum of a vector's lanes."""
    width = _LANES
    while width > 1:
        width //= 2
        halves = _shuffle(builder, vector, range(width)), _shuffle(builder, vector, range(width, 2 * width))
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, _INT32(0))
