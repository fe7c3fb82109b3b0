"""Groups of 32 values by vectors: two masks of their 2-bit codes, and the other bits as masks and bytes.

The *prefix* of a value is its highest bits without the sign. It is compared with three known ones, and a mask of 32
bits for each bit of the codes holds the result. fixed.py has the format. The code uses LLVM's generic vectors, so every
processor runs it. Only moving bytes by a mask differs: an instruction of AVX-512 with VBMI2, permutations of eight at a
time on Arm, and a loop elsewhere.

An array's type tells which floats its values are: see KINDS.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from squeeze.numerics import machine_code
from squeeze.numerics.codegen import from_dtype, intrinsic, ir, types
from squeeze.numerics.jit import inline
from squeeze.numerics.machine_code import INT8, INT32, INT64, ask_for, looped
from squeeze.numerics.words import moves

GROUP = 32
_BYTES, _MASK = ir.VectorType(INT8, GROUP), ir.VectorType(ir.IntType(1), GROUP)
MOVES_BYTES = all(map(machine_code.has, ("avx512f", "avx512bw", "avx512vl", "avx512vbmi2")))
_NEON = machine_code.has("neon")
_NUMBER = types.int64
_AHEAD = 2048  # bytes: memory is slower to begin than to go on

# safetensors dtype: the type by which its bits are viewed, and the bits of the exponent, which are the prefix
KINDS = {
    "BF16": (np.uint16, 8),
    "F16": (np.int16, 5),
    "F32": (np.uint32, 8),
    "F8_E4M3": (np.uint8, 4),
    "F8_E5M2": (np.int8, 5),
}
_PREFIX_BITS = {from_dtype(np.dtype(view)): bits for view, bits in KINDS.values()}


class _Group:
    """An emitter of machine code for one group of values with prefixes of at most 8 bits."""

    def __init__(self, builder: Any, bits: int, prefix_bits: int, turned: bool) -> None:
        self.builder, self.bits, self.prefix_bits = builder, bits, prefix_bits
        self.turned = turned  # values are rotated left by one bit first
        self.values = ir.VectorType(ir.IntType(bits), GROUP)
        self.planes = range(bits - 16, -8, -8)  # the lowest bit of each byte below the highest
        self.loose = [1 << bit for bit in reversed(range(8 - prefix_bits))]  # bits of the highest byte below the prefix

    def constant(self, kind: Any, value: int) -> Any:
        return ir.Constant(kind, [value] * GROUP)

    def spread(self, value: Any) -> Any:
        """Return a vector with the low byte of an int64 in every lane."""
        undefined = ir.Constant(_BYTES, ir.Undefined)
        single = self.builder.insert_element(undefined, self.builder.trunc(value, INT8), INT32(0))
        return self.builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(INT32, GROUP), [0] * GROUP))

    def mask(self, bits: Any) -> Any:
        """Return the bits of an int32 as conditions. On NEON, LLVM alone would extract them one by one."""
        if not _NEON:
            return self.builder.bitcast(bits, _MASK)
        bytes_ = self.builder.bitcast(bits, ir.VectorType(INT8, 4))
        places = ir.Constant(ir.VectorType(INT32, GROUP), [lane // 8 for lane in range(GROUP)])
        own = ir.Constant(_BYTES, [1 << lane % 8 for lane in range(GROUP)])
        found = self.builder.and_(self.builder.shuffle_vector(bytes_, bytes_, places), own)
        return self.builder.icmp_unsigned("!=", found, ir.Constant(_BYTES, None))

    def load(self, pointer: Any, kind: Any) -> Any:
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()), align=1)

    def store(self, value: Any, pointer: Any) -> None:
        self.builder.store(value, self.builder.bitcast(pointer, value.type.as_pointer()), align=1)

    def narrow(self, values: Any) -> Any:
        return values if self.bits == 8 else self.builder.trunc(values, _BYTES)

    def wide(self, bytes_: Any) -> Any:
        return bytes_ if self.bits == 8 else self.builder.zext(bytes_, self.values)

    def shifted(self, values: Any, count: int, up: bool = False) -> Any:
        if not count:
            return values
        shift = self.builder.shl if up else self.builder.lshr
        return shift(values, self.constant(values.type, count))


def _pointers(context: Any, builder: Any, signature: Any, arguments: Any, pairs: dict[int, int | None]) -> list[Any]:
    """Return pointers into arrays; pairs: number of the array's argument, and of the argument with its offset."""
    found = []
    for array, offset in pairs.items():
        data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
        found.append(data if offset is None else builder.gep(data, [arguments[offset]]))
    return found


def _of_floats(builder: Any, array: Any) -> _Group:
    return _Group(builder, array.dtype.bitwidth, _PREFIX_BITS[array.dtype], turned=True)


def _of_prefixes(builder: Any, array: Any) -> _Group:
    return _Group(builder, 8, 8, turned=False)


def _splitter(group: Callable[[Any, Any], _Group]) -> Any:
    @intrinsic
    def split(typingctx, values, begin, one, two, three, out, place, prefixes):
        def codegen(context, builder, signature, arguments):
            pointers = _pointers(context, builder, signature, arguments, {0: 1, 5: 6, 7: None})
            return _split(group(builder, values), *pointers, arguments[2:5])

        return _NUMBER(values, *[_NUMBER] * 4, out, _NUMBER, prefixes), codegen

    return split


# Write the record of values[begin : begin + 32] to `out` (uint8) from `place` on, and all their prefixes to `prefixes`
# (uint8 [32]). Return the mask, as int64, of the values with code 3, whose prefix is not one of the three known ones.
split, split_prefixes = _splitter(_of_floats), _splitter(_of_prefixes)


def _split(group: _Group, values: Any, out: Any, prefixes: Any, known: Any) -> Any:
    builder, place = group.builder, 0

    def write(value: Any, size: int) -> None:
        nonlocal place
        group.store(value, builder.gep(out, [INT64(place)]))
        place += size

    value = group.load(values, group.values)
    if group.turned:
        value = builder.or_(group.shifted(value, 1, up=True), group.shifted(value, group.bits - 1))
    head = group.narrow(group.shifted(value, group.bits - 8))
    prefix = group.shifted(head, 8 - group.prefix_bits)
    first, second, third = (builder.icmp_unsigned("==", prefix, group.spread(one)) for one in known)
    other = builder.not_(builder.or_(first, builder.or_(second, third)))
    write(builder.bitcast(builder.or_(second, other), INT32), 4)
    write(builder.bitcast(builder.or_(third, other), INT32), 4)
    for bit in group.loose:
        is_set = builder.icmp_unsigned("!=", builder.and_(head, group.constant(_BYTES, bit)), ir.Constant(_BYTES, None))
        write(builder.bitcast(is_set, INT32), 4)
    for drop in group.planes:
        write(group.narrow(group.shifted(value, drop)), GROUP)
    group.store(prefix, prefixes)
    return builder.zext(builder.bitcast(other, INT32), INT64)


def _joiner(group: Callable[[Any, Any], _Group]) -> Any:
    @intrinsic
    def join(typingctx, out, begin, one, two, three, coded, place, prefixes):
        def codegen(context, builder, signature, arguments):
            pointers = _pointers(context, builder, signature, arguments, {0: 1, 5: 6, 7: None})
            target, coded_at, others = pointers
            kind = group(builder, out)
            _join(kind, target, coded_at, lambda _: kind.load(others, _BYTES), arguments[2:5])
            return context.get_dummy_value()

        return types.void(out, *[_NUMBER] * 4, coded, _NUMBER, prefixes), codegen

    return join


# The reverse: compute out[begin : begin + 32] from the record at `place` of `coded` (uint8) and from `prefixes` (uint8
# [32]), which has the prefixes of values with code 3 in their places.
join, join_prefixes = _joiner(_of_floats), _joiner(_of_prefixes)


def _run_joiner(group: Callable[[Any, Any], _Group]) -> Any:
    @intrinsic
    def join_run(typingctx, out, begin, groups, one, two, three, coded, place, record, others):
        def codegen(context, builder, signature, arguments):
            target, coded_at, source = _pointers(context, builder, signature, arguments, {0: 1, 6: 7, 9: None})
            kind = group(builder, out)

            def step(index: Any, carried: list[Any]) -> list[Any]:
                used = carried[0]

                def expanded(bits: Any) -> Any:
                    nonlocal used
                    found = _moved(kind, "expand", builder.gep(source, [used]), bits)
                    used = builder.add(used, builder.zext(builder.call(counted, [bits]), INT64))
                    return found

                here = builder.gep(coded_at, [builder.mul(index, arguments[8])])
                ask_for(builder, builder.gep(here, [INT64(_AHEAD)]))
                _join(kind, builder.gep(target, [builder.mul(index, INT64(GROUP))]), here, expanded, arguments[3:6])
                return [used]

            counted = builder.module.declare_intrinsic("llvm.ctpop.i32", (), ir.FunctionType(INT32, [INT32]))
            return looped(builder, arguments[2], [INT64(0)], step)[0]

        return _NUMBER(out, *[_NUMBER] * 5, coded, _NUMBER, _NUMBER, others), codegen

    return join_run


# The same for `groups` whole groups, whose records are `record` bytes apart. The prefixes of values with code 3 are in
# `others` (uint8), one after the other. Returns the number of these. Only if MOVES_BYTES.
join_run, join_prefixes_run = _run_joiner(_of_floats), _run_joiner(_of_prefixes)


def _join(group: _Group, out: Any, coded: Any, others: Callable[[Any], Any], known: Any) -> None:
    """Emit the values of a record. others: returns a vector with the prefixes of values with code 3, given their mask,
    an int32.
    """
    builder, place = group.builder, 0

    def read(kind: Any, size: int) -> Any:
        nonlocal place
        found = group.load(builder.gep(coded, [INT64(place)]), kind)
        place += size
        return found

    bits = [read(INT32, 4) for _ in range(2)]
    low, high = map(group.mask, bits)
    one, two, three = map(group.spread, known)
    odd = builder.select(high, others(builder.and_(*bits)), two)
    head = group.shifted(builder.select(low, odd, builder.select(high, three, one)), 8 - group.prefix_bits, up=True)
    for bit in group.loose:
        is_set = group.mask(read(INT32, 4))
        one_bit = builder.select(is_set, group.constant(_BYTES, bit), ir.Constant(_BYTES, None))
        head = builder.or_(head, one_bit)
    value = group.shifted(group.wide(head), group.bits - 8, up=True)
    for drop in group.planes:
        value = builder.or_(value, group.shifted(group.wide(read(_BYTES, GROUP)), drop, up=True))
    if group.turned:
        value = builder.or_(group.shifted(value, 1), group.shifted(value, group.bits - 1, up=True))
    group.store(value, out)


def _mover(way: str) -> Any:
    """Return a compiled step: store at `place` of `target` the bytes of source[begin : begin + 32] moved by a mask."""

    @intrinsic
    def move(typingctx, source, begin, mask, target, place):
        def codegen(context, builder, signature, arguments):
            start, end = _pointers(context, builder, signature, arguments, {0: 1, 3: 4})
            (_move_eights if _NEON else _move_all)(_of_prefixes(builder, source), way, start, arguments[2], end)
            return context.get_dummy_value()

        return types.void(source, _NUMBER, _NUMBER, target, _NUMBER), codegen

    return move


def _move_all(group: _Group, way: str, source: Any, mask: Any, target: Any) -> None:
    group.store(_moved(group, way, source, group.builder.trunc(mask, INT32)), target)


def _moved(group: _Group, way: str, source: Any, mask: Any) -> Any:
    """Move all bytes with the instruction of AVX-512 with VBMI2, by a mask that is an int32."""
    builder, kinds = group.builder, [_BYTES, _BYTES, _MASK]
    call = builder.module.declare_intrinsic(f"llvm.x86.avx512.mask.{way}.v32i8", (), ir.FunctionType(_BYTES, kinds))
    return builder.call(call, [group.load(source, _BYTES), ir.Constant(_BYTES, None), group.mask(mask)])


def _move_eights(group: _Group, way: str, source: Any, mask: Any, target: Any) -> None:
    """Move bytes by permutations of eight lanes on NEON.

    On the packed side, the bytes of eight lanes follow those of the set lanes before.
    """
    builder, eight, register = group.builder, ir.VectorType(INT8, 8), ir.VectorType(INT8, 16)
    kind, whole = ir.FunctionType(eight, [register, eight]), ir.Constant(ir.VectorType(INT32, 16), list(range(16)))
    permute = builder.module.declare_intrinsic("llvm.aarch64.neon.tbl1.v8i8", (), kind)
    counted = builder.module.declare_intrinsic("llvm.ctpop.v8i8", (), ir.FunctionType(eight, [eight]))
    counts = builder.bitcast(builder.call(counted, [builder.bitcast(mask, eight)]), INT64)
    before = builder.mul(counts, INT64(0x01010100))  # each byte the sum of the counts below it
    for lane in range(0, GROUP, 8):
        bits, packed = (builder.and_(builder.lshr(bytes_, INT64(lane)), INT64(255)) for bytes_ in (mask, before))
        first, last = (INT64(lane), packed) if way == "compress" else (packed, INT64(lane))
        loaded = group.load(builder.gep(source, [first]), eight)
        loaded = builder.shuffle_vector(loaded, ir.Constant(eight, ir.Undefined), whole)
        moved = builder.call(permute, [loaded, group.load(moves(builder, way, bits), eight)])
        group.store(moved, builder.gep(target, [last]))


_compress, _expand = _mover("compress"), _mover("expand")


@intrinsic
def _lowest(typingctx, mask):
    """Return the place of the lowest set bit; there must be one."""

    def codegen(context, builder, signature, arguments):
        call = builder.module.declare_intrinsic("llvm.cttz.i64", (), ir.FunctionType(INT64, [INT64, ir.IntType(1)]))
        return builder.call(call, [arguments[0], ir.IntType(1)(1)])

    return _NUMBER(_NUMBER), codegen


@intrinsic
def count(typingctx, mask):
    """Count the set bits."""

    def codegen(context, builder, signature, arguments):
        call = builder.module.declare_intrinsic("llvm.ctpop.i64", (), ir.FunctionType(INT64, [INT64]))
        return builder.call(call, [arguments[0]])

    return _NUMBER(_NUMBER), codegen


@inline
def gather(source, mask, target, place):
    """Put the bytes of source[0 : 32] whose bits are set in `mask` at `place` of `target`; it must have room for 32."""
    if MOVES_BYTES or _NEON:
        _compress(source, 0, mask, target, place)
        return
    while mask:
        target[place] = source[_lowest(mask)]
        place, mask = place + 1, mask & (mask - 1)


@inline
def scatter(source, begin, mask, target):
    """Put the bytes of `source` from `begin` on into target[0 : 32] where `mask` is set; 32 must be readable."""
    if MOVES_BYTES or _NEON:
        _expand(source, begin, mask, target, 0)
        return
    while mask:
        target[_lowest(mask)] = source[begin]
        begin, mask = begin + 1, mask & (mask - 1)
