"""rANS of 32 lanes by vectors: rows of a segment at a time, with the same coded bytes as rans.py.

Decoding gathers the entry of each lane's slot, and distributes the next words to the lanes whose states are low, by an
expansion with a mask. Encoding is the reverse, with a compression. Two segments are decoded side by side if registers
suffice, because the next state of a lane waits for everything done to its last one. Processors without the
instructions, and segments of other than 32 or 16 lanes, use the loops in rans.py.

The method was shown by Giesen (2014, "Interleaved entropy coders") and by the project hypersonic-rANS.

All loops here take a plane from wider values, or insert it. A value is rotated if `turn` is 1 and shifted by `drop`.
Then its raw bits are lowest and its prefix is above them. See floats.py.
"""

from collections.abc import Callable
from typing import Any

from squeeze.numerics.codegen import intrinsic, types
from squeeze.numerics.machine_code import INT8, INT16, INT32, INT64
from squeeze.numerics.words import Vectors, kind

LANES, HALF = 32, 16  # of segments that vectors code
_STATE_LOW = 1 << 15
_Kind: Any = kind()
AVAILABLE = _Kind is not None
LEAST_PRECISION = 11  # encoded by vectors, see `_divided`
TOGETHER = 2 if AVAILABLE and _Kind.width == 16 else 1  # segments that are best decoded side by side
_NUMBER = types.int64


class _Loop:
    """An emitter of machine code for a loop over rows, with what the loops here have in common."""

    def __init__(self, builder: Any, pointers: list[Any], numbers: list[Any], lanes: int = LANES) -> None:
        self.builder, self.pointers, self.numbers, self.lanes = builder, pointers, numbers, lanes
        self.v: Vectors = _Kind(builder)
        self.halves = lanes // self.v.width  # vectors of a row
        self.width = pointers[0].type.pointee.width  # of a value

    def moved(self, pointer: Any, *places: Any) -> Any:
        """Return the pointer advanced by the sum of places, int64 values or integers."""
        for place in places:
            pointer = self.builder.gep(pointer, [INT64(place) if isinstance(place, int) else place])
        return pointer

    def spread(self, value: Any) -> Any:
        """Return a vector with the low bits of an int64 in every lane."""
        return self.v.spread(self.builder.trunc(value, INT32))

    def mask(self, bits: Any) -> Any:
        """Return a vector with the `bits` lowest bits set in every lane."""
        return self.spread(self.builder.sub(self.builder.shl(INT64(1), bits), INT64(1)))

    def rotated(self, value: Any, turn: Any, rest: Any) -> Any:
        """Rotate left by 1 if `turn` is 1 and `rest` 0, leaving garbage above the width; keep the value in the other
        case.
        """
        wrapped = self.builder.lshr(self.builder.lshr(value, self.v.constant(self.width - 1)), rest)
        return self.builder.or_(self.builder.shl(value, turn), wrapped)

    def run(self, first: Any, last: Any, carried: list[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Emit step(row, carried) -> carried for rows `first` to before `last`, at least one; return the last carried
        values.
        """
        builder, before = self.builder, self.builder.block
        body, after = builder.append_basic_block("rows"), builder.append_basic_block("done")
        builder.branch(body)
        builder.position_at_end(body)
        row = builder.phi(INT64)
        row.add_incoming(first, before)
        phis = [builder.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        results = step(row, phis)
        following = builder.add(row, INT64(1))
        row.add_incoming(following, builder.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, last), body, after)
        builder.position_at_end(after)
        return results

    def load_states(self, state: Any, segments: int) -> list[Any]:
        return [self.v.load(self.moved(state, self.v.width * i)) for i in range(self.halves * segments)]

    def store_states(self, state: Any, values: list[Any]) -> None:
        for i, value in enumerate(values):
            self.v.store(value, self.moved(state, self.v.width * i), INT32)


def _of(context: Any, builder: Any, signature: Any, arguments: Any, arrays: int, lanes: int) -> _Loop:
    """Return the loop of an intrinsic whose arguments are `arrays` arrays, followed by numbers."""
    pairs = zip(signature.args[:arrays], arguments[:arrays], strict=True)
    pointers = [context.make_array(kind)(context, builder, array).data for kind, array in pairs]
    return _Loop(builder, pointers, arguments[arrays:], lanes)


def decoder(segments: int, direct: bool, merge: bool, lanes: int = LANES) -> Any:
    """Return a compiled loop that decodes rows of `segments` segments side by side.

    Its arguments are: out; slots uint32 (see rans.decoding_table); words uint16; raw uint32; state uint32 [segments *
    lanes]; at int64 [segments, 5] with the places of each segment's values, table, next words, raw bits and names; the
    first row and the one after the last; precision; field; raw bits of a value; drop; and turn, that of the whole
    value. `state` and the places of words are written back.

    Args:
        segments: number of segments.
        direct: whether field is not 0.
        merge: whether to keep the bits in `out`, of the planes above.
        lanes: lanes of a segment.
    """

    @intrinsic
    def decode(typingctx, out, slots, words, raw, state, at, first, last, precision, field, raw_bits, drop, turn):
        def codegen(context, builder, signature, arguments):
            _decode_rows(_of(context, builder, signature, arguments, 6, lanes), segments, direct, merge)
            return context.get_dummy_value()

        return types.void(out, slots, words, raw, state, at, *[_NUMBER] * 7), codegen

    return decode


def _decode_rows(loop: _Loop, segments: int, direct: bool, merge: bool) -> None:
    builder, v, moved = loop.builder, loop.v, loop.moved
    out, table, words, raw, state, at = loop.pointers
    first, last, precision, field, raw_bits, drop, turn = loop.numbers
    slots, bits, fields, low = (loop.mask(precision), loop.spread(precision), loop.mask(field), loop.mask(raw_bits))
    to_number, to_prefix = loop.spread(field), loop.spread(builder.mul(field, INT64(2)))
    shift, shift_out, turned = loop.spread(raw_bits), loop.spread(drop), loop.spread(turn)
    rest, half_word = builder.sub(v.constant(1), turned), v.constant(65535)
    places = [[builder.load(moved(at, 5 * s + i)) for i in range(5)] for s in range(segments)]
    tables, named = ([moved(table, place[i]) for place in places] for i in (1, 4))

    def step(row: Any, carried: list[Any]) -> list[Any]:
        bit = builder.mul(row, raw_bits)
        offset = builder.and_(bit, INT64(31))
        word, column = (builder.mul(place, INT64(loop.lanes)) for place in (builder.lshr(bit, INT64(5)), row))
        spills = builder.icmp_signed(">", builder.add(offset, raw_bits), INT64(32))
        further = builder.select(spills, INT64(loop.lanes), INT64(0))
        down, up = loop.spread(offset), loop.spread(builder.sub(INT64(31), offset))
        positions, states = carried[:segments], carried[segments:]
        for i in range(segments * loop.halves):
            s, lane = i // loop.halves, INT64(i % loop.halves * v.width)
            x = states[i]
            slot = builder.and_(x, slots)
            entry = v.gather(tables[s], slot)
            if direct:
                inside, number = builder.and_(entry, fields), builder.and_(builder.lshr(entry, to_number), fields)
                prefix = builder.lshr(entry, to_prefix)
            else:
                name = v.gather(named[s], builder.lshr(entry, v.constant(16)))
                inside, number = builder.sub(slot, builder.and_(name, half_word)), builder.and_(entry, half_word)
                prefix = builder.lshr(name, v.constant(16))
            x = builder.add(builder.mul(number, builder.lshr(x, bits)), inside)
            is_low = builder.icmp_unsigned("<", x, v.constant(_STATE_LOW))
            taken = v.expanded(v.load(moved(words, positions[s]), INT16), is_low)
            states[i] = builder.select(is_low, builder.or_(builder.shl(x, v.constant(16)), taken), x)
            positions[s] = builder.add(positions[s], v.count(is_low))
            packed = moved(raw, places[s][3], word, lane)
            high = builder.shl(builder.shl(v.load(moved(packed, further)), v.constant(1)), up)
            value = builder.and_(builder.or_(builder.lshr(v.load(packed), down), high), low)
            value = builder.shl(builder.or_(value, builder.shl(prefix, shift)), shift_out)
            target = moved(out, places[s][0], column, lane)
            if merge:
                value = builder.or_(value, v.load(target, _integer(loop.width)))
            wrapped = builder.shl(builder.shl(value, v.constant(loop.width - 1)), rest)
            v.store(builder.or_(builder.lshr(value, turned), wrapped), target, _integer(loop.width))
        return [*positions, *states]

    carried = [*(place[2] for place in places), *loop.load_states(state, segments)]
    found = loop.run(first, last, carried, step)
    for s in range(segments):
        builder.store(found[s], moved(at, 5 * s + 2))
    loop.store_states(state, found[segments:])


def _integer(width: int) -> Any:
    return {8: INT8, 16: INT16, 32: INT32}[width]


def encoder(turned: bool, lanes: int = LANES) -> Any:
    """Return a compiled loop that encodes rows of a segment, the last one first.

    Its arguments are: values; table uint32 (see rans.encoding_table); words uint16, filled downwards, with 16 more
    before; state uint32 [lanes]; at int64 [3] with the places of its values, table, and words written so far; the
    number of rows; precision; the bits below a prefix, and those of a prefix. `state` and the place of words are
    written back. turned: whether values are rotated first.
    """

    @intrinsic
    def encode(typingctx, values, table, words, state, at, rows, precision, below, prefix_bits):
        def codegen(context, builder, signature, arguments):
            _encode_rows(_of(context, builder, signature, arguments, 5, lanes), turned)
            return context.get_dummy_value()

        return types.void(values, table, words, state, at, *[_NUMBER] * 4), codegen

    return encode


def _encode_rows(loop: _Loop, turned: bool) -> None:
    builder, v, moved = loop.builder, loop.v, loop.moved
    values, table, words, state, at = loop.pointers
    rows, precision, below, prefix_bits = loop.numbers
    bits, room = loop.spread(precision), loop.spread(builder.sub(INT64(31), precision))
    shift, every, half_word = loop.spread(below), loop.mask(prefix_bits), v.constant(65535)
    begin, table_at, position = (builder.load(moved(at, i)) for i in range(3))
    table = moved(table, table_at)

    def step(row: Any, carried: list[Any]) -> list[Any]:
        position, states = carried[0], carried[1:]
        column = builder.mul(builder.sub(builder.sub(rows, INT64(1)), row), INT64(loop.lanes))
        for h in reversed(range(loop.halves)):
            x = states[h]
            value = v.load(moved(values, begin, column, v.width * h), _integer(loop.width))
            if turned:
                value = loop.rotated(value, v.constant(1), v.constant(0))
            entry = v.gather(table, builder.and_(builder.lshr(value, shift), every))
            number, start = builder.and_(entry, half_word), builder.lshr(entry, v.constant(16))
            is_full = builder.icmp_unsigned(">=", x, builder.shl(number, room))
            count = v.count(is_full)
            written = v.compressed_to_end(x, is_full, count)
            v.store(written, moved(words, builder.sub(position, INT64(v.width))), INT16)
            position = builder.sub(position, count)
            x = builder.select(is_full, builder.lshr(x, v.constant(16)), x)
            quotient, rest = _divided(v, x, number)
            states[h] = builder.add(builder.add(builder.shl(quotient, bits), rest), start)
        return [position, *states]

    found = loop.run(INT64(0), rows, [position, *loop.load_states(state, 1)], step)
    builder.store(found[0], moved(at, 2))
    loop.store_states(state, found[1:])


def _divided(v: Vectors, x: Any, divisor: Any) -> tuple[Any, Any]:
    """Return quotient and remainder of x and a divisor; x is below 2^31, the quotient below 2^20.

    An estimate in float32 is too small by less than one. A Newton step from 11.4 bits is too small by 2^-22.8, its
    operations and those after it round by 5 * 2^-24 in all, and it is taken 2^-21 too low. Integers correct it.
    """
    builder, below_two = v.builder, v.float_constant(2 - 2**-21)
    numbers = builder.sitofp(divisor, v.floats)
    guess = v.reciprocal(numbers)
    better = builder.fmul(guess, builder.fsub(below_two, builder.fmul(numbers, guess)))
    quotient = builder.fptosi(builder.fmul(builder.sitofp(x, v.floats), better), v.words)
    rest = builder.sub(x, builder.mul(quotient, divisor))
    is_more = builder.icmp_signed(">=", rest, divisor)
    quotient = builder.select(is_more, builder.add(quotient, v.constant(1)), quotient)
    return quotient, builder.select(is_more, builder.sub(rest, divisor), rest)


def packer(lanes: int = LANES) -> Any:
    """Return a compiled loop that packs the raw bits of `rows` rows of values.

    Values are read from `begin` on, and words written to `raw`, uint32, from `raw_at` on. The unused bits of the last
    words are zeros.
    """

    @intrinsic
    def pack(typingctx, values, raw, begin, raw_at, rows, raw_bits, drop, turn):
        def codegen(context, builder, signature, arguments):
            _pack_rows(_of(context, builder, signature, arguments, 2, lanes))
            return context.get_dummy_value()

        return types.void(values, raw, *[_NUMBER] * 6), codegen

    return pack


def _pack_rows(loop: _Loop) -> None:
    builder, v, moved = loop.builder, loop.v, loop.moved
    values, raw = loop.pointers
    begin, raw_at, rows, raw_bits, drop, turn = loop.numbers
    shift, turned, low = loop.spread(drop), loop.spread(turn), loop.mask(raw_bits)
    rest_of_turn = builder.sub(v.constant(1), turned)

    def step(row: Any, carried: list[Any]) -> list[Any]:
        bit = builder.mul(row, raw_bits)
        offset, word = builder.and_(bit, INT64(31)), builder.mul(builder.lshr(bit, INT64(5)), INT64(loop.lanes))
        up, down = loop.spread(offset), loop.spread(builder.sub(INT64(31), offset))
        is_full = builder.icmp_signed(">=", builder.add(offset, raw_bits), INT64(32))
        whole, over = [], []
        for h in range(loop.halves):
            column = builder.mul(row, INT64(loop.lanes))
            value = v.load(moved(values, begin, column, v.width * h), _integer(loop.width))
            field = builder.and_(builder.lshr(loop.rotated(value, turned, rest_of_turn), shift), low)
            whole.append(builder.or_(carried[h], builder.shl(field, up)))
            over.append(builder.lshr(builder.lshr(field, down), v.constant(1)))
        full_block, next_block = builder.append_basic_block("full"), builder.append_basic_block("next")
        before = builder.block
        builder.cbranch(is_full, full_block, next_block)
        builder.position_at_end(full_block)
        for h in range(loop.halves):
            v.store(whole[h], moved(raw, raw_at, word, v.width * h), INT32)
        builder.branch(next_block)
        builder.position_at_end(next_block)
        kept = []
        for h in range(loop.halves):
            phi = builder.phi(v.words)
            phi.add_incoming(whole[h], before)
            phi.add_incoming(over[h], full_block)
            kept.append(phi)
        return kept

    found = loop.run(INT64(0), rows, [v.constant(0)] * loop.halves, step)
    bit = builder.mul(rows, raw_bits)
    word = builder.mul(builder.lshr(bit, INT64(5)), INT64(loop.lanes))
    with builder.if_then(builder.icmp_signed(">", builder.and_(bit, INT64(31)), INT64(0))):
        for h in range(loop.halves):
            v.store(found[h], moved(raw, raw_at, word, v.width * h), INT32)
