"""Instruction sets that multiply activations by packed weights: VNNI, AVX512, AVX2, and generic LLVM.

A class of instructions defines how weights and activations are loaded into vectors, and how products are added to the
sums. It also defines how sums are folded at the end, and how many of them fit in registers. `sums` is the loop over the
inputs. int8.py packs matrices and iterates over them.
"""

from typing import Any

from squeeze.numerics.codegen import ir
from squeeze.numerics.machine_code import (
    INT8,
    INT16,
    INT32,
    INT64,
    PANEL,
    ask_for,
    has,
    loaded,
    pairs,
    shuffle,
    spread,
    summed,
    zeros,
)

__all__ = ["STEP", "fastest", "sums"]

STEP = 4  # inputs of a step


class Vnni:
    """AVX512 VNNI: vpdpbusd with 16 outputs a vector."""

    four = INT32  # activations
    parts = 2  # bytes that a 16-bit activation is split into; or 1, itself
    width = PANEL  # outputs of an instruction
    vectors = 1  # vectors of a panel
    ahead = 0  # bytes by which weights are prefetched; 0 leaves that to the processor
    # `tallest` rows go through at once, beside `some` panels; up to `few` rows, beside `most`. All their sums stay in
    # registers, of which there are 32, or 16 without AVX512.
    tallest, few, most, some = 6, 3, 8, 4
    together = 32  # vectors of sums that registers hold: with more, a panel takes two runs over the inputs

    def __init__(self, builder: Any) -> None:
        self.sums, vector = ir.VectorType(INT32, PANEL), ir.VectorType(INT32, self.width)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.width}"
        self.multiply = builder.module.declare_intrinsic(name, (), ir.FunctionType(vector, [vector] * 3))

    def load(self, builder: Any, address: Any) -> Any:
        return loaded(builder, address, self.sums)

    def weights(self, builder: Any, values: Any) -> Any:
        return values

    def activations(self, builder: Any, four: Any) -> Any:
        return spread(builder, four, PANEL)

    def added(self, builder: Any, total: Any, weights: Any, activations: Any) -> Any:
        return builder.call(self.multiply, [total, weights, activations])

    def folded(self, builder: Any, totals: list[Any]) -> list[Any]:
        return totals


class NarrowVnni(Vnni):
    """AVX VNNI, for processors without AVX512: vpdpbusd with 8 outputs a vector."""

    width = PANEL // 2
    tallest, few, most, some = 6, 2, 3, 1

    def added(self, builder: Any, total: Any, weights: Any, activations: Any) -> Any:
        halves = (range(self.width), range(self.width, PANEL))
        low, high = (
            builder.call(self.multiply, [shuffle(builder, x, half) for x in (total, weights, activations)])
            for half in halves
        )
        mask = ir.Constant(self.sums, list(range(PANEL)))
        return builder.shuffle_vector(low, high, mask)


class Generic:
    """Generic LLVM: 16 outputs a vector with two sums each, by multiplying pairs (pmaddwd, smlal)."""

    four = INT64
    parts = 1
    vectors = 1
    ahead = 0
    tallest, few, most, some = 3, 3, 1, 1
    together = 32

    def __init__(self, builder: Any) -> None:
        self.sums = ir.VectorType(INT32, 2 * PANEL)
        self.bytes, self.wide = (ir.VectorType(kind, 4 * PANEL) for kind in (INT8, INT32))

    def load(self, builder: Any, address: Any) -> Any:
        return loaded(builder, address, self.bytes)

    def weights(self, builder: Any, values: Any) -> Any:
        return builder.zext(values, self.wide)

    def activations(self, builder: Any, four: Any) -> Any:
        words = builder.bitcast(spread(builder, four, PANEL), ir.VectorType(INT16, 4 * PANEL))
        return builder.sext(words, self.wide)

    def added(self, builder: Any, total: Any, weights: Any, activations: Any) -> Any:
        products = builder.mul(activations, weights, flags=["nsw"])
        return builder.add(total, pairs(builder, products))

    def folded(self, builder: Any, totals: list[Any]) -> list[Any]:
        return [pairs(builder, total) for total in totals]


class Avx2:
    """AVX2: vpmaddwd with 4 outputs a vector and two sums each. Weights are widened as they are loaded."""

    four = INT64
    parts = 1
    width = 4
    vectors = PANEL // width
    ahead = 4096  # the next page, which the processor does not prefetch
    tallest, few, most, some = 6, 1, 2, 1
    together = 8
    instruction = "llvm.x86.avx2.pmadd.wd"

    def __init__(self, builder: Any) -> None:
        self.sums, self.words = ir.VectorType(INT32, 2 * self.width), ir.VectorType(INT16, 4 * self.width)
        kind = ir.FunctionType(self.sums, [self.words] * 2)
        self.multiply = builder.module.declare_intrinsic(self.instruction, (), kind)

    def load(self, builder: Any, address: Any) -> Any:
        return loaded(builder, address, ir.VectorType(INT8, 4 * self.width))

    def weights(self, builder: Any, values: Any) -> Any:
        return builder.zext(values, self.words)

    def activations(self, builder: Any, four: Any) -> Any:
        return builder.bitcast(spread(builder, four, self.width), self.words)

    def added(self, builder: Any, total: Any, weights: Any, activations: Any) -> Any:
        return builder.add(total, builder.call(self.multiply, [activations, weights]))

    def folded(self, builder: Any, totals: list[Any]) -> list[Any]:
        mask = ir.Constant(ir.VectorType(INT32, 4 * self.width), list(range(4 * self.width)))
        halves = zip(totals[::2], totals[1::2], strict=True)
        return [pairs(builder, builder.shuffle_vector(low, high, mask)) for low, high in halves]


class Avx512(Avx2):
    """AVX512 without VNNI: vpmaddwd with 8 outputs a vector and two sums each."""

    width = 8
    vectors = PANEL // width
    tallest, few, most, some = 6, 1, 1, 2
    together = 32
    instruction = "llvm.x86.avx512.pmaddw.d.512"


def fastest() -> Any:
    """Return the fastest class of instructions that the processor supports."""
    if has("avx512vnni"):
        return Vnni
    if has("avxvnni"):
        return NarrowVnni
    if has("avx512bw"):
        return Avx512
    return Avx2 if has("avx2") else Generic


def sums(builder: Any, isa: Any, a_rows: list[Any], vectors: list[tuple[Any, int]], steps: Any, bits: int) -> list[Any]:
    """Emit the loop over the inputs, and return the sums of each row with each vector of weights.

    Args:
        builder: The LLVM builder.
        isa: An instance of a class of instructions.
        a_rows: Pointers to the rows of activations.
        vectors: Pairs of a panel's start and an offset in bytes.
        steps: The number of steps, as an LLVM value: of four inputs with 8 bits, of eight with 4.
        bits: Bits of a weight, 8 or 4.
    """
    halves = 8 // bits  # weights in a byte

    def step(k: Any, totals: list[Any]) -> list[Any]:
        place = builder.mul(k, INT64(STEP * PANEL))
        packed = [
            isa.load(builder, builder.gep(start, [builder.add(place, INT64(offset)) if offset else place]))
            for start, offset in vectors
        ]
        if isa.ahead:
            for start in {id(start): start for start, _ in vectors}.values():
                ask_for(builder, builder.gep(start, [builder.add(place, INT64(isa.ahead))]))
        for half in range(halves):
            kept = packed if bits == 8 else [_half(builder, values, half) for values in packed]
            weights, added = [isa.weights(builder, values) for values in kept], list[Any]()
            first = builder.add(builder.mul(k, INT64(STEP * halves)), INT64(STEP * half))
            for start in a_rows:
                address = builder.bitcast(builder.gep(start, [first]), isa.four.as_pointer())
                activations = isa.activations(builder, builder.load(address, align=1))
                added += [isa.added(builder, totals[len(added) + n], of, activations) for n, of in enumerate(weights)]
            totals = added
        return totals

    return summed(builder, steps, zeros(isa.sums, len(a_rows) * len(vectors)), step)


def _half(builder: Any, values: Any, half: int) -> Any:
    """Return the low (0) or the high (1) four bits of every byte of a vector of integers."""
    kind = values.type.element

    def each(value: int) -> Any:
        return ir.Constant(values.type, [value] * values.type.count)

    mask = int.from_bytes(b"\x0f" * (kind.width // 8), "little")
    return builder.and_(builder.lshr(values, each(4)) if half else values, each(mask))
