"""LLVM vectors of 32-bit numbers with operations that generic LLVM lacks: gather, and moves by a mask.

A vector has 16 numbers with AVX-512, and 8 with AVX2 or NEON (two registers). Other processors have none of this, and
callers use a scalar loop.
"""

from abc import ABC, abstractmethod
from typing import Any

from squeeze.numerics import machine_code
from squeeze.numerics.codegen import ir
from squeeze.numerics.machine_code import INT8, INT16, INT32, INT64

__all__ = ["Vectors", "kind", "moves"]

_BOOL, _FLOAT = ir.IntType(1), ir.FloatType()


class Vectors(ABC):
    """A vector type of `width` 32-bit numbers, and the operations that all processors share."""

    width: int

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.words, self.masks = (ir.VectorType(kind, self.width) for kind in (INT32, _BOOL))
        self.floats = ir.VectorType(_FLOAT, self.width)

    def declared(self, name: str, result: Any, *arguments: Any) -> Any:
        """Declare an LLVM intrinsic and return it."""
        return self.builder.module.declare_intrinsic(name, (), ir.FunctionType(result, arguments))

    @abstractmethod
    def gather(self, base: Any, places: Any) -> Any:
        """Return the 32-bit numbers base[places]."""

    @abstractmethod
    def expanded(self, values: Any, mask: Any) -> Any:
        """Move the first values, of 16 bits, in order to the lanes that the mask selects. Other lanes are undefined."""

    @abstractmethod
    def compressed_to_end(self, values: Any, mask: Any, count: Any) -> Any:
        """Move the low 16 bits of the selected lanes in order to the end of the vector."""

    @abstractmethod
    def reciprocal(self, values: Any) -> Any:
        """Return 1 / values, float32, to 12 bits or more."""

    def loaded(self, base: Any, places: Any) -> Any:
        """Gather by single loads.

        Places leave their registers in pairs. Numbers are loaded as float32, so that they go straight to a vector
        register.
        """
        builder, found = self.builder, ir.Constant(self.floats, ir.Undefined)
        numbers = builder.bitcast(base, _FLOAT.as_pointer())
        pairs = builder.bitcast(places, ir.VectorType(INT64, self.width // 2))
        for lane in range(self.width):
            pair = builder.extract_element(pairs, INT32(lane // 2))
            place = builder.lshr(pair, INT64(32)) if lane % 2 else builder.and_(pair, INT64((1 << 32) - 1))
            found = builder.insert_element(found, builder.load(builder.gep(numbers, [place])), INT32(lane))
        return builder.bitcast(found, self.words)

    def constant(self, value: int) -> Any:
        return ir.Constant(self.words, [value] * self.width)

    def float_constant(self, value: float) -> Any:
        return ir.Constant(self.floats, [value] * self.width)

    def counting(self) -> Any:
        return ir.Constant(self.words, list(range(self.width)))

    def spread(self, value: Any) -> Any:
        undefined = ir.Constant(self.words, ir.Undefined)
        single = self.builder.insert_element(undefined, value, INT32(0))
        return self.builder.shuffle_vector(single, undefined, self.constant(0))

    def load(self, pointer: Any, kind: Any = INT32) -> Any:
        """Load `width` numbers of `kind` and widen them to 32 bits."""
        vector = ir.VectorType(kind, self.width)
        found = self.builder.load(self.builder.bitcast(pointer, vector.as_pointer()), align=1)
        return found if kind is INT32 else self.builder.zext(found, self.words)

    def store(self, values: Any, pointer: Any, kind: Any) -> None:
        """Store the lowest bits of each lane as numbers of `kind`."""
        vector = ir.VectorType(kind, self.width)
        narrow = values if kind is INT32 else self.builder.trunc(values, vector)
        self.builder.store(narrow, self.builder.bitcast(pointer, vector.as_pointer()), align=1)

    def count(self, mask: Any) -> Any:
        """Return the number of selected lanes, int64."""
        bits = ir.IntType(self.width)
        counted = self.builder.module.declare_intrinsic(f"llvm.ctpop.i{self.width}", (), ir.FunctionType(bits, [bits]))
        return self.builder.zext(self.builder.call(counted, [self.builder.bitcast(mask, bits)]), INT64)


class _Avx512(Vectors):
    width = 16

    def gather(self, base: Any, places: Any) -> Any:
        if machine_code.gathers_slowly():
            return self.loaded(base, places)
        name, bytes_ = "llvm.x86.avx512.mask.gather.dpi.512", INT8.as_pointer()
        call = self.declared(name, self.words, self.words, bytes_, self.words, self.masks, INT32)
        every = ir.Constant(self.masks, [1] * self.width)
        start = self.builder.bitcast(base, bytes_)
        return self.builder.call(call, [self.constant(0), start, places, every, INT32(4)])

    def expanded(self, values: Any, mask: Any) -> Any:
        name = "llvm.x86.avx512.mask.expand.v16i32"
        call = self.declared(name, self.words, self.words, self.words, self.masks)
        return self.builder.call(call, [values, self.constant(0), mask])

    def compressed_to_end(self, values: Any, mask: Any, count: Any) -> Any:
        name = "llvm.x86.avx512.mask.compress.v16i32"
        call = self.declared(name, self.words, self.words, self.words, self.masks)
        first = self.builder.call(call, [values, self.constant(0), mask])
        turned = self.declared("llvm.x86.avx512.permvar.si.512", self.words, self.words, self.words)
        places = self.builder.add(self.counting(), self.spread(self.builder.trunc(count, INT32)))
        return self.builder.call(turned, [first, places])

    def reciprocal(self, values: Any) -> Any:
        name, every = "llvm.x86.avx512.rcp14.ps.512", ir.Constant(ir.IntType(16), 65535)
        call = self.declared(name, self.floats, self.floats, self.floats, ir.IntType(16))
        return self.builder.call(call, [values, ir.Constant(self.floats, None), every])


def moves(builder: Any, way: str, mask: Any, size: int = 1) -> Any:
    """Return a pointer to a row of 8 * `size` bytes: the source of each byte when 8 values are moved by a mask.

    Args:
        builder: The LLVM builder.
        way: "expand" moves the first values to the selected lanes, "compress" moves the selected lanes to the front,
            and
        "compress to end" moves them to the end. Other lanes are undefined.
        mask: int64 below 256.
        size: Bytes of a value.
    """
    name = f"squeeze.{way}.{size}".replace(" ", ".")
    table = builder.module.globals.get(name)
    if table is None:
        places = [place for number in range(256) for place in _places(way, number)]
        rows = [size * place + byte for place in places for byte in range(size)]
        content = ir.Constant(ir.ArrayType(INT8, len(rows)), rows)
        table = ir.GlobalVariable(builder.module, content.type, name)
        table.initializer, table.global_constant, table.linkage = content, True, "internal"
    return builder.gep(table, [INT64(0), builder.mul(mask, INT64(8 * size))])


def _places(way: str, mask: int) -> list[int]:
    lanes = [lane for lane in range(8) if mask >> lane & 1]
    if way == "expand":
        return [lanes.index(lane) if lane in lanes else 0 for lane in range(8)]
    others = [0] * (8 - len(lanes))
    return lanes + others if way == "compress" else others + lanes


class _Avx2(Vectors):
    width = 8

    def gather(self, base: Any, places: Any) -> Any:
        if machine_code.gathers_slowly():
            return self.loaded(base, places)
        name, bytes_ = "llvm.x86.avx2.gather.d.d.256", INT8.as_pointer()
        call = self.declared(name, self.words, self.words, bytes_, self.words, self.words, INT8)
        start = self.builder.bitcast(base, bytes_)
        return self.builder.call(call, [self.constant(0), start, places, self.constant(-1), INT8(4)])

    def expanded(self, values: Any, mask: Any) -> Any:
        return self._moved("expand", values, mask)

    def compressed_to_end(self, values: Any, mask: Any, count: Any) -> Any:
        return self._moved("compress to end", values, mask)

    def _moved(self, way: str, values: Any, mask: Any) -> Any:
        row = moves(self.builder, way, self.builder.zext(self.builder.bitcast(mask, INT8), INT64))
        call = self.declared("llvm.x86.avx2.permd", self.words, self.words, self.words)
        return self.builder.call(call, [values, self.load(row, INT8)])

    def reciprocal(self, values: Any) -> Any:
        call = self.declared("llvm.x86.avx.rcp.ps.256", self.floats, self.floats)
        return self.builder.call(call, [values])


class _Neon(Vectors):
    """NEON vectors: two registers of four numbers. Values that are moved have 16 bits and fit one register."""

    width = 8

    def __init__(self, builder: Any) -> None:
        super().__init__(builder)
        self.halves, self.bytes = ir.VectorType(INT16, self.width), ir.VectorType(INT8, 2 * self.width)

    def gather(self, base: Any, places: Any) -> Any:
        return self.loaded(base, places)

    def expanded(self, values: Any, mask: Any) -> Any:
        return self._moved("expand", values, mask)

    def compressed_to_end(self, values: Any, mask: Any, count: Any) -> Any:
        return self._moved("compress to end", values, mask)

    def _moved(self, way: str, values: Any, mask: Any) -> Any:
        builder = self.builder
        row = moves(builder, way, builder.and_(self._counted(mask), INT64(255)), 2)
        places = builder.load(builder.bitcast(row, self.bytes.as_pointer()), align=1)
        call = self.declared("llvm.aarch64.neon.tbl1.v16i8", self.bytes, self.bytes, self.bytes)
        moved = builder.call(call, [builder.bitcast(builder.trunc(values, self.halves), self.bytes), places])
        return builder.zext(builder.bitcast(moved, self.halves), self.words)

    def count(self, mask: Any) -> Any:
        return self.builder.lshr(self._counted(mask), INT64(8))

    def _counted(self, mask: Any) -> Any:
        """Return the mask as int64 plus 256 for each selected lane, with one horizontal sum (addv)."""
        shares = ir.Constant(self.halves, [256 + (1 << lane) for lane in range(self.width)])
        call = self.declared("llvm.vector.reduce.add.v8i16", INT16, self.halves)
        total = self.builder.call(call, [self.builder.select(mask, shares, ir.Constant(self.halves, None))])
        return self.builder.zext(total, INT64)

    def reciprocal(self, values: Any) -> Any:
        """Return an 8-bit estimate refined by one Newton step."""
        guess = self._by_fours("llvm.aarch64.neon.frecpe.v4f32", values)
        return self.builder.fmul(guess, self._by_fours("llvm.aarch64.neon.frecps.v4f32", values, guess))

    def _by_fours(self, name: str, *vectors: Any) -> Any:
        """Call an intrinsic for one register of float32 on both halves."""
        four = ir.VectorType(_FLOAT, 4)
        call = self.declared(name, four, *[four] * len(vectors))
        halves = [ir.Constant(ir.VectorType(INT32, 4), list(range(first, first + 4))) for first in (0, 4)]
        found = [
            self.builder.call(call, [self.builder.shuffle_vector(vector, vector, half) for vector in vectors])
            for half in halves
        ]
        return self.builder.shuffle_vector(*found, self.counting())


def kind() -> type[Vectors] | None:
    """Return the vectors of the processor that numba compiles for, or None if it supports none of these instruction
    sets.
    """
    if all(map(machine_code.has, ("avx512f", "avx512bw", "avx512dq", "avx512vl"))):
        return _Avx512
    if machine_code.has("avx2"):
        return _Avx2
    return _Neon if machine_code.has("neon") else None
