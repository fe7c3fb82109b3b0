"""Compiled loops that unpack KV codes of 1 to 6 bits to float32.

Channels come first here, so that the loop runs along tokens with everything about a channel at hand. Points are looked
up 16 at a time, by permuting registers with AVX512 or AVX2 and by single loads elsewhere.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch

from squeeze.kv.codes import bit_planes, lloyd_max
from squeeze.numerics.codegen import cgutils, intrinsic, ir, types
from squeeze.numerics.jit import lossy_kernel
from squeeze.numerics.machine_code import has

__all__ = ["LANES", "MOST_BITS", "Table", "tiles", "unpacked_channels"]

MOST_BITS = 6  # the most bits of a channel

_WORD = 4  # bytes
_SPAN = 1024  # tokens
LANES = 16  # codes at a time
_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_WORDS, _FLOATS = ir.VectorType(_INT32, LANES), ir.VectorType(_FLOAT, LANES)


def unpacked_channels(
    packed: torch.Tensor, scale: torch.Tensor, scales: torch.Tensor, widths: tuple[int, ...], group: int
) -> torch.Tensor:
    """Unpack codes to points times scales, float32 [K, N].

    Args:
        packed: Packed codes, uint8 [N, bytes].
        scale: The code of each token's scale, uint8 [N].
        scales: The values of these codes, float32 [256].
        widths: Bits of each group of channels, in descending order.
        group: The number of channels of a group, K = group * len(widths).
    """
    whole = tiles(packed, scale, scales, widths, group, max(len(packed), 1))
    return next(whole, (0, torch.empty((group * len(widths), 0), dtype=torch.float32)))[1]


def tiles(
    packed: torch.Tensor, scale: torch.Tensor, scales: torch.Tensor, widths: tuple[int, ...], group: int, size: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the first token and the channels float32 [K, tokens] for at most `size` tokens at a time.

    The memory of a tile is reused for the next one. The other arguments are those of `unpacked_channels`.
    """
    if packed.shape[1] < _WORD:
        packed = torch.nn.functional.pad(packed, (0, _WORD - packed.shape[1]))
    columns = -(-min(size, len(packed)) // LANES) * LANES
    out = torch.empty((group * len(widths), columns), dtype=torch.float32)
    numbers = packed.contiguous().numpy(), scale.contiguous().numpy(), scales.numpy(), *_plan(widths, group)
    found = out.numpy()
    for first in range(0, len(packed), size):
        count = min(size, len(packed) - first)
        _unpack(*numbers, first, count, found)
        yield first, out[:, :count]


@cache
def _plan(widths: tuple[int, ...], group: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how each channel is unpacked: int64 [K, 5], and its points, float32 [K, 64].

    The five numbers are word and shift of the high bit plane, word and shift of the low one, and the bits. A channel
    with one plane has it twice.
    """
    size = sum(widths) * group // 8
    plan, points, byte = [], [], 0
    for width in sorted(set(widths), reverse=True):
        count, planes = group * widths.count(width), bit_planes(width)
        table = torch.nn.functional.pad(lloyd_max(width), (0, (1 << MOST_BITS) - (1 << width))).numpy()
        for channel in range(count):
            places: list[int] = []
            start = byte
            for bits in planes:
                bytes_of_plane = count * bits // 8
                places += _place(start + channel % bytes_of_plane, channel // bytes_of_plane * bits, size)
                start += bytes_of_plane
            plan.append([*(places + places)[:4], width])
            points.append(table)
        byte = start
    return np.array(plan, np.int64).reshape(-1, 5), np.array(points, np.float32).reshape(-1, 1 << MOST_BITS)


def _place(byte: int, shift: int, size: int) -> tuple[int, int]:
    """Return the word that a byte of a token is in, and the shift of bits in it. The last word ends where the token
    does.
    """
    word = byte // _WORD
    return word, (byte - _first(word, size)) * 8 + shift


def _first(word: int, size: int) -> int:
    return max(min(word * _WORD, size - _WORD), 0)


@intrinsic
def _word(typingctx, rows, row, at):
    """Return the uint32 of the four bytes from rows[row, at] on."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = builder.add(builder.mul(args[1], builder.extract_value(array.shape, 1)), args[2])
        return builder.load(_address(builder, array.data, place, _INT32), align=1)

    return types.uint32(rows, types.int64, types.int64), codegen


def _channel(width: int) -> Any:
    """Return a compiled loop over the tokens of one channel of `width` bits.

    Its arguments are words uint32 [words, tokens], the first four numbers of a row of `_plan`, points float32 [64],
    scales float32 [tokens], and the output float32 [N]. N is a multiple of LANES.
    """

    @intrinsic
    def fill(typingctx, words, places, points, scale, out):
        def codegen(context, builder, signature, args):
            arrays = [context.make_array(kind)(context, builder, args[i]) for i, kind in enumerate(signature.args)]
            row = builder.extract_value(arrays[0].shape, 1)
            table = Table(builder, arrays[2].data, max(8, 1 << width))
            planes = []
            for number, bits in enumerate(bit_planes(width)):
                word, shift = (builder.load(builder.gep(arrays[1].data, [_INT64(2 * number + i)])) for i in (0, 1))
                pointer = builder.gep(arrays[0].data, [builder.mul(word, row)])
                planes.append((bits, pointer, _spread(builder, builder.trunc(shift, _INT32))))
            vectors = builder.udiv(builder.extract_value(arrays[4].shape, 0), _INT64(LANES))
            with cgutils.for_range(builder, vectors, intp=_INT64) as loop:
                at = builder.mul(loop.index, _INT64(LANES))
                codes = ir.Constant(_WORDS, [0] * LANES)
                for bits, pointer, shift in planes:
                    field = builder.lshr(_load(builder, pointer, at, _WORDS), shift)
                    field = builder.and_(field, ir.Constant(_WORDS, [(1 << bits) - 1] * LANES))
                    codes = builder.or_(builder.shl(codes, ir.Constant(_WORDS, [bits] * LANES)), field)
                factor = _load(builder, arrays[3].data, at, _FLOATS)
                values = builder.fmul(table.look_up(builder, codes), factor)
                builder.store(values, _address(builder, arrays[4].data, at, _FLOATS), align=4)
            return context.get_dummy_value()

        return types.void(words, places, points, scale, out), codegen

    return fill


def _address(builder: Any, pointer: Any, at: Any, kind: Any) -> Any:
    return builder.bitcast(builder.gep(pointer, [at]), kind.as_pointer())


def _load(builder: Any, pointer: Any, at: Any, kind: Any) -> Any:
    return builder.load(_address(builder, pointer, at, kind), align=4)


def _spread(builder: Any, value: Any) -> Any:
    single = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), value, _INT32(0))
    return builder.shuffle_vector(single, single, ir.Constant(_WORDS, [0] * LANES))


_one_bit, _two_bits, _three_bits, _four_bits, _five_bits, _six_bits = map(_channel, range(1, MOST_BITS + 1))


@lossy_kernel(fastmath=False)
def _channel_of(bits, words, places, points, factors, out):
    if bits == 1:
        _one_bit(words, places, points, factors, out)
    elif bits == 2:
        _two_bits(words, places, points, factors, out)
    elif bits == 3:
        _three_bits(words, places, points, factors, out)
    elif bits == 4:
        _four_bits(words, places, points, factors, out)
    elif bits == 5:
        _five_bits(words, places, points, factors, out)
    else:
        _six_bits(words, places, points, factors, out)


@lossy_kernel(fastmath=False)
def _unpack(packed, scale, scales, plan, points, begin, tokens, out):
    """Unpack channels of `tokens` tokens from `begin` on.

    The words of _SPAN tokens become columns, from which one channel after the other is filled. Moving bytes in place of
    words takes eight times as long.
    """
    size = packed.shape[1]
    words, factors = np.zeros((-(-size // _WORD), _SPAN), np.uint32), np.zeros(_SPAN, np.float32)
    for first in range(0, tokens, _SPAN):
        count = min(_SPAN, tokens - first)
        for n in range(count):
            factors[n] = scales[scale[begin + first + n]]
        for start in range(0, count, LANES):
            for i in range(words.shape[0]):
                at = min(_WORD * i, size - _WORD)
                for n in range(start, min(start + LANES, count)):
                    words[i, n] = _word(packed, begin + first + n, at)
        last = first + -(-count // LANES) * LANES
        for channel in range(out.shape[0]):
            places, here = plan[channel, :4], out[channel, first:last]
            _channel_of(plan[channel, 4], words, places, points[channel], factors, here)


class Table:
    """A table of `size` float32 values at a pointer, 8, 16, 32 or 64, loaded into registers. 16 must be readable."""

    def __init__(self, builder: Any, pointer: Any, size: int) -> None:
        self.pointer = pointer
        self.lanes = LANES if has("avx512f") else LANES // 2 if has("avx2") else 0  # lanes of a register
        self.floats, self.codes = (ir.VectorType(kind, self.lanes or 1) for kind in (_FLOAT, _INT32))
        self.parts = [self._part(builder, first) for first in range(0, size, self.lanes)] if self.lanes else []

    def _part(self, builder: Any, first: int) -> Any:
        address = builder.gep(self.pointer, [_INT32(first)])
        return builder.load(builder.bitcast(address, self.floats.as_pointer()), align=4)

    def look_up(self, builder: Any, codes: Any) -> Any:
        """Return the values float32 [16] of codes int32 [16] below `size`."""
        if not self.lanes:
            return self._loaded(builder, codes)
        if self.lanes == LANES:
            return self._chosen(builder, codes)
        low, high = (_shuffled(builder, codes, range(first, first + self.lanes)) for first in (0, self.lanes))
        values = [self._chosen(builder, half) for half in (low, high)]
        return builder.shuffle_vector(*values, _mask(range(LANES)))

    def _chosen(self, builder: Any, codes: Any) -> Any:
        """Return each code's value: its high bits select among parts, which are halved bit by bit."""
        found, bit = [self._permuted(builder, part, codes) for part in self.parts], self.lanes
        while len(found) > 1:
            is_high = builder.icmp_unsigned("!=", builder.and_(codes, _each(self.codes, bit)), _each(self.codes, 0))
            pairs = zip(found[::2], found[1::2], strict=True)
            found, bit = [builder.select(is_high, high, low) for low, high in pairs], 2 * bit
        return found[0]

    def _permuted(self, builder: Any, part: Any, codes: Any) -> Any:
        """Permute a part of the table by the low bits of the codes."""
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
