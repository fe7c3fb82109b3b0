"""The models of the archive coding: contexts of neighbouring exponents, running means and leading mantissa bits."""

from typing import NamedTuple

import numpy as np

from squeeze.numerics.bitmodels import coder as arithmetic, histories, mixer
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.logistic import STRETCH, squash
from squeeze.packing.tensors.float_payload import Array
from squeeze.system.arena import thread_buffer

_RATE, _LIMIT = 10, 511
_INPUTS, _MANTISSA_INPUTS = 8, 4  # predictions of a decision, besides a bias
_START = 1 << 13  # initial weight of a prediction, in units of 2^-16
_ROW, _ALL = 0, 1  # scalars of a model: running means of the exponents, with 8 fractional bits


class ArchiveModel(NamedTuple):
    """The state of all models, which encoder and decoder update alike."""

    tree: np.ndarray  # int32 [nodes, 2]: the next node, or -1 - exponent
    maps: np.ndarray  # uint32 [_INPUTS, contexts * nodes]: see histories.learn
    mantissa_maps: np.ndarray  # uint32 [_MANTISSA_INPUTS, contexts * 2^mixed]
    weights: np.ndarray  # int32 [nodes, _INPUTS + 1]
    mantissa_weights: np.ndarray  # int32 [2^mixed, _MANTISSA_INPUTS + 1]
    column_means: np.ndarray  # int32 [columns]
    above: np.ndarray  # uint8 [columns + 2]: exponents of the row above, one column off
    scalars: np.ndarray  # int64 [2]
    contexts: np.ndarray  # int64 [_INPUTS]
    entries: np.ndarray  # int64 [_INPUTS]
    inputs: np.ndarray  # int32 [_INPUTS + 1]
    mantissa_inputs: np.ndarray  # int32 [_MANTISSA_INPUTS + 1]


def build_model(tree: Array, columns: int, mixed: int, mean: int) -> ArchiveModel:
    """Return the initial state.

    Args:
        tree: nodes of the exponents' tree.
        columns: values in a row.
        mixed: mantissa bits that are mixed.
        mean: the exponent from which running means start.
    """
    nodes = 1 << max(int(len(tree) - 1).bit_length(), 1)
    return ArchiveModel(
        tree=tree,
        maps=_maps("maps of archive", _INPUTS, 2048 * nodes),
        mantissa_maps=_maps("mantissa maps of archive", _MANTISSA_INPUTS, 2048 << mixed),
        weights=np.full((nodes, _INPUTS + 1), _START, np.int32),
        mantissa_weights=np.full((1 << mixed, _MANTISSA_INPUTS + 1), _START, np.int32),
        column_means=np.full(columns, mean << 8, np.int32),
        above=np.full(columns + 2, mean, np.uint8),
        scalars=np.full(2, mean << 8, np.int64),
        contexts=np.zeros(_INPUTS, np.int64),
        entries=np.zeros(_INPUTS, np.int64),
        inputs=np.zeros(_INPUTS + 1, np.int32),
        mantissa_inputs=np.zeros(_MANTISSA_INPUTS + 1, np.int32),
    )


def _maps(name: str, inputs: int, size: int) -> Array:
    """Return probabilities of 1/2, uint32 [inputs, size], in memory of this thread."""
    maps: Array = thread_buffer(name, 4 * inputs * size).view(np.uint32).reshape(inputs, size)
    maps[:] = 1 << 31
    return maps


@inline
def _near(value, mean, steps):
    """Return value - mean, both with 8 fractional bits, in units of 1 / steps, clamped to 0 to 31."""
    return min(max(((value - mean) * steps >> 8) + 16, 0), 31)


@inline
def set_contexts(m, column, left, left2):
    """Set the contexts of the exponent in this column."""
    row, mean = m.scalars[_ROW], m.scalars[_ALL]
    col = np.int64(m.column_means[column])
    up, up_left, up_right = np.int64(m.above[column + 1]), np.int64(m.above[column]), np.int64(m.above[column + 2])
    expected = min(max(row + col - mean, 0), 255 << 8)
    m.contexts[0] = 0
    m.contexts[1] = left * 8 + min(max(left2 - left + 4, 0), 7)
    m.contexts[2] = up
    m.contexts[3] = row >> 5
    m.contexts[4] = col >> 5
    m.contexts[5] = expected >> 5
    m.contexts[6] = (2 * left + left2 + 2 * up + up_left + up_right + left2) & 2047
    m.contexts[7] = _near(row, mean, 4) * 32 + _near(col, mean, 4)


@inline
def note_exponent(m, column, exponent):
    """Update the running means with an exponent."""
    value = exponent << 8
    m.scalars[_ROW] += (value - m.scalars[_ROW]) >> 5
    m.scalars[_ALL] += (value - m.scalars[_ALL]) >> 12
    m.column_means[column] += np.int32((value - np.int64(m.column_means[column])) >> 5)


@inline
def code_bit(bit, maps, contexts, count, nodes, node, entries, weights, inputs, coder, coded, decoding):
    """Predict one decision, code it in either direction, and update the models; return the bit."""
    for k in range(count):
        entry = contexts[k] * nodes + node
        entries[k] = entry
        inputs[k] = STRETCH[maps[k, entry] >> np.uint32(20)]
    inputs[count] = 256
    mixed = squash(mixer.dot(weights, inputs))
    probability = min(max(mixed, 1), (1 << 32) - 1)
    if decoding:
        bit = arithmetic.decode(probability, coder, coded)
    else:
        arithmetic.encode(bit, probability, coder, coded)
    error = (((bit << 32) - bit) - mixed) >> 16
    mixer.train(weights, inputs, error, _RATE)
    for k in range(count):
        histories.learn(maps[k], entries[k], bit, _LIMIT)
    return bit


@kernel
def code(m, values, mixed, columns, begin, end, paths, coder, coded, decoding):
    """Code values begin to end in either direction: the exponents and `mixed` mantissa bits.

    paths: uint64 [exponents], the decisions to each exponent, first one lowest. Returns where coding stopped, before
    `end` if `coded` is full or used up.
    """
    nodes, leaves = m.weights.shape[0], np.int64(1 << mixed)
    for i in range(begin, end):
        if arithmetic.is_over(coder, coded, decoding):
            return i
        column = i % columns
        left = np.int64(values[i - 1] >> mixed) if i > 0 else m.scalars[_ALL] >> 8
        left2 = np.int64(values[i - 2] >> mixed) if i > 1 else left
        if column == 0:
            m.scalars[_ROW] = m.scalars[_ALL]
        set_contexts(m, column, left, left2)
        exponent = np.int64(values[i] >> mixed)
        mantissa = np.int64(values[i]) & (leaves - 1)
        node, depth = np.int64(0), np.uint64(0)
        while node >= 0:
            bit = np.int64((paths[exponent] >> depth) & np.uint64(1))
            bit = code_bit(
                bit, m.maps, m.contexts, _INPUTS, nodes, node, m.entries, m.weights[node], m.inputs, coder, coded,
                decoding,
            )  # fmt: skip
            node = np.int64(m.tree[node, bit])
            depth += np.uint64(1)
        exponent = -1 - node
        row, col, mean = m.scalars[_ROW], np.int64(m.column_means[column]), m.scalars[_ALL]
        m.contexts[0] = exponent
        m.contexts[1] = 0
        m.contexts[2] = _near(exponent << 8, row + col - mean, 2) * 32 + _near(row, mean, 2)
        m.contexts[3] = exponent * 8 + min(max(left - exponent + 4, 0), 7)
        partial = np.int64(1)
        for shift in range(mixed - 1, -1, -1):
            bit = code_bit(
                (mantissa >> shift) & 1, m.mantissa_maps, m.contexts, _MANTISSA_INPUTS, leaves, partial, m.entries,
                m.mantissa_weights[partial], m.mantissa_inputs, coder, coded, decoding,
            )  # fmt: skip
            partial = 2 * partial + bit
        if decoding:
            values[i] = values.dtype.type((exponent << mixed) | (partial - leaves))
        note_exponent(m, column, exponent)
        m.above[column + 1] = np.uint8(exponent)
    return end
