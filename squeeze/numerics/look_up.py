"""Machine code that looks codes up in a small table, 16 at a time: permutations of registers where the processor has
them (AVX512, AVX2), and a load for each code elsewhere."""

from typing import Any

from llvmlite import ir

from squeeze.numerics.processor import has

__all__ = ["LANES", "Table"]

LANES = 16  # codes at a time

_FLOAT, _INT32 = ir.FloatType(), ir.IntType(32)


class Table:
    """size: values at a pointer, float32, 8, 16, 32 or 64; 16 can be read. They are loaded where a Table is made."""

    def __init__(self, builder: Any, pointer: Any, size: int) -> None:
        self.pointer = pointer
        self.lanes = LANES if has("avx512f") else LANES // 2 if has("avx2") else 0  # of a register
        self.floats, self.codes = (ir.VectorType(kind, self.lanes or 1) for kind in (_FLOAT, _INT32))
        self.parts = [self._part(builder, first) for first in range(0, size, self.lanes)] if self.lanes else []

    def _part(self, builder: Any, first: int) -> Any:
        address = builder.gep(self.pointer, [_INT32(first)])
        return builder.load(builder.bitcast(address, self.floats.as_pointer()), align=4)

    def look_up(self, builder: Any, codes: Any) -> Any:
        """float32 [16] of codes, int32 [16] below `size`."""
        if not self.lanes:
            return self._loaded(builder, codes)
        if self.lanes == LANES:
            return self._chosen(builder, codes)
        low, high = (_shuffled(builder, codes, range(first, first + self.lanes)) for first in (0, self.lanes))
        values = [self._chosen(builder, half) for half in (low, high)]
        return builder.shuffle_vector(*values, _mask(range(LANES)))

    def _chosen(self, builder: Any, codes: Any) -> Any:
        """What is at each code's place in the part that its high bits tell: parts are halved bit by bit."""
        found, bit = [self._permuted(builder, part, codes) for part in self.parts], self.lanes
        while len(found) > 1:
            is_high = builder.icmp_unsigned("!=", builder.and_(codes, _each(self.codes, bit)), _each(self.codes, 0))
            pairs = zip(found[::2], found[1::2], strict=True)
            found, bit = [builder.select(is_high, high, low) for low, high in pairs], 2 * bit
        return found[0]

    def _permuted(self, builder: Any, part: Any, codes: Any) -> Any:
        """A permutation takes the low bits of a code alone."""
        name = "llvm.x86.avx512.permvar.sf.512" if self.lanes == LANES else "llvm.x86.avx2.permps"
        permute = builder.module.declare_intrinsic(name, (), ir.FunctionType(self.floats, [self.floats, self.codes]))
        return builder.call(permute, [part, codes])

    def _loaded(self, builder: Any, codes: Any) -> Any:
        values = ir.Constant(ir.VectorType(_FLOAT, LANES), ir.Undefined)
        for lane in range(LANES):
            code = builder.extract_element(codes, _INT32(lane))
            values = builder.insert_element(values, builder.load(builder.gep(self.pointer, [code])), _INT32(lane))
        return values


def _each(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _mask(indices: Any) -> Any:
    return ir.Constant(ir.VectorType(_INT32, len(indices)), list(indices))


def _shuffled(builder: Any, vector: Any, indices: Any) -> Any:
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _mask(indices))
