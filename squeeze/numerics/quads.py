"""Compiled products of one row of 16-bit activations and weights of 8 or 4 bits, in fours of bytes (VNNI).

The integers are those of tiles.py at several times the speed: weights are read sequentially and not widened. An
activation is 256 h + l, both signed bytes. Weights are unsigned: an 8-bit weight is stored plus 128; a 4-bit weight is
odd, from -15 to 15, and stored as its half plus 7.5. The sum of the activations tells what that adds. Sums wrap at 32
bits, but the result does not for up to `exact.CHUNK` inputs.

Panels of 16 outputs are stored in groups of 8 (4 bits: 4), the last ones in smaller groups. A group has the inputs in
fours, uint8 [inputs / 4, panels, 16, 4]. With 4 bits, a byte holds two fours of inputs, the first one low.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from squeeze.numerics import machine_code
from squeeze.numerics.jit import inline, part
from squeeze.numerics.machine_code import INT8, INT32, INT64, PANEL, loaded, pointer, spread, stored, summed, zeros

TOP = 32639  # the largest activation whose halves are both signed bytes
STEP = 8  # inputs of a step
_FOUR = 4
_GROUPS = {8: (8, 4, 2, 1), 4: (4, 2, 1)}  # panels that are multiplied together, by bits of a weight
AVAILABLE = machine_code.has("avx512vnni")


def pack(matrix: np.ndarray, bits: int) -> np.ndarray:
    """Pack int8 [N, K] to uint8 [N * K * bits / 8] for `multiply`. N is a multiple of 16, K of 8.

    4-bit weights are odd and from -15 to 15.
    """
    outputs, inputs = matrix.shape
    stored = matrix.astype(np.int16) + 128 if bits == 8 else matrix + 15 >> 1
    fours = stored.astype(np.uint8).reshape(-1, PANEL, inputs // _FOUR, _FOUR)
    parts, panel = [], 0
    for size in _GROUPS[bits]:
        while outputs // PANEL - panel >= size:
            group = fours[panel : panel + size].transpose(2, 0, 1, 3)
            parts.append((group if bits == 8 else group[::2] | group[1::2] << 4).ravel())
            panel += size
    return np.concatenate(parts)


_SUMS = ir.VectorType(INT32, PANEL)


def _tile(panels: int, bits: int) -> Any:
    """Return a compiled product of one row and a group of panels.

    Its arguments are high and low bytes of the activations, the weights and their offset, the number of steps, and the
    results and their offset. A step is four inputs, or eight for 4 bits; there is at least one.
    """

    halves = 8 // bits  # weights in a byte

    @intrinsic
    def tile(typingctx, high, low, weights, offset, steps, out, out_offset):
        def codegen(context, builder, signature, arguments):
            high, low, weights, target = (
                pointer(context, builder, signature, arguments, i, kind)
                for i, kind in ((0, INT32), (1, INT32), (2, INT8), (5, INT32))
            )
            start = builder.gep(weights, [arguments[3]])
            multiply = builder.module.declare_intrinsic(
                "llvm.x86.avx512.vpdpbusd.512", (), ir.FunctionType(_SUMS, [_SUMS, _SUMS, _SUMS])
            )

            def step(k, totals):
                fours = [builder.add(builder.mul(k, INT64(halves)), INT64(half)) for half in range(halves)]
                rows = [
                    spread(builder, builder.load(builder.gep(part, [four]), align=1), PANEL)
                    for four in fours
                    for part in (high, low)
                ]
                added = []
                for p in range(panels):
                    place = builder.mul(builder.add(builder.mul(k, INT64(panels)), INT64(p)), INT64(_FOUR * PANEL))
                    values = loaded(builder, builder.gep(start, [place]), _SUMS)
                    kept = [values] if bits == 8 else [builder.and_(values, _each(mask)) for mask in (0x0F, 0xF0)]
                    operands = [(kept[half], rows[2 * half + i]) for half in range(halves) for i in (0, 1)]
                    added += [builder.call(multiply, [totals[len(added) + n], *of]) for n, of in enumerate(operands)]
                return added

            sums = summed(builder, arguments[4], zeros(_SUMS, 2 * halves * panels), step)
            for p in range(panels):
                parts = sums[2 * halves * p : 2 * halves * (p + 1)]
                if bits == 4:  # the high weights were taken 16 times
                    parts = [builder.add(parts[i], builder.ashr(parts[2 + i], _words(4))) for i in (0, 1)]
                value = builder.add(builder.shl(parts[0], _words(8)), parts[1])
                stored(builder, value, builder.gep(target, [builder.add(arguments[6], INT64(p * PANEL))]))
            return context.get_dummy_value()

        n = types.int64
        return types.void(high, low, weights, n, n, out, n), codegen

    return tile


def _words(value: int) -> Any:
    return ir.Constant(_SUMS, [value] * PANEL)


def _each(byte: int) -> Any:
    return _words(byte * 0x01010101)


def _in_groups(bits: int) -> Any:
    """Return a compiled loop over the panels from a given one on, in the groups that `pack` makes."""

    @inline
    def walk(high, low, weights, stride, steps, panel, panels, out):
        pass

    for size in reversed(_GROUPS[bits]):
        walk = _before(walk, size, _tile(size, bits))
    return walk


def _before(others: Any, size: int, tile: Any) -> Any:
    """Return a compiled loop over groups of `size` panels, followed by the loop `others`."""

    def walk(high, low, weights, stride, steps, panel, panels, out):  # type: ignore[no-untyped-def]
        while panels - panel >= size:
            tile(high, low, weights, panel * stride, steps, out, panel * PANEL)
            panel += size
        others(high, low, weights, stride, steps, panel, panels, out)

    return inline(walk)


_walk_bytes, _walk_nibbles = _in_groups(8), _in_groups(4)


@inline
def split(activations, high, low):
    """Split int16 activations within TOP into high and low bytes, int8, and return their sum."""
    total = np.int32(0)
    for i in range(activations.size):
        value = np.int32(activations[i])
        half = np.int32(value + 128) >> 8
        high[i] = np.int8(half)
        low[i] = np.int8(value - (half << 8))
        total += value
    return total


@part
def multiply(high, low, total, weights, bits, outputs, inputs, out):
    """Multiply split activations by packed weights, and write int32 to `out` [at least `outputs`].

    Args:
        high: High bytes of the activations, int8 [inputs].
        low: Low bytes, int8 [inputs].
        total: The sum of the activations.
        weights: Packed weights.
        bits: Bits of a weight, 8 or 4.
        outputs: A multiple of 16.
        inputs: A multiple of 8, at most exact.CHUNK.
        out: The results.
    """
    panels = outputs // PANEL
    if bits == 8:
        _walk_bytes(high, low, weights, PANEL * inputs, inputs // 4, 0, panels, out)
        added = 128 * total
        for i in range(outputs):
            out[i] -= added
    else:
        _walk_nibbles(high, low, weights, PANEL * inputs // 2, inputs // 8, 0, panels, out)
        added = 15 * total
        for i in range(outputs):
            out[i] = 2 * out[i] - added
