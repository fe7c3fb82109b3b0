"""LLVM code that compiled products share: processor features, vectors of integers, loops with sums in registers."""

from collections.abc import Callable, Sequence
from typing import Any

import squeeze.numerics.prebuilt as prebuilt
from squeeze.numerics.codegen import cgutils, config, ir, llvm

__all__ = [
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "PANEL",
    "ask_for",
    "gathers_slowly",
    "has",
    "loaded",
    "looped",
    "pairs",
    "pointer",
    "shuffle",
    "spread",
    "stored",
    "summed",
    "zeros",
]

_config: Any = config


def has(feature: str) -> bool:
    """Return whether the processor that code is compiled for has a feature, by LLVM's name such as "avx512vnni".

    That is the processor of the library of machine code, if there is one, or the one that numba compiles for.
    NUMBA_CPU_FEATURES replaces the features of this machine, and NUMBA_ENABLE_AVX=0 leaves out AVX. "neon" is true on
    every 64-bit Arm processor, even if LLVM does not list it.
    """
    if prebuilt.LIBRARY is not None:
        return feature in prebuilt.LIBRARY.features
    if _config.CPU_FEATURES is not None:  # numba makes it "" for a name alone
        return f"+{feature}" in _config.CPU_FEATURES.split(",")
    if feature.startswith("avx") and not _config.ENABLE_AVX:
        return False
    if feature == "neon":
        return bool(llvm.get_process_triple().startswith(("aarch64-", "arm64-")))
    return bool(llvm.get_host_cpu_features().get(feature, False))


def gathers_slowly() -> bool:
    """Return whether single loads are faster than a gather instruction, as on AMD's processors."""
    name: str = _config.CPU_NAME or llvm.get_host_cpu_name()
    return name.startswith("znver")


INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
PANEL = 16  # outputs side by side: a vector of sums


def summed(builder: Any, count: Any, start: Sequence[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Emit a loop that updates sums in registers, and return the final sums. The builder continues after the loop.

    Args:
        builder: The LLVM builder.
        count: The number of iterations, at least one, as an LLVM value.
        start: The initial sums.
        step: step(k, sums) emits iteration k and returns the new sums.
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


def looped(
    builder: Any,
    count: Any,
    carried: Sequence[Any],
    step: Callable[[Any, list[Any]], list[Any]],
    stride: int = 1,
    first: Any = None,
) -> list[Any]:
    """Emit a loop and return the values that it carries. The builder continues after the loop.

    Args:
        builder: The LLVM builder.
        count: The end of the index, as an LLVM value; there may be no iteration.
        carried: The initial values.
        step: step(index, carried) emits an iteration and returns the new values.
        stride: The increment of the index.
        first: The first index; 0 if None.
    """
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(INT64)
    index.add_incoming(INT64(0) if first is None else first, before)
    phis = []
    for value in carried:
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        phis.append(phi)
    builder.cbranch(builder.icmp_signed("<", index, count), body, after)
    builder.position_at_end(body)
    results = step(index, phis)
    for phi, value in zip(phis, results, strict=True):
        phi.add_incoming(value, builder.block)
    index.add_incoming(builder.add(index, INT64(stride)), builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis


def pointer(context: Any, builder: Any, signature: Any, arguments: Any, i: int, kind: Any) -> Any:
    """Return argument `i` of an intrinsic, an array, as a pointer to values of `kind`."""
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
    """Return a vector that repeats one value `count` times."""
    single = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    return shuffle(builder, builder.insert_element(single, value, INT32(0)), [0] * count)


def pairs(builder: Any, values: Any) -> Any:
    """Return the sums of adjacent pairs of elements."""
    even, odd = (shuffle(builder, values, range(first, values.type.count, 2)) for first in (0, 1))
    return builder.add(even, odd)


def ask_for(builder: Any, address: Any) -> None:
    """Emit a prefetch of an address, which may be invalid."""
    byte_pointer, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
    function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
    emit: Any = cgutils.get_or_insert_function
    function = emit(builder.module, function_type, "llvm.prefetch.p0")
    read, keep, data_cache = int32(0), int32(3), int32(1)
    builder.call(function, [builder.bitcast(address, byte_pointer), read, keep, data_cache])
