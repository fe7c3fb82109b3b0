"""What products of integers in machine code share: generic vectors of LLVM, and the loop whose sums stay in registers.

A product says how its operands reach vectors, and what is added to its sums: int8_vectors.py, tiles.py, nibbles.py,
quads.py, and kernels/w4a16/decoder.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from squeeze.numerics.words import INT32, INT64

__all__ = ["PANEL", "loaded", "pairs", "pointer", "shuffle", "spread", "stored", "summed", "zeros"]

PANEL = 16  # outputs side by side: a vector of sums


def summed(builder: Any, count: Any, start: Sequence[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Emit a loop: step(k, sums) -> sums for k from 0 up to `count`, at least once. Return the last sums.

    Code goes on behind the loop. start: what the sums are at first.
    """
    before, body = builder.block, builder.append_basic_block("step")
    builder.branch(body)
    builder.position_at_end(body)
    k = builder.phi(INT64)
    k.add_incoming(INT64(0), before)
    sums = [builder.phi(value.type) for value in start]
    for value, first in zip(sums, start, strict=True):
        value.add_incoming(first, before)
    added = step(k, sums)
    following = builder.add(k, INT64(1))
    k.add_incoming(following, builder.block)
    for value, last in zip(sums, added, strict=True):
        value.add_incoming(last, builder.block)
    after = builder.append_basic_block("done")
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)
    return added


def pointer(context: Any, builder: Any, signature: Any, arguments: Any, i: int, kind: Any) -> Any:
    """Argument `i` of an intrinsic, an array, as a pointer to values of `kind`."""
    array = context.make_array(signature.args[i])(context, builder, arguments[i])
    return builder.bitcast(array.data, kind.as_pointer())


def loaded(builder: Any, address: Any, kind: Any, align: int = 1) -> Any:
    """Load a vector of `kind`."""
    return builder.load(builder.bitcast(address, kind.as_pointer()), align=align)


def stored(builder: Any, value: Any, address: Any) -> None:
    """Store a vector of 32-bit integers."""
    builder.store(value, builder.bitcast(address, value.type.as_pointer()), align=4)


def zeros(kind: Any, count: int) -> list[Any]:
    """Return `count` vectors of `kind` that hold 0."""
    return [ir.Constant(kind, None)] * count


def shuffle(builder: Any, vector: Any, indices: Sequence[int]) -> Any:
    """Return a vector of the elements at `indices`."""
    mask = ir.Constant(ir.VectorType(INT32, len(indices)), list(indices))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def spread(builder: Any, value: Any, count: int) -> Any:
    """Return a vector of `count` times one value."""
    single = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    return shuffle(builder, builder.insert_element(single, value, INT32(0)), [0] * count)


def pairs(builder: Any, values: Any) -> Any:
    """Return the sums of neighbours."""
    even, odd = (shuffle(builder, values, range(first, values.type.count, 2)) for first in (0, 1))
    return builder.add(even, odd)
