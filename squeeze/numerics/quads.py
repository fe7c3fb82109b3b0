"""Products of one row of 16-bit activations and int8 weights by instructions that multiply bytes in fours (VNNI).

The integers are those of tiles.py, at three times the speed: a row against weights that are used once is bound by how
weights reach the registers, and here they are not widened. An activation a is 256 h + l, with l from 0 to 255 and h
from -128 to 127; h + 128 and l are multiplied as unsigned bytes, which vpdpbusd wants, and 32768 times the sum of the
weights is taken off. Sums wrap at 32 bits, and the result does not, as long as `exact.CHUNK` says.

Matrices are packed for it: panels of 16 outputs, in each the inputs in fours, int8 [outputs / 16, inputs / 4, 16, 4].
"""

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import config, types
from numba.extending import intrinsic

from squeeze.numerics.jit import inline, part
from squeeze.numerics.tiles import PANEL

_FOUR = 4
_config: Any = config
# Whether the processor that numba compiles for has the instructions: another one than this machine's may be asked for.
AVAILABLE = not _config.CPU_NAME and bool(llvm.get_host_cpu_features().get("avx512vnni", False))


def pack(matrix: np.ndarray) -> np.ndarray:
    """int8 [N, K] -> int8 [ceil(N / 16), ceil(K / 4), 16, 4], zero padded; [p, k, c, j] is [16 p + c, 4 k + j]."""
    outputs, inputs = matrix.shape
    padded = np.zeros((-(-outputs // PANEL) * PANEL, -(-inputs // _FOUR) * _FOUR), np.int8)
    padded[:outputs, :inputs] = matrix
    panels = padded.reshape(-1, PANEL, padded.shape[1] // _FOUR, _FOUR)
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3))


def offsets(matrix: np.ndarray) -> np.ndarray:
    """int32 [N]: what `multiply` takes off its sums with int8 [N, K], 32768 times those of the weights."""
    offsets: np.ndarray = 32768 * matrix.sum(1, dtype=np.int64)
    return offsets.astype(np.int32)


_INT8, _INT32, _INT64 = (ir.IntType(bits) for bits in (8, 32, 64))
_SUMS, _BYTES = ir.VectorType(_INT32, PANEL), ir.VectorType(_INT8, _FOUR * PANEL)


def _tile(panels: int) -> Any:
    """A compiled product of one row and `panels` panels.

    The intrinsic's arguments: high and low bytes of activations uint8; weights, their offset and panel stride in bytes;
    fours of inputs (at least one); int32 results and their offset.
    """

    @intrinsic
    def tile(typingctx, high, low, weights, offset, stride, fours, out, out_offset):
        def codegen(context, builder, signature, arguments):
            def pointer(i, kind):
                array = context.make_array(signature.args[i])(context, builder, arguments[i])
                return builder.bitcast(array.data, kind.as_pointer())

            multiply = builder.module.declare_intrinsic(
                "llvm.x86.avx512.vpdpbusd.512", (), ir.FunctionType(_SUMS, [_SUMS, _SUMS, _SUMS])
            )
            starts = [
                builder.gep(pointer(2, _INT8), [builder.add(arguments[3], builder.mul(arguments[4], _INT64(p)))])
                for p in range(panels)
            ]
            activations = [pointer(i, _INT32) for i in (0, 1)]
            before = builder.block
            body, after = builder.append_basic_block("fours"), builder.append_basic_block("done")
            builder.branch(body)
            builder.position_at_end(body)
            k = builder.phi(_INT64)
            k.add_incoming(_INT64(0), before)
            totals = [builder.phi(_SUMS) for _ in range(2 * panels)]
            for total in totals:
                total.add_incoming(ir.Constant(_SUMS, None), before)
            spread = [_spread(builder, builder.load(builder.gep(start, [k]), align=1)) for start in activations]
            added = []
            for p, start in enumerate(starts):
                address = builder.gep(start, [builder.mul(k, _INT64(_FOUR * PANEL))])
                values = builder.load(builder.bitcast(address, _SUMS.as_pointer()), align=1)
                added += [builder.call(multiply, [totals[2 * p + i], spread[i], values]) for i in (0, 1)]
            following = builder.add(k, _INT64(1))
            k.add_incoming(following, builder.block)
            for total, value in zip(totals, added, strict=True):
                total.add_incoming(value, builder.block)
            builder.cbranch(builder.icmp_signed("<", following, arguments[5]), body, after)
            builder.position_at_end(after)
            shift = ir.Constant(_SUMS, [8] * PANEL)
            for p in range(panels):
                value = builder.add(builder.shl(added[2 * p], shift), added[2 * p + 1])
                address = builder.gep(pointer(6, _INT32), [builder.add(arguments[7], _INT64(p * PANEL))])
                builder.store(value, builder.bitcast(address, _SUMS.as_pointer()), align=4)
            return context.get_dummy_value()

        n = types.int64
        return types.void(high, low, weights, n, n, n, out, n), codegen

    return tile


def _spread(builder: Any, value: Any) -> Any:
    single = builder.insert_element(ir.Constant(_SUMS, ir.Undefined), value, _INT32(0))
    return builder.shuffle_vector(single, single, ir.Constant(_SUMS, [0] * PANEL))


_tile8, _tile4, _tile2, _tile1 = (_tile(panels) for panels in (8, 4, 2, 1))


@inline
def split(activations, high, low):
    """int16 -> its high byte plus 128, and its low byte, both uint8."""
    for i in range(activations.size):
        value = np.int32(activations[i])
        high[i] = np.uint8((value >> 8) + 128)
        low[i] = np.uint8(value & 255)


@part
def multiply(high, low, weights, offsets, out):
    """int32 sums `out` [at least N]: split activations uint8 [K] times packed weights [N / 16, K / 4, 16, 4].

    offsets: those of the weights. K is at most exact.CHUNK.
    """
    panels, fours = weights.shape[0], weights.shape[1]
    stride = fours * PANEL * _FOUR
    panel = 0
    while panels - panel >= 8:
        _tile8(high, low, weights, panel * stride, stride, fours, out, panel * PANEL)
        panel += 8
    if panels - panel >= 4:
        _tile4(high, low, weights, panel * stride, stride, fours, out, panel * PANEL)
        panel += 4
    if panels - panel >= 2:
        _tile2(high, low, weights, panel * stride, stride, fours, out, panel * PANEL)
        panel += 2
    if panels - panel >= 1:
        _tile1(high, low, weights, panel * stride, stride, fours, out, panel * PANEL)
    for i in range(offsets.size):
        out[i] -= offsets[i]
